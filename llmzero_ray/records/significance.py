"""Scores and their differences with standard errors, 95 % intervals and p-values.

Errors and intervals cover only the sampling of items, not the variance between training runs with different
seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

from llmzero_ray.records import ItemOutcome
from llmzero_ray.records.metrics import Score, standard_error

CLEAR = 3.0
"""Number of standard errors from which a difference counts as clear."""
NOISE = 2.0
"""Number of standard errors below which a difference counts as noise."""
CONFIDENCE = 0.95
"""Confidence level of every interval."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Difference between two policies on the same split."""

    gain: float
    standard_error: float
    paired: bool
    """Whether it was computed item by item. If not, the two scores are treated as independent."""
    n: int
    only_new: int | None = None
    """Number of items that only the new policy solves. None if answers are not just right or wrong."""
    only_old: int | None = None

    @property
    def in_standard_errors(self) -> float:
        """Gain in units of its standard error. Infinite if the gain is the same for every item."""
        if self.gain == 0:
            return 0.0
        if self.standard_error == 0:
            return math.copysign(math.inf, self.gain)
        return self.gain / self.standard_error

    @property
    def is_noise(self) -> bool:
        """Whether the sampling of items alone can explain a gain of this size."""
        return abs(self.in_standard_errors) < NOISE

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the gain: Student's t if paired, otherwise normal."""
        from scipy import stats

        z = stats.t.ppf if self.paired else stats.norm.ppf
        arguments = (self.n - 1,) if self.paired else ()
        half = float(z((1 + CONFIDENCE) / 2, *arguments)) * self.standard_error
        return self.gain - half, self.gain + half

    @property
    def p_value(self) -> float | None:
        """p-value of McNemar's exact two-sided test that each policy alone solves equally many items.

        None if answers are not just right or wrong. 1 if no item is solved by only one of the policies.
        """
        if self.only_new is None or self.only_old is None:
            return None
        n = self.only_new + self.only_old
        if n == 0:
            return 1.0
        from scipy import stats

        return float(stats.binomtest(self.only_new, n).pvalue)


@lru_cache(maxsize=4096)  # a page that follows a search computes the same intervals repeatedly
def score_interval(score: Score) -> tuple[float, float] | None:
    """95 % interval of a mean over items, or None without a standard error.

    Wilson's interval for right-or-wrong answers, otherwise a normal one within 0 and 1.
    """
    if score.standard_error is None or score.n is None:
        return None
    from scipy import stats

    n_right = round(score.mean * score.n)
    if math.isclose(n_right / score.n, score.mean, abs_tol=1e-9) and 0 <= n_right <= score.n:
        found = stats.binomtest(n_right, score.n).proportion_ci(CONFIDENCE, method="wilson")
        return float(found.low), float(found.high)
    half = float(stats.norm.ppf((1 + CONFIDENCE) / 2)) * score.standard_error
    return max(0.0, score.mean - half), min(1.0, score.mean + half)


def independent(new: Score, old: Score) -> Difference | None:
    """Difference, treating the scores as independent. None unless both have a standard error and a number of
    items."""
    if new.standard_error is None or old.standard_error is None or new.n is None or old.n is None:
        return None
    error = math.hypot(new.standard_error, old.standard_error)
    return Difference(gain=new.mean - old.mean, standard_error=error, paired=False, n=min(new.n, old.n))


def paired(new: Sequence[ItemOutcome], old: Sequence[ItemOutcome]) -> Difference | None:
    """Difference item by item. None unless both policies answered the same items, at least two."""
    new, old = _by_index(new), _by_index(old)
    if len(new) < 2 or [item.index for item in new] != [item.index for item in old]:
        return None
    pairs = [(a.acc, b.acc) for a, b in zip(new, old, strict=True)]
    gains = [a - b for a, b in pairs]
    right_or_wrong = all(value in (0.0, 1.0) for pair in pairs for value in pair)
    return Difference(
        gain=fmean(gains),
        standard_error=standard_error(gains),
        paired=True,
        n=len(gains),
        only_new=sum(a > b for a, b in pairs) if right_or_wrong else None,
        only_old=sum(a < b for a, b in pairs) if right_or_wrong else None,
    )


def _by_index(items: Sequence[ItemOutcome]) -> list[ItemOutcome]:
    return sorted(items, key=lambda item: item.index)
