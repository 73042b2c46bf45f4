"""Highest validation that a running phase may still reach, and the run noise of a task's validations.

The outlook is a line through the phase's validations, extended to its last step. The error of the line and
that of a single validation come from the noise measured in this search, so a phase with few validations, or
on a task whose validations swing, is given more room.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import TypeAlias

from llmzero_ray.dynamics.features import fit
from llmzero_ray.records.metrics import Series
from llmzero_ray.records.significance import CLEAR, NOISE

Points: TypeAlias = Sequence[tuple[int, float]]
"""(step, validation score), by step."""


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Line through a phase's validations, extended to its last step."""

    level: float
    """Value of the line at the last validation; after a fall, the better of the last two scores."""
    pace: float
    """Gain per step, at least 0: a fall may turn."""
    steps_left: int
    noise: float
    """Run noise (`run_noise`)."""
    slack: float
    """Room above the line at the last step: `NOISE` standard deviations of a validation, and `CLEAR` standard
    errors of the line's gain."""

    @property
    def peak(self) -> float:
        """Highest validation that may still come."""
        return self.level + self.pace * self.steps_left + self.slack


def outlook(points: Points, n_steps: int, noise: float) -> Outlook:
    """Outlook of a phase of `n_steps` steps with two validations or more, its start included."""
    steps, scores = zip(*points, strict=True)
    pace = max(0.0, fit(Series("validation", steps, scores)).slope)
    left = n_steps - steps[-1]
    spread = math.sqrt(len(steps) * pvariance(steps))
    line = fmean(scores) + pace * (steps[-1] - fmean(steps))
    return Outlook(
        level=min(line, max(scores[-2:])),
        pace=pace,
        steps_left=left,
        noise=noise,
        slack=noise * math.hypot(NOISE, CLEAR * left / spread),
    )


def run_noise(curves: Iterable[Points], item_error: float) -> float:
    """Standard deviation of a validation from one step to another, as it is seen in `curves`.

    Each validation is compared with the straight line between its two neighbours. The error from the items
    alone, `item_error`, counts as one more such distance. It is the least noise, and all of it if no curve
    has three validations.
    """
    squares = [item_error**2]
    for points in curves:
        for before, here, after in zip(points, points[1:], points[2:], strict=False):
            share = (here[0] - before[0]) / (after[0] - before[0])
            distance = here[1] - (1 - share) * before[1] - share * after[1]
            squares.append(distance**2 / (1 + (1 - share) ** 2 + share**2))
    return max(item_error, math.sqrt(fmean(squares)))
