"""Tables of a comparison: scores per task and pooled, with the uncertainty due to seeds.

The unit is the (task, seed) pair. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Scores: TypeAlias = Mapping[str, Mapping[str, Sequence[float]]]
"""Method -> task -> test accuracy of each seed, in the plan's order of seeds."""


@dataclass(frozen=True, kw_only=True)
class MethodLine:
    """One method over all tasks."""

    method: str
    mean: float
    """Mean over tasks of the mean over seeds."""
    interval: tuple[float, float] | None
    """95 % confidence interval from a bootstrap over the seeds within each task. None if a task has only one
    seed."""
    rank: float
    """Mean rank over (task, seed) pairs. 1 is the best; ties share a rank."""
    difference: float
    """Mean paired difference from the first method."""
    difference_error: float | None
    """Standard error of `difference` over pairs within tasks. None if a task has only one seed."""
    improvement: float
    """Probability that a run beats a run of the first method on the same task. Ties count half."""
    losses: int
    """Number of (task, seed) pairs in which it scores below the first method."""
    pairs: int


def lines(scores: Scores) -> list[MethodLine]:
    """One line for each method, in the given order. The others are compared with the first one."""
    from scipy.stats import rankdata

    methods, reference = list(scores), scores[next(iter(scores))]
    tasks = list(reference)
    table = np.array([[value for task in tasks for value in scores[one][task]] for one in methods])
    ranks = rankdata(-table, axis=0).mean(axis=1)
    found = []
    for number, method in enumerate(methods):
        own = scores[method]
        samples = [np.asarray(own[task], dtype=float) for task in tasks]
        pairs = [np.asarray(own[task]) - np.asarray(reference[task]) for task in tasks]
        found.append(
            MethodLine(
                method=method,
                mean=float(np.mean([sample.mean() for sample in samples])),
                interval=_interval(samples),
                rank=float(ranks[number]),
                difference=float(np.mean([pair.mean() for pair in pairs])),
                difference_error=_error(pairs),
                improvement=float(np.mean([_wins(own[task], reference[task]) for task in tasks])),
                losses=int(sum((pair < 0).sum() for pair in pairs)),
                pairs=sum(len(pair) for pair in pairs),
            )
        )
    return found


def _interval(samples: Sequence[Any]) -> tuple[float, float] | None:
    """Bootstrap interval, stratified by task: each task's seeds are resampled separately."""
    from scipy.stats import bootstrap

    if any(len(sample) < 2 for sample in samples):
        return None
    if all(np.ptp(sample) == 0 for sample in samples):
        mean = float(np.mean([sample.mean() for sample in samples]))
        return mean, mean

    def mean_of_means(*drawn: Any, axis: int = -1) -> Any:
        return np.mean([one.mean(axis=axis) for one in drawn], axis=0)

    found = bootstrap(
        samples, mean_of_means, n_resamples=4000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    return float(found.low), float(found.high)


def _error(pairs: Sequence[Any]) -> float | None:
    if any(len(pair) < 2 for pair in pairs):
        return None
    return float(np.sqrt(sum(pair.var(ddof=1) / len(pair) for pair in pairs)) / len(pairs))


def _wins(own: Sequence[float], other: Sequence[float]) -> float:
    a, b = np.asarray(own)[:, None], np.asarray(other)[None, :]
    return float(((a > b) + 0.5 * (a == b)).mean())
