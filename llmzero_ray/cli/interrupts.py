"""Handling of Ctrl-C, SIGTERM and SIGHUP while a search is followed.

On a shared cluster the search continues without its command. A private head ends with the command, as do
slots that a comparison holds, so the user is asked what to do; without a terminal the search is paused. A
signal that is ignored when the command starts, such as SIGINT for a script's background job, stays ignored.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from rich.console import Console

from llmzero_ray.cli.output import print_line
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.storage.presence import request
from llmzero_ray.utils.api_key import remove_key_file

_DETACH_S = 5.0
_LEAVE_S = 10.0
_MAX_INTERRUPTS = 3
"""Number of interrupts after which the command exits at once. As after a crash, the same command then
continues the search."""


class Terminated(KeyboardInterrupt):
    """Interrupt by SIGTERM or SIGHUP, after which the user cannot be asked."""


def raise_on_termination(console: Console) -> None:
    """Turn SIGTERM and SIGHUP into `Terminated`. Call it again after Ray's start, which sets a handler."""

    def terminate(number: int, _: FrameType | None) -> NoReturn:
        console.quiet = number == signal.SIGHUP  # there is nothing left to write to
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, terminate)


def leave_in_time(leave: Callable[[], None], code: int) -> None:
    """Leave the cluster, and ignore a further SIGTERM. If the head is dead, Ray waits for it in this call and
    again when the process exits. In that case the process ends with `code` after a few seconds, and a private
    head with it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leaving = threading.Thread(target=leave, name="leave-ray", daemon=True)
    leaving.start()
    leaving.join(_LEAVE_S)
    if leaving.is_alive():
        remove_key_file()  # `_end_at_once` skips the other exit handlers
        atexit.register(_end_at_once, code)  # called first, because registered last


def _end_at_once(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


class Interrupts:
    """Interrupt handler of one command."""

    def __init__(self, follower: Follower, console: Console, *, ends_with_command: bool) -> None:
        self._root, self._name = follower.storage.paths.root, follower.storage.name
        self._console, self._ends_with_command = console, ends_with_command
        self._n_interrupts = 0

    def handle(self, interrupt: KeyboardInterrupt) -> bool:
        """Handle one interrupt. Returns True if the command continues to follow the search."""
        self._n_interrupts += 1
        if self._n_interrupts >= _MAX_INTERRUPTS:
            return False
        try:
            if self._ends_with_command:
                return self._ask_before_it_ends(ask=not isinstance(interrupt, Terminated))
            return self._detach(wait=not isinstance(interrupt, Terminated))
        except KeyboardInterrupt:
            request(self._root, "pause" if self._ends_with_command else "stop", "Ctrl-C twice")
            return True

    def _detach(self, *, wait: bool) -> bool:
        if wait:
            self._print(f"detached: {self._name} continues. Ctrl-C again within {_DETACH_S:.0f} s stops it.")
            time.sleep(_DETACH_S)
        root = shlex.quote(str(self._root))
        self._print(f"llmzero status {root} follows it, llmzero stop {root} ends it")
        return False

    def _ask_before_it_ends(self, *, ask: bool) -> bool:
        answer = "p"
        if ask and sys.stdin.isatty():
            self._print("This search ends with its command.")
            answer = _first_letter("[c]ontinue, [p]ause (the same command continues it), [s]top for good? ")
        if answer == "s":
            request(self._root, "stop", "Ctrl-C")
            self._print("stopping at the next step ...")
        elif answer == "p":
            request(self._root, "pause", "Ctrl-C" if ask else "SIGTERM")
            self._print("pausing ...")
        else:
            self._n_interrupts = 0
        return True

    def _print(self, text: str) -> None:
        print_line(self._console, text)


def _first_letter(question: str) -> str:
    """First letter of the user's choice. An empty answer means continue, the end of input means pause."""
    try:
        return (input(question).strip().lower() or "c")[:1]
    except EOFError:
        return "p"
