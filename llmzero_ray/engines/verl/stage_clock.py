"""What a phase is doing and since when: a clock that one thread sets and others read.

Not here: where stages begin and what is progress (trainer.py), what is too long (actors/monitor.py).
"""

from __future__ import annotations

import statistics
import threading
import time

from llmzero_ray.engines.base import Stage


class StageClock:
    """The current stage and the durations of those that have ended, per stage; `reset` forgets them.

    Times are those of `time.monotonic`, which all processes of one machine share.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: tuple[str, float] | None = None
        self._progressed = 0.0
        self._ended: dict[str, list[float]] = {}

    def reset(self) -> None:
        """A new phase: no durations are known."""
        with self._lock:
            self._current, self._ended = None, {}

    def enter(self, name: str, at: float | None = None) -> None:
        """Stage `name` began at `at` (None: now); the one before it has ended then."""
        now = time.monotonic() if at is None else at
        with self._lock:
            self._end(now)
            self._current = (name, now)

    def progress(self, at: float | None = None) -> None:
        """The current stage finished a part of its work at `at` (None: now)."""
        with self._lock:
            self._progressed = time.monotonic() if at is None else at

    def idle(self) -> None:
        """Nothing is going on any more."""
        with self._lock:
            self._end(time.monotonic())
            self._current = None

    def read(self) -> Stage | None:
        """The current stage; None when idle."""
        with self._lock:
            if self._current is None:
                return None
            name, began = self._current
            ended, now = self._ended.get(name), time.monotonic()
            return Stage(
                name=name,
                since_s=max(0.0, now - began),
                usual_s=statistics.median(ended) if ended else None,
                quiet_s=max(0.0, now - max(began, self._progressed)),
            )

    def _end(self, now: float) -> None:
        if self._current is not None:
            name, began = self._current
            self._ended.setdefault(name, []).append(max(0.0, now - began))
