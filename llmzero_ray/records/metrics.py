"""Metrics that phases report: VeRL's names, series over steps, and scores with standard errors.

Not here: their files (metric_files.py), their interpretation (dynamics/features.py, stopping/), differences
between scores (significance.py).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev

from llmzero_ray.errors import NonFiniteError
from llmzero_ray.records import MetricPoint, as_number, from_json, to_json

# Names as VeRL logs them, one value per training step.
REWARDS = ("critic/score/mean", "critic/rewards/mean")
"""Mean reward of a step's rollouts, without and with a KL penalty. The first one that was logged is used."""
REWARD_MIN, REWARD_MAX = "critic/score/min", "critic/score/max"
"""Lowest and highest reward of an answer among a step's rollouts, without a KL penalty."""
MIXED_GROUPS = "critic/score/mixed_groups"
"""Share of a step's groups whose answers have different scores. Other groups give no gradient."""
BEST_OF_N = "critic/score/best@n"
"""Mean over a step's prompts of the best score among their n answers: pass@n if scores are 0 or 1."""
KL = "actor/kl_loss"
PPO_KL = "actor/ppo_kl"
ENTROPY = "actor/entropy"
GRAD_NORM = "actor/grad_norm"
CLIPFRAC = "actor/pg_clipfrac"
LENGTH = "response_length/mean"
PROMPT_LENGTH = "prompt_length/mean"
LENGTH_MAX = "response_length/max"
LENGTH_AT_MAX = "response_length/clip_ratio"
ADVANTAGE_MAX = "critic/advantages/max"
ADVANTAGE_MIN = "critic/advantages/min"
LEARNING_RATE = "actor/lr"
LOSS = "actor/loss"
PG_LOSS = "actor/pg_loss"
ADVANTAGE_MEAN = "critic/advantages/mean"
KLS = (KL, PPO_KL)
STEP_TIME = "timing_s/step"
TESTING_TIME = "timing_s/testing"
EPOCH = "training/epoch"
GLOBAL_STEP = "training/global_step"
MEMORY_RESERVED = "actor/perf/max_memory_reserved_gb"
MEMORY_ALLOCATED = "actor/perf/max_memory_allocated_gb"
MEMORY_HOST = "actor/perf/cpu_memory_used_gb"
VAL_CORE, VAL_AUX = "val-core/", "val-aux/"
"""Prefixes of the metrics that validations report."""
VAL_TOKENS = "val-aux/response_tokens"
"""Total tokens of all answers of a validation."""
MERGE_ROUNDING = "merge/rounding"
"""Share of the adapter's change lost to rounding in merged weights that were sent to vLLM."""

# --- series over the steps of a phase -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Per-step metrics of one phase. `steps` (inside the phase) and every series have the same length; None
    marks a step that did not log the metric."""

    steps: tuple[int, ...] = ()
    base_step: int = 0
    metrics: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    val_steps: tuple[int, ...] = ()
    """Steps that were validated, except step 0 (the continuity check)."""
    val_scores: tuple[float, ...] = ()
    start_score: float | None = None
    val_gains: tuple[tuple[float, float] | None, ...] = ()
    """For each validation, (mean difference to step 0 over the same rows, its standard error over the rows),
    or None if outcomes were not stored row by row. Empty if not computed."""

    def selected(self, names: Iterable[str] = ()) -> Curves:
        """Curves with all validations, but only the training series in `names`."""
        kept = {name: self.metrics[name] for name in names if name in self.metrics}
        return replace(self, steps=self.steps if kept else (), metrics=kept)

    def until(self, step: int) -> Curves:
        """Curves up to and including `step`."""
        n, n_val = (bisect_right(steps, step) for steps in (self.steps, self.val_steps))
        return replace(
            self,
            steps=self.steps[:n],
            metrics={name: values[:n] for name, values in self.metrics.items()},
            val_steps=self.val_steps[:n_val],
            val_scores=self.val_scores[:n_val],
            val_gains=self.val_gains[:n_val],
        )


class CurveBuilder:
    """Curves of one attempt at a phase, built point by point in increasing steps.

    Every series has one value per step, or None if the step did not log it. Series are in the order in which
    they were first logged. Validation at step 0 is the continuity check and becomes `start_score`, never a
    validation score.
    """

    def __init__(self) -> None:
        self.n_points = 0
        """Number of points added, including the continuity check at step 0."""
        self._base_step = 0
        self._start_score: float | None = None
        self._steps: list[int] = []
        self._series: dict[str, list[float | None]] = {}
        self._val_steps: list[int] = []
        self._val_scores: list[float] = []

    def add(self, point: MetricPoint) -> None:
        """Append one point."""
        if not self.n_points:
            self._base_step = point.global_step - point.step
        self.n_points += 1
        if point.step <= 0:
            if self._start_score is None:
                self._start_score = point.val_score
            return
        for name, values in self._series.items():
            values.append(point.metrics.get(name))
        for name, value in point.metrics.items():
            if name not in self._series:
                self._series[name] = [None] * len(self._steps) + [value]
        self._steps.append(point.step)
        if point.val_score is not None:
            self._val_steps.append(point.step)
            self._val_scores.append(point.val_score)

    def build(self, names: Iterable[str] | None = None) -> Curves:
        """Curves so far, with only the metrics in `names` (default: all that were logged)."""
        wanted = self._series if names is None else [name for name in names if name in self._series]
        return Curves(
            steps=tuple(self._steps),
            base_step=self._base_step,
            metrics={name: tuple(self._series[name]) for name in wanted},
            val_steps=tuple(self._val_steps),
            val_scores=tuple(self._val_scores),
            start_score=self._start_score,
        )


def curves_of(points: Iterable[MetricPoint]) -> Curves:
    """Curves of the points of one attempt, which must be in increasing steps (`CurveBuilder`)."""
    builder = CurveBuilder()
    for point in points:
        builder.add(point)
    return builder.build()


def checked_point(point: MetricPoint) -> MetricPoint:
    """An engine's point with its numbers converted to Python's.

    Raises:
        TypeError: a metric or the validation score is not a number.
        NonFiniteError: the validation score is NaN or infinite.
    """
    given = {**point.metrics, "val_score": 0.0 if point.val_score is None else point.val_score}
    if wrong := [name for name, value in given.items() if as_number(value) is None]:
        raise TypeError(f"step {point.step} reports metrics that are not numbers: {', '.join(wrong)}")
    found: MetricPoint = from_json(to_json(point))
    score = found.val_score
    if score is not None and not math.isfinite(score):
        raise NonFiniteError(f"step {point.step}: the validation score is {score}")
    return found


@dataclass(frozen=True)
class Series:
    """The finite values of one metric with their steps, in order."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.values)

    def since(self, step: int) -> Series:
        """Part from `step` on."""
        return self._where([s >= step for s in self.steps])

    def until(self, step: int) -> Series:
        """Part up to and including `step`."""
        return self._where([s <= step for s in self.steps])

    def _where(self, keep: Sequence[bool]) -> Series:
        pairs = [(s, v) for s, v, k in zip(self.steps, self.values, keep, strict=True) if k]
        return Series(self.name, tuple(s for s, _ in pairs), tuple(v for _, v in pairs))

    @property
    def window(self) -> int:
        """Number of points in `first` and `last`: a fifth of the series, but 2 to 10, and never more than
        there are."""
        return min(len(self), max(2, min(10, len(self) // 5)))

    @property
    def first(self) -> float:
        """Mean of the first `window` points. NaN if empty."""
        return fmean(self.values[: self.window]) if self.values else math.nan

    @property
    def last(self) -> float:
        """Mean of the last `window` points. NaN if empty."""
        return fmean(self.values[-self.window :]) if self.values else math.nan

    def smooth(self) -> Series:
        """Moving average over 3 points, each at the step of its last point. Unchanged if there are fewer."""
        if len(self) < 3:
            return self
        means = tuple(fmean(self.values[i - 2 : i + 1]) for i in range(2, len(self)))
        return Series(self.name, self.steps[2:], means)


def series(curves: Curves, name: str) -> Series:
    """Finite values of a metric. Empty if it was never logged."""
    values = curves.metrics.get(name, ())
    pairs = [(s, v) for s, v in zip(curves.steps, values, strict=False) if v is not None and math.isfinite(v)]
    return Series(name, tuple(s for s, _ in pairs), tuple(v for _, v in pairs))


def validations(points: Iterable[MetricPoint]) -> dict[int, float]:
    """Step -> validation score of a phase so far, without step 0."""
    return {p.step: p.val_score for p in points if p.step > 0 and p.val_score is not None}


def best_validation(scores: Mapping[int, float]) -> tuple[int, float] | None:
    """(step, score) of the best validation after step 0, the earliest one on ties. None if there is none."""
    best = max((step for step in scores if step > 0), key=lambda step: (scores[step], -step), default=None)
    return None if best is None else (best, scores[best])


# --- scores -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Score:
    """A mean over items, or over the means of parts with `n` items in total."""

    mean: float
    standard_error: float | None
    """Standard error of the mean. None for fewer than two items, or if not known."""
    n: int | None
    """Number of items. None if not known."""


def mean_score(accs: Sequence[float]) -> Score:
    """Mean over one or more items, with the sample's standard deviation over sqrt(n) as standard error."""
    n = len(accs)
    return Score(mean=fmean(accs), standard_error=standard_error(accs) if n > 1 else None, n=n)


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean of two or more values."""
    return stdev(values) / math.sqrt(len(values))


def score_without_items(mean: float, n: int | None) -> Score:
    """Score whose items were not kept. The standard error assumes right-or-wrong answers:
    sqrt(p (1 - p) / n)."""
    if n is None or n < 1:
        return Score(mean=mean, standard_error=None, n=None)
    p = min(max(mean, 0.0), 1.0)
    return Score(mean=mean, standard_error=math.sqrt(p * (1 - p) / n), n=n)


def accuracy_error(score: float, n_items: int) -> float:
    """Standard error of a mean of `n_items` right-or-wrong answers. Means of 0 and 1 get the error of a mean
    that is one item away, or that of 0.5 with one item."""
    away = min(1 / n_items, 0.5)
    p = min(max(score, away), 1 - away)
    return math.sqrt(p * (1 - p) / n_items)


def macro_mean(scores: Sequence[Score]) -> Score | None:
    """Mean of independent scores with equal weights, with a standard error if all have one. None if `scores`
    is empty."""
    if not scores:
        return None
    errors = [score.standard_error for score in scores if score.standard_error is not None]
    known = len(errors) == len(scores)
    return Score(
        mean=fmean(score.mean for score in scores),
        standard_error=math.hypot(*errors) / len(scores) if known else None,
        n=sum(score.n or 0 for score in scores),
    )
