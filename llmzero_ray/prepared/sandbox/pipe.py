"""Line-based pipe to and from an untrusted process: no call blocks longer than its time-out."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable

_CHUNK = 65_536
_CHECK_S = 0.2


class NoLineError(Exception):
    """The process gave no line: too late, too long, or it is gone. Internal to this package."""


class LinePipe:
    """The standard input and output of a process, which must be binary and unbuffered."""

    def __init__(self, process: subprocess.Popen[bytes], max_line: int) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._in, self._out = process.stdin.fileno(), process.stdout.fileno()
        self._max_line = max_line
        self._unsent, self._unread = bytearray(), bytearray()
        for descriptor in (self._in, self._out):
            os.set_blocking(descriptor, False)

    def send(self, line: bytes) -> None:
        """Queue a line, which is sent while `line` waits."""
        self._unsent += line

    def line(self, timeout_s: float, check: Callable[[], None] = lambda: None) -> bytes:
        """Next line, without its line end. The callback `check` is called periodically while waiting.

        Raises:
            NoLineError: there is no line; `check` may also raise.
        """
        deadline = time.monotonic() + timeout_s
        next_check = time.monotonic() + _CHECK_S
        while (end := self._unread.find(b"\n", 0, self._max_line + 1)) < 0:
            if len(self._unread) > self._max_line:
                raise NoLineError(f"gave a result of more than {self._max_line} bytes")
            left = deadline - time.monotonic()
            if left <= 0:
                raise NoLineError(f"gave no result in {timeout_s:g} s")
            self._exchange(min(left, _CHECK_S))
            if time.monotonic() > next_check:
                check()
                next_check = time.monotonic() + _CHECK_S
        found = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return found

    def _exchange(self, timeout_s: float) -> None:
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        if self._unsent:
            poll.register(self._in, select.POLLOUT)
        events = dict(poll.poll(timeout_s * 1000))
        if self._out in events:
            got = os.read(self._out, _CHUNK)
            if not got:
                raise NoLineError("")
            self._unread += got
        if self._in in events and self._unsent:
            try:
                del self._unsent[: os.write(self._in, self._unsent[:_CHUNK])]
            except BlockingIOError:
                return
            except OSError:  # it closed its end; what it has answered is still to be read
                self._unsent.clear()
