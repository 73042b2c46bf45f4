"""Call math-verify in a child process (math_server.py), so that no answer can block the caller.

One child per process, started with the first question and shared by all threads, one question at a time. It
ends when its standard input closes, so it never outlives this process.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

from llmzero_ray.utils.api_key import without_secrets

_SERVER = Path(__file__).with_name("math_server.py")
START_TIMEOUT_S = 120.0
"""Seconds until the child has imported math-verify, on a busy machine."""
ANSWER_TIMEOUT_S = 30.0
"""Seconds for one answer. The limit of processor time normally ends the question long before."""
_END_TIMEOUT_S = 5.0
_READY, _KILLED = b"ready", b"killed"

_lock = threading.Lock()
_child: subprocess.Popen[bytes] | None = None
_owner = 0
_numbers = itertools.count()


def compare(gold: str, answer: str) -> tuple[bool, str | None]:
    """(whether math-verify considers two texts the same object, the text that it read as the answer or
    empty). (False, None) if it cannot be called or takes too long."""
    with _lock:
        try:
            reply = _request(next(_numbers), gold, answer)
        except OSError:
            reply = None
        if reply is None:
            _end()
        return reply or (False, None)


def close() -> None:
    """End the child, if there is one; the next question starts another."""
    with _lock:
        _end()


def _request(number: int, gold: str, answer: str) -> tuple[bool, str | None] | None:
    """The reply; None when the child is gone."""
    child = _started()
    if child is None or child.stdin is None:
        return None
    child.stdin.write(json.dumps([number, gold, answer]).encode() + b"\n")
    while line := _line(child, ANSWER_TIMEOUT_S):
        if line.strip() == _KILLED:
            return False, None
        echoed, same, read = json.loads(line)
        # The answer to an earlier question may still arrive, because its worker was killed meanwhile.
        if echoed == number:
            return same, read
    return None


def _started() -> subprocess.Popen[bytes] | None:
    global _child, _owner
    # A forked process shares its parent's pipes and must not read from them.
    if _child is not None and _owner == os.getpid():
        return _child
    if importlib.util.find_spec("math_verify") is None:
        return None
    _child = subprocess.Popen(
        [sys.executable, "-P", str(_SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,  # a buffer would hide unread data from poll
        start_new_session=True,
        env=without_secrets(os.environ),
    )
    _owner = os.getpid()
    if _line(_child, START_TIMEOUT_S).strip() != _READY:
        _end()
    return _child


def _line(child: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """The next line that the child writes; empty when none comes in time, or it has ended."""
    assert child.stdout is not None
    poll = select.poll()
    poll.register(child.stdout, select.POLLIN | select.POLLHUP)
    return child.stdout.readline() if poll.poll(timeout_s * 1000) else b""


def _end() -> None:
    global _child
    child, _child = _child, None
    if child is None or _owner != os.getpid():
        return
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            stream.close()
    try:
        child.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
