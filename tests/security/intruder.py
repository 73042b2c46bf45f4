"""A neighbour without secrets: sends each ZeroMQ endpoint the two frames that make an open TransferQueue run
a command. Run as a script, with an empty environment: `intruder.py FILE ENDPOINT ...` has them make FILE, and
prints for each endpoint whether it let the intruder in."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zmq

MARKER_FRAME = b"\xc1\xfe\xed"
HANDSHAKE_MS = 10_000
"""What does not speak ZeroMQ has refused by then."""
PATIENCE_S = 120.0
LET_IN = zmq.EVENT_HANDSHAKE_SUCCEEDED
REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_DISCONNECTED
REFUSED |= zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Touch:
    """Unpickling it makes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def attack(marker: Path, endpoints: Sequence[str]) -> list[bool]:
    """Try all endpoints from a process of its own; whether each took the frames. One that did may still be
    about to act on them."""
    command = [sys.executable, __file__, str(marker), *endpoints]
    done = subprocess.run(command, env={}, check=True, timeout=3 * PATIENCE_S, stdout=subprocess.PIPE)
    said = done.stdout.split()
    assert len(said) == len(endpoints)
    return [word == b"in" for word in said]


def endpoint(host: str, port: int) -> str:
    """Of ZeroMQ, at an address and port."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def main(marker: str, *endpoints: str) -> None:
    """Send the frames, and wait until each endpoint has taken or refused them."""
    context = zmq.Context()
    opened = [_send(context, endpoint, marker) for endpoint in endpoints]
    deadline = time.monotonic() + PATIENCE_S
    let_in = [_is_let_in(monitor, deadline) for _, monitor in opened]
    for socket, monitor in opened:
        socket.disable_monitor()
        monitor.close()
        socket.close(linger=HANDSHAKE_MS if any(let_in) else 0)  # what was sent arrives
    context.term()
    print(*("in" if one else "out" for one in let_in))


def _send(context: Any, endpoint: str, marker: str) -> tuple[Any, Any]:
    """A socket that has the frames to send there, and what it tells of its connection."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.identity = b"TQ_STORAGE_intruder"  # storage units drop other names unread
    monitor = socket.get_monitor_socket()
    socket.connect(endpoint)
    with contextlib.suppress(zmq.Again):  # refused already
        socket.send_multipart([MARKER_FRAME, pickle.dumps(Touch(marker))], zmq.DONTWAIT)
    return socket, monitor


def _is_let_in(monitor: Any, deadline: float) -> bool:
    while monitor.poll(max(0.0, deadline - time.monotonic()) * 1000):
        event = int.from_bytes(monitor.recv_multipart()[0][:2], "little")
        if event & (LET_IN | REFUSED):
            return bool(event & LET_IN)
    return False  # it never answered


if __name__ == "__main__":
    main(*sys.argv[1:])
