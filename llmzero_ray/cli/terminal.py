"""Follow a running search and show it: a redrawn tree on a terminal, otherwise one line per event."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live

from llmzero_ray.cli.event_text import event_line
from llmzero_ray.cli.interrupts import Interrupts
from llmzero_ray.cli.output import print_line, print_lines
from llmzero_ray.cli.view import base_score, live_view, outcome_lines, progress_lines
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.dynamics.incumbent import base_problem
from llmzero_ray.launch.start import LOOK_S, raise_if_broken

_QUIET_S = 60.0
"""Maximum seconds without a line while a phase trains, without a terminal."""
INTERRUPTED = 130


def watch(follower: Follower, console: Console, *, ended: Callable[[], bool], ends_with_command: bool) -> int:
    """Follow a search to its end, and return the exit code. The callback `ended` returns True once no more
    events will come, or raises the reason. `ends_with_command` says whether the search needs this process.

    Raises:
        LlmzeroError: the search was aborted, or its coordinator could not continue.
    """
    display = Display(follower, console)
    interrupts = Interrupts(follower, console, ends_with_command=ends_with_command)
    while True:
        try:
            with display:
                while not ended():
                    display.show()
                    time.sleep(LOOK_S)
                display.show()
            return _result(follower, console)
        except KeyboardInterrupt as interrupt:
            if not interrupts.handle(interrupt):
                return INTERRUPTED


def _result(follower: Follower, console: Console) -> int:
    core = follower.core
    if core.finished is not None:
        print_lines(console, outcome_lines(follower))
        return 0 if core.finished.best is not None else 1
    raise_if_broken(follower)
    assert core.interrupted is not None
    why = f" ({core.interrupted[0]})" if core.interrupted[0] else ""
    print_line(console, f"paused{why}; the same command continues it")
    return INTERRUPTED


class Display:
    """Display of a search: a redrawn tree on a terminal, otherwise one line per event."""

    def __init__(self, follower: Follower, console: Console) -> None:
        self._follower, self._console = follower, console
        self._n_shown, self._quiet_since = 0, time.monotonic()
        self._live: Live | None = None
        self._base: float | None = None

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self) -> None:
        """Read new events and show them."""
        self._follower.poll()
        if self._live is not None:
            self._live.update(live_view(self._follower, now=time.time()), refresh=True)
            return
        now = time.monotonic()
        for event in self._follower.events[self._n_shown :]:
            line = event_line(self._follower.core, event)
            if line is not None:
                self._print(event.time, line)
                self._quiet_since = now
        if self._base is None:
            self._base = base_score(self._follower)
            if problem := base_problem(self._base):
                self._print(time.time(), problem)
        if now - self._quiet_since > _QUIET_S:
            self._quiet_since = now
            for line in progress_lines(self._follower):
                self._print(time.time(), line)
        self._n_shown = len(self._follower.events)

    def _print(self, at: float, line: str) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(at))
        print_line(self._console, f"{clock} {line}")
