"""Start and length of a phase, and the resulting passes over the data.

The choice depends on the finding. A healthy run continues from its last step; a run that went wrong, from a
checkpoint before that. If a run learnt nothing, the next one starts from the base model. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmzero_ray.dynamics.diagnosis import Finding, Kind
from llmzero_ray.hyperparameters.verl_keys import TRAIN_BATCH
from llmzero_ray.records import Hyperparameters, ResumeFrom
from llmzero_ray.records.agents import NodeView, OfferedCheckpoint, TaskView
from llmzero_ray.records.metrics import accuracy_error

_GO_ON: tuple[Kind, ...] = (
    "hardly_moves",
    "take_off",
    "warming_up",
    "improving",
    "slow",
    "steady",
    "raised",
    "converging",
    "truncated",
    "unknown",
)
"""Findings after which the last step is at least as good a start as the best-scored one."""
_STEP_BACK: tuple[Kind, ...] = ("collapse", "kl_spike", "entropy_collapse", "entropy_climb")
"""Findings that make later checkpoints unreliable, whatever their score."""
_DECLINED: tuple[Kind, ...] = ("too_conservative", "too_aggressive", "too_fast", "regressed", "declining")
"""Findings after which the phase's own start is better than anything it reached."""
_NOTHING_LEARNT: tuple[Kind, ...] = (
    "dead",
    "collapse",
    "no_reward",
    "entropy_collapse",
    "entropy_climb",
    "never_ends",
)
"""Findings after which a chain without any gain is not worth continuing."""
_LONGER: tuple[Kind, ...] = ("take_off", "warming_up", "improving", "raised")


@dataclass(frozen=True, kw_only=True)
class StartPoint:
    """Start of a phase, with the reason."""

    checkpoint: OfferedCheckpoint | None
    """Checkpoint to resume, or None for the base model."""
    reason: str

    @property
    def resume_from(self) -> ResumeFrom | None:
        """The start for a proposal."""
        return None if self.checkpoint is None else self.checkpoint.resume_from

    @property
    def global_step(self) -> int:
        """Training steps before this start."""
        return 0 if self.checkpoint is None else self.checkpoint.global_step


def choose_start(
    finding: Finding,
    on: NodeView,
    path: Sequence[NodeView],
    offered: Sequence[OfferedCheckpoint],
    *,
    n_val: int,
) -> StartPoint:
    """Start for a finding, among the offered checkpoints."""
    if not offered:
        return StartPoint(checkpoint=None, reason="no checkpoint is offered: from the base model")
    if finding.kind == "doubtful":
        return _before_doubt(on, path, offered)
    best = best_scored(offered)
    margin = 1.5 * accuracy_error(best.val_score or 0.0, n_val)
    if finding.kind in _NOTHING_LEARNT and not _learnt(path, best, margin):
        return StartPoint(checkpoint=None, reason="nothing on this path beats the base model: from scratch")
    if finding.kind in _DECLINED:
        return _before_decline(on, offered, best)
    if finding.kind in _STEP_BACK and finding.since is not None:
        return _before_trouble(finding.since, on, offered)
    last = max((c for c in offered if c.node == on.node), key=lambda c: c.step, default=None)
    if last is not None and finding.kind in _GO_ON and _as_good(last, best, margin):
        return StartPoint(checkpoint=last, reason=f"its last step {_score(last)}, no worse than the best")
    return StartPoint(checkpoint=best, reason=f"the best step of the path {_score(best)}")


def best_scored(offered: Iterable[OfferedCheckpoint]) -> OfferedCheckpoint:
    """Checkpoint with the best validation score (the later one in a tie), or the last one if none has a
    score."""
    return max(offered, key=lambda c: (-math.inf if c.val_score is None else c.val_score, c.global_step))


def _as_good(last: OfferedCheckpoint, best: OfferedCheckpoint, margin: float) -> bool:
    return last.val_score is None or (best.val_score or 0.0) - last.val_score <= margin


def _learnt(path: Sequence[NodeView], best: OfferedCheckpoint, margin: float) -> bool:
    """Whether the best checkpoint beats the base model by more than noise. True if unknown."""
    base = path[0].curves.start_score if path and path[0].base_step == 0 else None
    return base is None or best.val_score is None or best.val_score > base + margin


def _before_trouble(since: int, on: NodeView, offered: Sequence[OfferedCheckpoint]) -> StartPoint:
    """Best checkpoint before step `since` of `on`, or the base model if there is none."""
    clean = [c for c in offered if c.node != on.node or c.step < since]
    if not clean:
        return StartPoint(
            checkpoint=None, reason=f"no checkpoint is older than step {since}, where it went wrong"
        )
    best = best_scored(clean)
    return StartPoint(
        checkpoint=best, reason=f"the best step before {since}, where it went wrong {_score(best)}"
    )


def _before_doubt(on: NodeView, path: Sequence[NodeView], offered: Sequence[OfferedCheckpoint]) -> StartPoint:
    """Best checkpoint of the path before its first node with a doubtful score, or the base model."""
    numbers = [view.node for view in path]
    doubted = next((view.node for view in path if view.doubts), on.node)
    before = numbers[: numbers.index(doubted)] if doubted in numbers else []
    sound = [c for c in offered if c.node in before]
    if not sound:
        reason = f"no checkpoint is older than node {doubted}, whose score is in doubt"
        return StartPoint(checkpoint=None, reason=reason)
    found = best_scored(sound)
    reason = f"the best step before node {doubted}, whose score is in doubt {_score(found)}"
    return StartPoint(checkpoint=found, reason=reason)


def _before_decline(
    on: NodeView, offered: Sequence[OfferedCheckpoint], best: OfferedCheckpoint
) -> StartPoint:
    """Best checkpoint of the phases before `on`, because `on` scored lower than its start."""
    earlier = [c for c in offered if c.node != on.node]
    if earlier:
        found = best_scored(earlier)
        return StartPoint(
            checkpoint=found, reason=f"the best step before node {on.node}, which lost {_score(found)}"
        )
    if on.base_step == 0:
        return StartPoint(checkpoint=None, reason="the phase is worse than the base model it started from")
    return StartPoint(checkpoint=best, reason=f"the best step that is still saved {_score(best)}")


def _score(checkpoint: OfferedCheckpoint) -> str:
    score = "not validated" if checkpoint.val_score is None else f"validation {checkpoint.val_score:.3f}"
    return f"(node {checkpoint.node}, step {checkpoint.step}, {score})"


# --- length -------------------------------------------------------------------------------------------------


def choose_length(finding: Finding, task: TaskView, *, unchanged: bool) -> int:
    """Steps of the next phase: the usual length, or 1.5 times that for a run that improves or continues
    unchanged."""
    longer = unchanged or finding.kind in _LONGER
    n_steps = round(task.phase_steps * 1.5) if longer else task.phase_steps
    return max(1, min(n_steps, task.max_phase_steps))


def passes_text(task: TaskView, full: Hyperparameters, *, global_step: int, n_steps: int) -> str:
    """Sentence about the passes over the data that the path has made when the phase ends, counted over global
    steps as the paper does."""
    batch = full.get(TRAIN_BATCH)
    batch = batch if isinstance(batch, int) and batch > 0 else 1
    per_epoch = max(1, task.n_train // batch)
    end = global_step + n_steps
    return (
        f"{n_steps} steps, to global step {end}: {end / per_epoch:.2f} passes over the {task.n_train} "
        f"training items at {batch} a step."
    )
