"""In-memory buffer of the metric points of the phase that a runner trains.

The training thread publishes and other threads read. A reader keeps its own cursor, the number of points it
has received. It may restart at 0 at any time.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import TypeAlias

from llmzero_ray.records import MetricPoint
from llmzero_ray.records.metrics import KL, REWARDS

PhaseKey: TypeAlias = tuple[int, int]
"""(node, attempt)."""
MAX_POINTS = 256
"""Maximum points in one reply to a reader: below 1 MB with the 90 metrics that VeRL logs per step."""


class MetricBuffer:
    """Points of the newest phase of one slot, in step order."""

    def __init__(self) -> None:
        self.current: PhaseKey | None = None
        """The phase that is training, or None between phases."""
        self.newest: Mapping[str, float] = {}
        """Its newest `step` (global), `reward`, `kl` and `val_score`. Values not logged yet are missing."""
        self._changed = threading.Condition()
        self._key: PhaseKey | None = None
        self._points: list[MetricPoint] = []
        self._urgent = False

    @property
    def last_step(self) -> int | None:
        """Newest step of the phase that is training, or None before its first point."""
        return self._points[-1].step if self.current is not None and self._points else None

    def begin(self, key: PhaseKey) -> None:
        """Start a phase and drop the points of the previous one."""
        with self._changed:
            self.current = self._key = key
            self._points, self._urgent = [], False
            self.newest = {}

    def publish(self, point: MetricPoint) -> None:
        """Append a point and wake readers."""
        with self._changed:
            before = self._points[-1] if self._points else None
            self._points.append(point)
            self.newest = {**self.newest, **_shown(point)}
            # The first non-finite value may end the phase; later ones add no information.
            self._urgent |= not _is_finite(point) and (before is None or _is_finite(before))
            self._changed.notify_all()

    def end(self) -> None:
        """End the phase. Its points stay readable until the next one begins."""
        with self._changed:
            self.current = None
            self._changed.notify_all()

    def poll(
        self, key: PhaseKey, cursor: int, wait_s: float, gather_s: float
    ) -> tuple[tuple[MetricPoint, ...], bool]:
        """Points of a phase from index `cursor` on, at most `MAX_POINTS`, and whether no more will come.

        Waits up to `wait_s` seconds for the first new point, then `gather_s` seconds for more. The end of the
        phase and a first non-finite value end the waiting.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_over(key) or self._n_points(key) > cursor, wait_s)
            self._changed.wait_for(lambda: self._is_over(key) or self._urgent, gather_s)
            self._urgent = False
            known = self._points if key == self._key else []
            points = tuple(known[cursor : cursor + MAX_POINTS])
            return points, self._is_over(key) and cursor + len(points) >= len(known)

    def _n_points(self, key: PhaseKey) -> int:
        return len(self._points) if key == self._key else 0

    def _is_over(self, key: PhaseKey) -> bool:
        """Whether no more points of that phase will come. Also true once a later phase has begun."""
        return key != self.current if key == self._key else self.current is not None


def _shown(point: MetricPoint) -> dict[str, float]:
    """Values that `MetricBuffer.newest` keeps of a point. The validation at step 0 is not a score of the
    phase."""
    reward = next((point.metrics[name] for name in REWARDS if name in point.metrics), None)
    score = point.val_score if point.step > 0 else None
    found = {
        "step": point.global_step,
        "reward": reward,
        "kl": point.metrics.get(KL),
        "val_score": score,
    }
    return {name: value for name, value in found.items() if value is not None}


def _is_finite(point: MetricPoint) -> bool:
    return math.isfinite(sum(point.metrics.values()))
