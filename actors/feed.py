"""What a runner has to tell of the phase under way, kept for whoever asks.

Written by the thread that trains, read by others. Not here: the points themselves
(llmzero_ray.stopping.stream).
"""

from __future__ import annotations

import threading
from typing import TypeAlias

from llmzero_ray.records import MetricPoint
from llmzero_ray.stopping.stream import PointBatch, PointLog

Key: TypeAlias = tuple[int, int]
"""(node, attempt)."""


class Feed:
    """Points of the newest phase of one slot."""

    def __init__(self) -> None:
        self.current: Key | None = None
        """The phase that trains now."""
        self._changed = threading.Condition()
        self._key: Key | None = None
        self._log = PointLog()

    @property
    def last_step(self) -> int | None:
        """Newest step of the phase that trains now; None before its first point."""
        return self._log.last_step if self.current is not None else None

    def begin(self, key: Key) -> None:
        """A phase begins; what the one before it reported is forgotten."""
        with self._changed:
            self.current = self._key = key
            self._log = PointLog()

    def publish(self, point: MetricPoint) -> None:
        """Let readers have a point."""
        with self._changed:
            self._log.append(point)
            self._changed.notify_all()

    def end(self) -> None:
        """Nothing more will come of the phase; its points stay until the next one begins."""
        with self._changed:
            self.current = None
            self._changed.notify_all()

    def poll(self, key: Key, cursor: int, wait_s: float, gather_s: float) -> tuple[int, PointBatch, bool]:
        """Points from number `cursor` on, the next cursor, and whether that was all; waits a while for news,
        and `gather_s` more for further ones unless the news is urgent."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over(key) or len(self._of(key) or ()) > cursor, wait_s)
            log, over = self._of(key), self._is_over(key)
        if log is not None and not over:
            log.pressing.wait(gather_s)
        with self._changed:
            new = PointBatch() if log is None else log.since(cursor)
            cursor += len(new)
            return cursor, new, self._is_over(key) and (log is None or cursor >= len(log))

    def _of(self, key: Key) -> PointLog | None:
        return self._log if key == self._key else None

    def _is_over(self, key: Key) -> bool:
        """Whether nothing more will come of that phase here; also true when a later one has begun."""
        return key != self.current if key == self._key else self.current is not None
