"""Free TCP ports."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port that is free on all addresses of this machine. Another process may take it before the caller
    does."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
