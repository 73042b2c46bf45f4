"""Effects of phases on the score: gains with their errors, and the attempts of a search.

All validations of a search use the same rows, so a phase is compared with its own start row by row. Two
sources of error remain: the choice of rows, and the variation between runs of the same phase.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from llmzero_ray.hyperparameters.verl_keys import LR
from llmzero_ray.records import Hyperparameters, ResumeFrom
from llmzero_ray.records.agents import NodeView, ProposalRequest
from llmzero_ray.records.metrics import Curves, accuracy_error

RUN_ERROR = 0.03
"""Standard deviation of a score between runs of one configuration, at a score of one half. Small real runs
differed by .03 to .05. The deviation shrinks towards scores of 0 and 1."""
CLEAR = 2.0
"""Number of standard errors from which a change counts."""

DESTROYED = 0.5
"""Share of the base model's accuracy that a phase must lose to count as destroyed."""


@dataclass(frozen=True, kw_only=True)
class ScoreGain:
    """A change in score."""

    value: float
    rows_error: float
    """Standard error over the rows, paired if outcomes were stored."""
    runs_error: float
    """Standard deviation between runs of the same phase."""

    @property
    def error(self) -> float:
        """Combined error of rows and runs, for statements about settings."""
        return math.hypot(self.rows_error, self.runs_error)

    @property
    def z(self) -> float:
        """Change in units of the combined error."""
        return self.value / self.error if self.error > 0 else 0.0

    @property
    def fell(self) -> bool:
        """Whether the score fell by at least `CLEAR` times the rows' error and by at least the combined
        error."""
        return self.value <= -max(CLEAR * self.rows_error, self.error)

    @property
    def rose(self) -> bool:
        """Whether the score rose, by the same criterion."""
        return self.value >= max(CLEAR * self.rows_error, self.error)

    def __str__(self) -> str:
        return f"{self.value:+.3f} ± {self.error:.3f}"


def runs_error(score: float) -> float:
    """Standard deviation between runs of one configuration at this score."""
    p = min(max(score, 0.0), 1.0)
    return RUN_ERROR * 2 * math.sqrt(p * (1 - p))


def gains(curves: Curves, n_val: int) -> tuple[ScoreGain, ...]:
    """Gain of each validation over the phase's start. Empty if the start has no score.

    If outcomes were not stored row by row, the rows' error is the standard error of one score, because about
    half of the variance of the two cancels on the same rows.
    """
    start = curves.start_score
    if start is None or not math.isfinite(start):
        return ()
    stored: Sequence[tuple[float, float] | None] = curves.val_gains or (None,) * len(curves.val_scores)
    found = []
    for score, pair in zip(curves.val_scores, stored, strict=True):
        if not math.isfinite(score):
            continue
        value, error = pair or (score - start, accuracy_error(score, n_val))
        runs = runs_error((score + start) / 2)
        found.append(ScoreGain(value=value, rows_error=max(error, 0.5 / n_val), runs_error=runs))
    return tuple(found)


def outcome(curves: Curves, n_val: int) -> ScoreGain | None:
    """Gain of a phase: the mean gain of the later half of its validations. None if there is no gain.

    The best validation would favour phases that fluctuate, and the last one alone is noisier.
    """
    found = gains(curves, n_val)
    late = found[len(found) // 2 :]
    if not late:
        return None
    return ScoreGain(
        value=fmean(gain.value for gain in late),
        rows_error=fmean(gain.rows_error for gain in late),
        runs_error=fmean(gain.runs_error for gain in late),
    )


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One phase as an attempt to improve on its start."""

    node: int
    source: ResumeFrom | None
    """Checkpoint from which it started, or None for the base model."""
    base: Hyperparameters
    """Configuration that trained that checkpoint, or the root's for the base model."""
    full: Hyperparameters
    gain: ScoreGain | None
    """Gain of the phase. None while it runs, or without a validation."""
    failed: bool
    """Whether training itself failed, with a value that was not finite."""
    doubted: bool = False
    """Whether its gain is doubtful (`NodeView.doubts`)."""
    status: str = "completed"
    """Same as `NodeView.status`."""


def attempts(request: ProposalRequest, n_val: int) -> tuple[Attempt, ...]:
    """Attempts of all phases that have a configuration, by node number. The root is an attempt from the base
    model."""
    known = known_nodes(request)
    found = []
    for view in known.values():
        if not view.hyperparameters:
            continue
        source = view.resume_from
        parent = None if source is None else known.get(source.node)
        if source is not None and parent is None:
            continue
        found.append(
            Attempt(
                node=view.node,
                source=source,
                base=request.default if parent is None else parent.hyperparameters,
                full=view.hyperparameters,
                gain=None if view.status in ("pending", "running") else outcome(view.curves, n_val),
                doubted=bool(view.doubts),
                failed=view.failure is not None and view.failure.failure_class == "nan",
                status=view.status,
            )
        )
    return tuple(found)


def known_nodes(request: ProposalRequest) -> dict[int, NodeView]:
    """Node number -> view, for all nodes in the request."""
    best = () if request.best is None else (request.best,)
    shown: Iterable[NodeView] = (*request.tree, *best, *request.siblings, *request.path, request.on)
    return {view.node: view for view in sorted(shown, key=lambda view: view.node)}


def losing_rates(request: ProposalRequest, n_val: int) -> dict[float, bool]:
    """Learning rate at which a phase from the base model clearly lost accuracy -> whether one lost half."""
    found: dict[float, bool] = {}
    for view in known_nodes(request).values():
        start, scores, rate = view.curves.start_score, view.curves.val_scores, view.hyperparameters.get(LR)
        if view.resume_from is not None or not start or not scores or not isinstance(rate, float):
            continue
        gain = outcome(view.curves, n_val)
        destroyed = max(scores) <= (1.0 - DESTROYED) * start
        if destroyed or (gain is not None and gain.fell):
            found[rate] = found.get(rate, False) or destroyed
    return found


def lowest_losing_raise(known: Iterable[Attempt]) -> float | None:
    """Lowest learning rate to which a phase raised it and lost accuracy, or None if no phase did."""
    lost = []
    for attempt in known:
        old, new = attempt.base.get(LR), attempt.full.get(LR)
        if not isinstance(old, float) or not isinstance(new, float) or new <= old:
            continue
        if attempt.failed or (attempt.gain is not None and attempt.gain.fell):
            lost.append(new)
    return min(lost, default=None)


def went_on(view: NodeView, step: int, n_val: int) -> ScoreGain | None:
    """Gain of a phase after `step`, which shows what training on from there without a change gives.

    None unless there are a validation at the step and one after it.
    """
    points = dict(zip(view.curves.val_steps, view.curves.val_scores, strict=True))
    later = [score for at, score in points.items() if at > step]
    if step not in points or not later:
        return None
    value, before = fmean(later), points[step]
    return ScoreGain(
        value=value - before,
        rows_error=accuracy_error(value, n_val),
        runs_error=runs_error((value + before) / 2),
    )
