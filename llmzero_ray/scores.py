"""A mean accuracy with the standard error that the choice of items gives it.

Not here: averages over a task's parts (tasks/aggregate.py), differences (report/noise.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True, kw_only=True)
class Score:
    """A mean over items, or over the means of parts with `n` items in all."""

    mean: float
    standard_error: float | None
    """Of the mean; None where a single item, or nothing, tells of the spread."""
    n: int | None
    """Items; None when their number is not known."""


def mean_score(accs: Sequence[float]) -> Score:
    """Mean of one item or more; its standard error is the deviation of the sample over the root of n."""
    n = len(accs)
    return Score(mean=fmean(accs), standard_error=standard_error(accs) if n > 1 else None, n=n)


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of two values or more."""
    return stdev(values) / math.sqrt(len(values))
