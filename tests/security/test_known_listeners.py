"""A socket that is not listed is found, of whatever kind it is."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from .known_listeners import unknown_listeners
from .processes import processes_with

LISTEN = """
import socket, sys
kind, address = sys.argv[1:3]
opened = socket.socket(getattr(socket, kind), socket.SOCK_DGRAM if "udp" in sys.argv else socket.SOCK_STREAM)
opened.bind(address.replace("@", chr(0)) if kind == "AF_UNIX" else (address, 0))
"udp" in sys.argv or opened.listen()
print("listening", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["AF_INET", "0.0.0.0", "ray::Stranger"], "tcp 0.0.0.0"),
        (["AF_INET6", "::", "ray::Stranger"], "tcp ::"),
        (["AF_INET", "0.0.0.0", "udp", "ray::Stranger"], "udp 0.0.0.0"),
        (["AF_UNIX", "@stranger-{0}", "ray::Stranger"], "@stranger-{0}"),
        (["AF_UNIX", "{1}/stranger", "ray::Stranger"], "{1}/stranger"),
        (["AF_INET", "127.0.0.1", "stranger"], "tcp 127.0.0.1"),
        (["AF_INET", "127.0.0.1", "ray::Worker"], None),
        (["AF_UNIX", "{1}/llmzero/slot-0123456789ab/x", "ray::Worker"], None),
    ],
)
def test_a_socket_that_is_not_listed_is_unknown(
    tmp_path: Path, arguments: list[str], found: str | None
) -> None:
    mark = uuid.uuid4().hex
    (tmp_path / "llmzero" / "slot-0123456789ab").mkdir(parents=True)
    given = [part.format(mark, tmp_path) for part in arguments]
    command = [sys.executable, "-c", LISTEN, *given]
    env = {**os.environ, "LLMZERO_TEST_MARK": mark}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"listening\n"
        (one,) = processes_with(mark)
        expected = set() if found is None else {(one.title, found.format(mark, tmp_path))}
        assert unknown_listeners([one]) == expected
        process.stdin.close()
