"""Requests to the agents and their protocols, shared by the offline expert and LLM agents.

Requests carry everything an agent may see, as values; agents read no file and no clock. Test results never
appear here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

from llmzero_ray.records import (
    Checkpoint,
    ComputeLimit,
    Diagnosis,
    Hyperparameters,
    HyperparameterValue,
    PhaseFailure,
    Proposal,
    ResumeFrom,
    Saving,
    StopDecision,
    TokenCounts,
)
from llmzero_ray.records.metrics import Curves
from llmzero_ray.records.significance import Difference


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A validation item as a phase answered it. All texts are foreign: a data set's or a model's."""

    prompt: str
    response: str
    score: float
    acc: float
    pred: str | None = None
    """What the reward took as the answer; None: it does not say."""
    cut: bool = False
    """Whether the response ended at the cap of validation."""


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
    tokens: TokenCounts | None = None
    """Tokens of the whole phase, validations included, as the budget counts them; None: it has not ended, or
    they were not counted."""
    step_tokens: TokenCounts | None = None
    """Of these the mean of one step, validations left out."""
    val_tokens: float | None = None
    """Tokens that one of its validations samples, on average."""
    gpu_hours: float | None = None
    """GPU hours of the phase; None: it has not ended."""
    answers: tuple[Answer, ...] = ()
    """A few answers of its last validation, right, wrong and cut off ones."""
    parent: int | None = None
    """Node it was created from; None: the root, or not known."""
    resume_from: ResumeFrom | None = None
    """Checkpoint it starts from; None: the base model, or not planned yet."""
    predicted: float | None = None
    """Best validation score that its proposal expected."""
    doubts: tuple[str, ...] | None = None
    """Reasons not to believe its score, found in its answers; None: they were not looked at."""


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
    test_freq: int | None = None
    """Steps between two validations of a phase; its last step is validated too."""
    save_freq: int | None = None
    """Steps between two checkpoints that are kept; new bests and the last step are kept too."""
    data_sources: tuple[str, ...] = ()
    eval_response_length: int | None = None
    """Cap of a response in validation, tokens."""
    carries_optimizer: bool = False
    """Whether a phase that resumes goes on with the optimizer's state of its checkpoint."""
    base_model: str = ""
    """The model's id or the name of its directory."""
    n_parameters: int | None = None
    """Parameters of the base model."""
    description: str = ""
    """What the task asks for, in words of its author."""
    reward: str = ""
    """The reward's name."""
    reward_says: str = ""
    """The first sentence of the reward's own description; empty: it has none, or it is not known."""
    reward_ships: bool = False
    """Whether the reward is one of this package's; the words of others are foreign text."""
    chance: float | None = None
    """Score of the most frequent gold answer given always; None: no such answer, or not known."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Remaining budget of a search; None: not limited, or not known."""

    runs: int | None = None
    """Training runs after the one that is being planned."""
    gpu_hours: float | None = None
    wall_clock_hours: float | None = None
    dollars: float | None = None
    """Dollars for agent calls."""
    compute: ComputeLimit | None = None
    """Most that the next phase may compute: all that ended phases have left."""
    whole_compute: float | None = None
    """`budget.compute`, of which `compute` is the rest."""
    root_step: TokenCounts | None = None
    """Mean tokens of one step of the root, validations left out."""
    n_slots: int = 1
    """Phases that may train at the same time."""
    dollars_per_run: float | None = None
    """Dollars that the agent calls of one training run took so far, on average."""
    dollars_end_it: bool = False
    """Whether the search ends when its dollars are used up; else rules decide from then on."""


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
    """Of the nodes in `path`."""
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
    refused: Proposal | None = None
    """The proposal that was rejected; None at the first try, or when it is not known."""
    tree: tuple[NodeView, ...] = ()
    """Every other node of the search by number, those that run, wait or are still being proposed (without a
    configuration) included; their curves hold validations only."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """What the search method wants of the phase (`search.RunPlan`); empty: the proposer decides."""

    def base(self, resume_from: ResumeFrom | None) -> Hyperparameters:
        """The configuration that changes apply to when the phase starts there (`base_of_changes`)."""
        return base_of_changes(
            "scratch" if self.from_scratch else "evolve",
            on=self.on.hyperparameters,
            source=None if resume_from is None else self._configuration(resume_from.node),
            root=self.default,
        )

    def _configuration(self, node: int) -> Hyperparameters | None:
        return next((view.hyperparameters for view in self.path if view.node == node), None)


@dataclass(frozen=True, kw_only=True)
class MemoryView:
    """The estimate of a failed phase's GPU memory, as this search knows it by now."""

    verdict: str
    """Whether it fits, its tightest stage, and what is largest there, in one sentence."""
    remedies: tuple[str, ...]
    """Single changes that would help, with what they save and the verdict after them; those that help most
    first."""
    fix: Mapping[str, HyperparameterValue]
    """VeRL's key -> value of changes that together make it fit; empty: there are none."""
    fix_verdict: str
    """`fits`, `tight` or `does not fit`: the estimate with them."""


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
    memory: MemoryView | None = None
    """None: the search has no estimate."""
    refused: Proposal | None = None
    """The fix that was rejected; None at the first try, or when it is not known."""

    def base(self, resume_from: ResumeFrom | None) -> Hyperparameters:  # noqa: ARG002 - as a proposal's
        """The configuration that changes apply to: the failed phase's, wherever the fix starts."""
        return self.failed.hyperparameters


def base_of_changes(
    kind: str, *, on: Hyperparameters, source: Hyperparameters | None, root: Hyperparameters
) -> Hyperparameters:
    """The configuration that a proposal's changes apply to.

    That of the node whose checkpoint is resumed (`source`). A fix applies to the failed phase it repairs
    (`on`), a forced fresh start to the root, and any other start from the base model to the node it is
    proposed below (`on`).
    """
    if kind == "debug":
        return on
    if source is not None:
        return source
    return root if kind == "scratch" else on


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A running phase against the incumbent, at one of its validations or at its start.

    A difference is the phase's score minus the incumbent's.
    """

    global_step: int
    score: float
    """Of the running phase."""
    at_same_step: Difference | None
    """To the incumbent's last validation up to this global step; None where its path has ended before."""
    to_best: Difference | None
    """To the incumbent's best validation; None without an incumbent that has a score."""


@dataclass(frozen=True, kw_only=True)
class EarlierVerdict:
    """What was decided on a running phase before."""

    step: int
    stop: bool
    rule: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class StopRequest:
    """Judge a running phase against the incumbent."""

    task: TaskView
    running: NodeView
    incumbent: NodeView
    incumbent_path: tuple[tuple[int, float], ...]
    """(global step, validation score) along the incumbent's whole path, its start included, cut at each
    resume point."""
    incumbent_chain: tuple[NodeView, ...] = ()
    """The incumbent's resume chain, base first, the incumbent last; the curves of each end where the path
    leaves it."""
    standings: tuple[Standing, ...] = ()
    """The phase against the incumbent at its start and at each of its validations."""
    verdicts: tuple[EarlierVerdict, ...] = ()
    """Decisions on this phase so far, oldest first."""
    saves: Saving | None = None
    """What a stop would save."""
    budget: Budget = field(default_factory=Budget)
    """As it was when the phase began, its own steps not counted."""
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
SKILL_AGENT: Final = "skill_agent"
"""The agent of `search.method: skills`, as ledgers and `agents.per_agent` call it."""
ModelRole: TypeAlias = AgentName | Literal["skill_agent"]
"""What a language model is asked as."""

__all__ = [
    "SKILL_AGENT",
    "AgentName",
    "Answer",
    "Budget",
    "Checkpoint",
    "EarlyStopper",
    "ErrorAnalyzer",
    "ErrorRequest",
    "MemoryView",
    "ModelRole",
    "NodeView",
    "OfferedCheckpoint",
    "ProposalRequest",
    "Proposer",
    "StopRequest",
    "TaskView",
    "base_of_changes",
]
