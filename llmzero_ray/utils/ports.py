"""A TCP port that nothing listens on."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port that is free on every address of this machine. Another process may take it before the caller."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
