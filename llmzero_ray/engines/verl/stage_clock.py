"""Clock of a phase's current stage. One thread sets it, others read it."""

from __future__ import annotations

import statistics
import threading
import time

from llmzero_ray.engines.base import Stage


class StageClock:
    """The current stage, and the durations of ended stages until `reset`.

    Times are from `time.monotonic`, which all processes of one machine share.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: tuple[str, float] | None = None
        self._progressed = 0.0
        self._ended: dict[str, list[float]] = {}

    def reset(self) -> None:
        """Clear all durations for a new phase."""
        with self._lock:
            self._current, self._ended = None, {}

    def enter(self, name: str, at: float | None = None) -> None:
        """Begin stage `name` at `at` (now if None). The previous stage ends."""
        now = time.monotonic() if at is None else at
        with self._lock:
            self._end(now)
            self._current = (name, now)

    def progress(self, at: float | None = None) -> None:
        """Record progress of the current stage at `at` (now if None)."""
        with self._lock:
            self._progressed = time.monotonic() if at is None else at

    def idle(self) -> None:
        """Record that no stage is running."""
        with self._lock:
            self._end(time.monotonic())
            self._current = None

    def read(self) -> Stage | None:
        """The current stage, or None if idle."""
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
