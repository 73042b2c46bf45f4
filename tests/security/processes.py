"""What processes of a command show to others: their environment, and the sockets they listen on."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Seen:
    """A process as /proc shows it."""

    pid: int
    title: str
    environment: bytes


def processes_with(mark: str) -> list[Seen]:
    """All processes of this machine that have `mark` in the environment they were started with."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            with open(f"/proc/{process.pid}/environ", "rb") as file:
                environment = file.read()
            if mark.encode() in environment:
                found.append(Seen(process.pid, " ".join(process.cmdline()), environment))
    return found


def speaks_zeromq(host: str, port: int) -> bool:
    """Whether what listens there greets as ZeroMQ does: each side sends its signature unasked."""
    signature = b""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=10) as opened:
        opened.settimeout(5)
        while len(signature) < 10 and (more := opened.recv(10 - len(signature))):
            signature += more
    return len(signature) == 10 and signature[0] == 0xFF and signature[9] == 0x7F


def speaks_http(host: str, port: int) -> bool:
    """Whether what listens there answers a request of HTTP/1."""
    answer = b""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=10) as opened:
        opened.settimeout(5)
        opened.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answer = opened.recv(5)
    return answer == b"HTTP/"


def those_that(speaks: Callable[[str, int], bool], at: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """The addresses at which `speaks` is true, all asked at once: one that stays silent takes seconds."""
    with ThreadPoolExecutor(max(1, len(at))) as pool:
        answers = list(pool.map(lambda one: speaks(*one), at))
    return [one for one, answer in zip(at, answers, strict=True) if answer]


def addresses_of_listeners(pid: int) -> set[str]:
    """Addresses of the TCP sockets on which a process listens; empty when it has gone."""
    found = set()
    with contextlib.suppress(psutil.Error):
        for connection in psutil.Process(pid).net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN:
                found.add(connection.laddr.ip.removeprefix("::ffff:"))
    return found


def bound_sockets(pid: int) -> set[str]:
    """Where a process can be spoken to: the address of each TCP port on which it listens and of each bound
    UDP port, the path of each Unix socket (@name in Linux's abstract namespace)."""
    found: set[str] = set()
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.Process(pid).net_connections(kind="all"):
            if connection.family == socket.AF_UNIX:
                found.add(str(connection.laddr))
            elif connection.status == psutil.CONN_LISTEN:
                found.add(f"tcp {connection.laddr.ip.removeprefix('::ffff:')}")
            elif connection.type == socket.SOCK_DGRAM and not connection.raddr:
                found.add(f"udp {connection.laddr.ip}")
    return found - {""}


def tcp_listeners(pid: int) -> list[tuple[str, int]]:
    """(address, port) of every TCP socket on which a process listens; any address becomes loopback."""
    found = []
    for connection in psutil.Process(pid).net_connections(kind="tcp"):
        if connection.status == psutil.CONN_LISTEN:
            ip = connection.laddr.ip.removeprefix("::ffff:")
            found.append(({"::": "::1", "0.0.0.0": "127.0.0.1"}.get(ip, ip), connection.laddr.port))
    return found
