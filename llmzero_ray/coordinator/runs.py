"""State of each run, slot and final evaluation, as plain mutable records.

Only the core and its functions change them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from llmzero_ray.records import Checkpoint, NodeKind, PhaseFailure, PhaseResult, PhaseSpec, Proposal
from llmzero_ray.records.events import (
    ApprovalAnswered,
    ApprovalAsked,
    CloneAsked,
    FinalScored,
    FinalWhat,
    PhaseFailed,
    PhaseFinished,
    RunnerSilent,
    VerdictPosted,
)
from llmzero_ray.records.metrics import Score
from llmzero_ray.storage import SearchPaths

INTERRUPTED = "the search was interrupted"
"""Cause of what a phase had saved before a pause or an abort."""
Stage: TypeAlias = Literal["proposing", "planned", "done", "cancelled"]
"""`proposing`: an agent is called · `planned`: it has a spec, and trains or waits for its slot · `done`: it
has an outcome · `cancelled`: the search ended before it trained; it continues if the search is extended."""


@dataclass(kw_only=True)
class PhaseRun:
    """One run of the search: a node of the tree, or the reference."""

    node: int
    kind: NodeKind
    on: int | None
    slot: int
    stage: Stage = "proposing"
    tries: int = 0
    """Number of rejected proposals."""
    rejected: str | None = None
    """Reason of the last rejection."""
    refused: Proposal | None = None
    """The proposal that was rejected last."""
    answer: Proposal | None = None
    """Proposal that is neither planned nor rejected yet."""
    asked: ApprovalAsked | None = None
    """Event with which `answer` began to wait for a person. None before."""
    approval: ApprovalAnswered | None = None
    """The answer of the person, or of the deadline, to `answer`."""
    no_answer: str | None = None
    """Reason why there will be no proposal."""
    spec: PhaseSpec | None = None
    proposal: Proposal | None = None
    note: str = ""
    attempt: int = 0
    """Number of the current attempt, from 0."""
    started: bool = False
    """Whether a runner was handed the current attempt."""
    started_at: float | None = None
    """Unix time when the current attempt started, for displays and budgets."""
    losses: int = 0
    """Number of attempts lost to hardware failures."""
    interrupted: bool = False
    """Whether a pause or an abort ended one of its attempts. The GPU hours of that attempt are counted."""
    restart_step: int | None = None
    """Step from which the current attempt continues after a loss; None before the first loss."""
    silent: RunnerSilent | None = None
    """Set if the current attempt hangs and must be killed."""
    first_attempt: int = 0
    """First attempt from the current resume point. Later attempts continue from full checkpoints of attempts
    since that one."""
    replanned: int = 0
    """Number of times its resume source was replaced because the adapter was corrupt."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Plan of a search method that plans its runs (`search.RunPlan`). Empty if an agent decides."""
    clone: CloneAsked | None = None
    """The user's clone request; None for runs that the rules chose."""
    revived: int = 0
    """Number of times it was cancelled at an end of the search and queued again when the search continued."""
    lost_steps: frozenset[int] = frozenset()
    """Steps whose adapters were deleted or found corrupt."""
    salvaged: PhaseFailure | None = None
    """What its attempts had saved when the last one was lost or interrupted."""
    has_result: bool = False
    """Whether an interrupted attempt had ended. Its end is journalled next."""
    given_up: bool = False
    """Whether the loss is final: the run fails, or ends as requested."""
    stop_reason: str | None = None
    """Reason of a requested stop, or None if none was requested."""
    outcome: PhaseResult | PhaseFailure | None = None
    verdicts: list[VerdictPosted] = field(default_factory=list)

    def needs_answer(self, tries: int) -> bool:
        """Whether this proposal, after `tries` rejected ones, is neither answered nor given up."""
        open_ = self.spec is None and self.answer is None and self.no_answer is None
        return open_ and self.tries == tries and self.stage in ("proposing", "cancelled")

    @property
    def waits(self) -> bool:
        """Whether its proposal waits for a person. Also True if the run was cancelled while it waited."""
        return self.spec is None and self.asked is not None and self.approval is None

    @property
    def shown(self) -> PhaseRun:
        """The run with its waiting phase as if it were planned. The run itself if no phase waits."""
        if self.asked is None or not self.waits:
            return self
        return dataclasses.replace(self, spec=self.asked.spec, proposal=self.answer)

    @property
    def active(self) -> bool:
        """Whether it has begun but not ended."""
        return self.stage in ("proposing", "planned")

    @property
    def status(self) -> str:
        """pending, running, completed, early_stopped, failed or cancelled."""
        if isinstance(self.outcome, PhaseResult):
            return self.outcome.status
        if isinstance(self.outcome, PhaseFailure):
            return "failed"
        if self.stage == "cancelled":
            return "cancelled"
        return "running" if self.started else "pending"

    @property
    def score(self) -> float | None:
        """Best validation score of its own steps, without the validation of its start."""
        return self.outcome.best_score if self.outcome else None

    @property
    def doubts(self) -> tuple[str, ...] | None:
        """Reasons not to trust its score. None if they were not checked."""
        return self.outcome.doubts if isinstance(self.outcome, PhaseResult) else None

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """Adapters on disk, once the phase has ended."""
        if self.outcome is None:
            return ()
        return tuple(kept for kept in self.outcome.checkpoints if kept.step not in self.lost_steps)

    @property
    def best_saved_step(self) -> int | None:
        """Step of its best score if that adapter is on disk, otherwise the last step on disk, or None."""
        saved = [kept.step for kept in self.checkpoints]
        best = None if self.outcome is None else self.outcome.best_step
        return best if best in saved else max(saved, default=None)

    @property
    def base_step(self) -> int:
        """Global step of its resume point."""
        return self.spec.base_step if self.spec else 0

    def adapter(self, paths: SearchPaths, step: int) -> Path:
        """Directory of its adapter after `step`, saved by the attempt that is recorded in its outcome."""
        kept = () if self.outcome is None else self.outcome.checkpoints
        return paths.adapter(self.node, step, next((one.attempt for one in kept if one.step == step), 0))

    def ended_with(self, event: PhaseFinished | PhaseFailed) -> bool:
        """Whether it ended with this event. False for a late outcome of an attempt that was given up."""
        return self.outcome is not None and event.phase_attempt == self.attempt

    def begin_again(self) -> None:
        """Discard the current attempt and queue a new one."""
        if self.started:
            self.attempt, self.started, self.silent = self.attempt + 1, False, None
            self.has_result = False

    def as_ended(self) -> PhaseResult:
        """Result of a run that is stopped after its runner was lost or the search was interrupted: what it
        had saved."""
        left = self.salvaged
        assert left is not None
        assert self.stop_reason is not None
        why = INTERRUPTED if left.cause == INTERRUPTED else "its runner was lost"
        return PhaseResult(
            node=self.node,
            status="early_stopped" if self.stop_reason.startswith("verdict") else "completed",
            stop_reason=f"{self.stop_reason} ({why})",
            steps_done=left.steps_done,
            best_score=left.best_score,
            best_step=left.best_step,
            start_score=left.start_score,
            start_from=left.start_from,
            final_score=None,
            checkpoints=left.checkpoints,
            wall_s=left.wall_s,
            train_wall_s=left.wall_s,
            gpu_hours=left.gpu_hours,
            warm=left.warm,
            tokens=left.tokens,
            val_tokens=left.val_tokens,
            cost=left.cost,
        )


@dataclass(kw_only=True)
class SlotState:
    """One slot: whether its runner is up, and its current work."""

    index: int
    ready: bool = False
    generation: int = 0
    """Number of runners it has had."""
    node: int | None = None
    scoring: FinalWhat | None = None

    @property
    def idle(self) -> bool:
        """Whether it neither trains nor scores."""
        return self.node is None and self.scoring is None


@dataclass(kw_only=True)
class FinalJob:
    """Evaluation of one policy after the search."""

    what: FinalWhat
    split: str = "test"
    adapter: str | None = None
    node: int | None = None
    step: int | None = None
    attempt: int = 0
    """Attempt of the reference run. An extended search may train a longer reference."""
    ready: bool = True
    """Whether its checkpoint exists; False while the reference still trains."""
    slot: int | None = None
    losses: int = 0
    problem: str | None = None
    """Reason why it cannot be scored, to be posted as an event."""
    done: bool = False
    score: FinalScored | None = None

    @property
    def measured(self) -> Score | None:
        """Mean over all items with its standard error, or None if not scored yet."""
        scored = self.score
        if scored is None:
            return None
        return Score(mean=scored.mean, standard_error=scored.standard_error, n=scored.n)


def without_infinities(score: float | None) -> float | None:
    """The score, or None if it is not finite."""
    return score if score is not None and abs(score) < float("inf") else None


def finite(outcome: PhaseResult | PhaseFailure) -> PhaseResult | PhaseFailure:
    """The outcome, without its best score if that is not finite."""
    score = without_infinities(outcome.best_score)
    if score == outcome.best_score:
        return outcome
    return dataclasses.replace(outcome, best_score=score, best_step=None)
