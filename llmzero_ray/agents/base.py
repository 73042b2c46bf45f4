"""Requests to the agents and their protocols, shared by the offline expert and LLM agents.

Requests carry everything an agent may see, as values; agents read no file and no clock. Test results never
appear here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from llmzero_ray.metrics import Curves
from llmzero_ray.records import (
    Checkpoint,
    Diagnosis,
    Hyperparameters,
    PhaseFailure,
    Proposal,
    ResumeFrom,
    StopDecision,
)


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """What an agent may know of one node."""

    node: int
    kind: str
    status: str
    """pending | running | completed | early_stopped | failed"""
    hyperparameters: Hyperparameters
    n_steps: int
    base_step: int
    score: float | None = None
    best_step: int | None = None
    stop_reason: str = ""
    curves: Curves = field(default_factory=Curves)
    failure: PhaseFailure | None = None
    diagnosis: Diagnosis | None = None
    """Diagnosis in the proposal of this node."""
    parent: int | None = None
    """Node it was created from; None: the root, or not known."""
    resume_from: ResumeFrom | None = None
    """Checkpoint it starts from; None: the base model, or not planned yet."""


@dataclass(frozen=True, kw_only=True)
class OfferedCheckpoint:
    """A checkpoint a proposal may resume from."""

    node: int
    step: int
    global_step: int
    val_score: float | None


@dataclass(frozen=True, kw_only=True)
class TaskView:
    """Facts about the task and its limits."""

    name: str
    n_train: int
    phase_steps: int
    """Usual length of a phase, in steps."""
    max_phase_steps: int
    max_model_len: int
    """Upper bound of prompt + response, tokens: the serving limit of the slot."""
    max_prompt_length: int
    data_sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Remaining budget of a search; None: not limited, or not known."""

    runs: int | None = None
    """Training runs."""
    gpu_hours: float | None = None
    wall_clock_hours: float | None = None
    dollars: float | None = None
    """Dollars for agent calls."""


@dataclass(frozen=True, kw_only=True)
class ProposalRequest:
    """Propose the next phase below `on`."""

    task: TaskView
    on: NodeView
    path: tuple[NodeView, ...]
    """Resume chain of `on`, base first, `on` last."""
    siblings: tuple[NodeView, ...]
    """Children `on` already has: do not repeat them."""
    best: NodeView | None
    """Best-scored node so far."""
    default: Hyperparameters
    """The root's configuration."""
    checkpoints: tuple[OfferedCheckpoint, ...]
    from_scratch: bool
    """Forced scratch: no checkpoint information is given and the proposal must not resume."""
    rejected: str | None = None
    """Why the previous proposal for this request was rejected; None at the first try."""
    n_scratch: int = 0
    """Scratch runs so far, the root included: lets a rule vary its fresh starts."""
    node: int | None = None
    """Number of the node to be proposed; records of calls are kept with it."""
    tries: int = 0
    """Number of rejected proposals for this request."""
    budget: Budget = field(default_factory=Budget)
    hints: tuple[str, ...] = ()
    """Hints of the user, oldest first."""
    tree: tuple[NodeView, ...] = ()
    """Every other node of the search by number, those that run, wait or are still being proposed (without a
    configuration) included; their curves hold validations only."""


@dataclass(frozen=True, kw_only=True)
class ErrorRequest:
    """Fix a failed phase; `failed.failure` holds class, cause and log tail."""

    task: TaskView
    failed: NodeView
    chain: tuple[NodeView, ...]
    """Failed nodes of this debug chain, oldest first, `failed` last."""
    default: Hyperparameters
    checkpoints: tuple[OfferedCheckpoint, ...]
    rejected: str | None = None
    node: int | None = None
    tries: int = 0
    budget: Budget = field(default_factory=Budget)


@dataclass(frozen=True, kw_only=True)
class StopRequest:
    """Judge a running phase against the incumbent."""

    task: TaskView
    running: NodeView
    incumbent: NodeView
    incumbent_path: tuple[tuple[int, float], ...]
    """(global step, validation score) along the incumbent's whole path, cut at each resume point."""
    checks: tuple[str, ...] = ()
    """Findings of the deterministic rules, one short sentence each."""


class Proposer(Protocol):
    """Diagnose, change, choose the checkpoint, compute the length."""

    def propose(self, request: ProposalRequest) -> Proposal:
        """The next phase below `request.on`."""
        ...


class ErrorAnalyzer(Protocol):
    """Explain a failure and propose the fixed phase."""

    def analyze(self, request: ErrorRequest) -> Proposal:
        """The phase that repairs `request.failed`."""
        ...


class EarlyStopper(Protocol):
    """STOP only when the run cannot realistically beat the incumbent; CONTINUE when in doubt."""

    def judge(self, request: StopRequest) -> StopDecision:
        """STOP or CONTINUE, with the reason."""
        ...


AgentName = Literal["proposer", "error_analyzer", "early_stopper"]

__all__ = [
    "AgentName",
    "Budget",
    "Checkpoint",
    "EarlyStopper",
    "ErrorAnalyzer",
    "ErrorRequest",
    "NodeView",
    "OfferedCheckpoint",
    "ProposalRequest",
    "Proposer",
    "StopRequest",
    "TaskView",
]
