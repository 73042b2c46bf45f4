"""Requests to the agents and their protocols, shared by the offline expert and LLM agents.

Requests contain everything that an agent may see as values, so agents read no files and no clock. They never
contain test results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

from llmzero_ray.records import (
    Answer,
    Change,
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
class KindScore:
    """Accuracy of a phase on the validation items of one kind."""

    kind: str
    """Data source of the items, or their `ability` if all are from one source. Untrusted."""
    n: int
    """Number of items."""
    start: float | None
    """Accuracy before the first step. None if its outcomes were not stored."""
    last: float
    """Accuracy in the last validation."""


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """What an agent may know about one node."""

    node: int
    kind: str
    status: str
    """pending, running, completed, early_stopped, failed or cancelled."""
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
    """Tokens of the whole phase including validations, as the budget counts them. None if it has not ended,
    or they were not counted."""
    step_tokens: TokenCounts | None = None
    """Mean tokens of one training step, without validations."""
    val_tokens: float | None = None
    """Mean tokens that one of its validations samples."""
    gpu_hours: float | None = None
    """GPU hours of the phase, or None if it has not ended."""
    answers: tuple[Answer, ...] = ()
    """A few answers of its last validation, then a few that its training sampled: right, wrong and cut-off
    ones."""
    by_length: tuple[int, float, float] | None = None
    """(median length in characters, accuracy of the shorter answers, accuracy of the others) of the answers
    of its last validation that were not cut off. None if not known, or if all have one length."""
    wrong: tuple[int, int, int | None] | None = None
    """(wrong answers of its last validation, those of them that were cut off at the cap, those of the others
    in which the reward found no answer, or None if it does not say). None if there are none, or if that was
    not stored."""
    places: tuple[float, float, float, float] | None = None
    """Share of the answers of its last validation that are the first number of their prompt, and the last
    one, then both shares for the right answers. None if a right answer is not a number of its prompt."""
    kinds: tuple[KindScore, ...] = ()
    """Scores by kind of question, by name. Empty if there is one kind, or outcomes were not stored."""
    parent: int | None = None
    """Node it was created from. None for the root, or if not known."""
    resume_from: ResumeFrom | None = None
    """Checkpoint it starts from. None for the base model, or if not planned yet."""
    predicted: float | None = None
    """Best validation score that its proposal expected."""
    changes: tuple[Change, ...] = ()
    """Changes of its proposal, with their reasons."""
    doubts: tuple[str, ...] | None = None
    """Reasons not to trust its score, found in its answers. None if the answers were not checked."""


@dataclass(frozen=True, kw_only=True)
class OfferedCheckpoint:
    """A checkpoint a proposal may resume from."""

    node: int
    step: int
    global_step: int
    val_score: float | None
    to_best: tuple[float, float] | None = None
    """(mean difference to the best-scored checkpoint on offer, its standard error), over the same items. None
    for that checkpoint itself, or if outcomes were not stored item by item."""

    @property
    def resume_from(self) -> ResumeFrom:
        """This checkpoint as the start of a proposal."""
        return ResumeFrom(node=self.node, step=self.step)


@dataclass(frozen=True, kw_only=True)
class TaskView:
    """What an agent may know about the task and its limits."""

    name: str
    n_train: int
    phase_steps: int
    """Usual length of a phase, in steps."""
    max_phase_steps: int
    max_model_len: int
    """Maximum tokens of prompt and response: the serving limit of the slot."""
    max_prompt_length: int
    test_freq: int | None = None
    """Steps between two validations of a phase. Its last step is also validated."""
    save_freq: int | None = None
    """Steps between two saved checkpoints. New bests and the last step are also saved."""
    data_sources: tuple[str, ...] = ()
    eval_response_length: int | None = None
    """Maximum tokens of a response in validation."""
    base_model: str = ""
    """The model's id or the name of its directory."""
    n_parameters: int | None = None
    """Parameters of the base model."""
    description: str = ""
    """The author's description of the task."""
    reward: str = ""
    """The reward's name."""
    reward_says: str = ""
    """First sentence of the reward's own description. Empty if it has none, or it is not known."""
    reward_ships: bool = False
    """Whether the reward is shipped with this package. The texts of other rewards are untrusted."""
    chance: float | None = None
    """Score of always giving the most frequent gold answer. None if there is none, or it is not known."""
    blind_pick: float | None = None
    """Expected score of answering with a random number of the prompt. None if not known."""
    fixed_pick: tuple[str, float] | None = None
    """(`first` or `last`, score of always answering with that number of the prompt), the better of the two.
    None if not known."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Remaining budget of a search. A field is None if there is no such limit, or it is not known."""

    runs: int | None = None
    """Training runs after the one being planned."""
    gpu_hours: float | None = None
    wall_clock_hours: float | None = None
    dollars: float | None = None
    """Dollars for agent calls."""
    compute: ComputeLimit | None = None
    """Maximum compute of the next phase: its share, or what the ended phases have left."""
    whole_compute: float | None = None
    """`budget.compute`."""
    whole_gpu_hours: float | None = None
    """`budget.gpu_hours`."""
    whole_wall_clock_hours: float | None = None
    """`budget.wall_clock_hours`."""
    root_step: TokenCounts | None = None
    """Mean tokens of one step of the root, without validations."""
    n_slots: int = 1
    """Phases that may train at the same time."""
    fresh_start_in: int | None = None
    """Number of runs between this one and a forced start from the base model. None if none is forced."""
    dollars_per_run: float | None = None
    """Mean cost of the agent calls per training run so far, in dollars."""
    validates_start: bool = False
    """Whether every phase is also validated before its first step, at its own expense."""
    dollars_end_it: bool = False
    """Whether the search ends when its dollars are used up. If not, rules replace the agents from then on."""


@dataclass(frozen=True, kw_only=True)
class ProposalRequest:
    """Request to propose the next phase below `on`."""

    task: TaskView
    on: NodeView
    path: tuple[NodeView, ...]
    """Resume chain of `on`, base first, `on` last."""
    siblings: tuple[NodeView, ...]
    """Existing children of `on`, which must not be repeated."""
    best: NodeView | None
    """Best-scored node so far."""
    default: Hyperparameters
    """The root's configuration."""
    checkpoints: tuple[OfferedCheckpoint, ...]
    """Saved checkpoints of the nodes in `path`, and of `best` if other branches are offered."""
    from_scratch: bool
    """Whether a fresh start is forced: no checkpoints are offered, and the proposal must not resume."""
    rejected: str | None = None
    """Reason why the previous proposal for this request was rejected, or None at the first try."""
    n_scratch: int = 0
    """Number of scratch runs so far, including the root, so that rules can vary their fresh starts."""
    node: int | None = None
    """Number of the node to be proposed. Records of calls are stored with it."""
    tries: int = 0
    """Number of rejected proposals for this request."""
    budget: Budget = field(default_factory=Budget)
    hints: tuple[str, ...] = ()
    """The user's refusals and edits of proposals, then the user's hints, each oldest first."""
    refused: Proposal | None = None
    """Rejected proposal. None at the first try, or if not known."""
    tree: tuple[NodeView, ...] = ()
    """All other nodes of the search in order, including those that run, wait or are still being proposed
    (these have no configuration). Their curves contain only validations."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Plan of the search method for the phase (`search.RunPlan`). Empty if the proposer decides."""

    def base(self, resume_from: ResumeFrom | None) -> Hyperparameters:
        """Configuration to which changes apply if the phase starts from `resume_from` (`base_of_changes`)."""
        return base_of_changes(
            "scratch" if self.from_scratch else "evolve",
            on=self.on.hyperparameters,
            source=None if resume_from is None else self._configuration(resume_from.node),
            root=self.default,
        )

    def _configuration(self, node: int) -> Hyperparameters | None:
        known = (*self.path, *(() if self.best is None else (self.best,)))
        return next((view.hyperparameters for view in known if view.node == node), None)


@dataclass(frozen=True, kw_only=True)
class MemoryView:
    """Current GPU memory estimate of a failed phase."""

    verdict: str
    """One sentence: whether it fits, its tightest stage, and what takes most memory there."""
    remedies: tuple[str, ...]
    """Single changes that would help, most helpful first, each with the memory it saves and the resulting
    fit."""
    fix: Mapping[str, HyperparameterValue]
    """Changes (VeRL's key -> value) that together make it fit. Empty if there are none."""
    fix_verdict: str
    """Fit with those changes: `fits`, `tight` or `does not fit`."""


@dataclass(frozen=True, kw_only=True)
class ErrorRequest:
    """Request to fix a failed phase. `failed.failure` has the class, the cause and the end of the log."""

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
    """GPU memory estimate, or None if the search has none."""
    refused: Proposal | None = None
    """Rejected fix. None at the first try, or if not known."""

    def base(self, resume_from: ResumeFrom | None) -> Hyperparameters:  # noqa: ARG002 - as a proposal's
        """Configuration to which changes apply: that of the failed phase, wherever the fix starts."""
        return self.failed.hyperparameters


def base_of_changes(
    kind: str, *, on: Hyperparameters, source: Hyperparameters | None, root: Hyperparameters
) -> Hyperparameters:
    """Configuration to which a proposal's changes apply.

    For a fix, it is that of the failed phase (`on`). For other proposals, it is that of the node to resume
    from (`source`), the root's for a forced fresh start, or the parent's (`on`) for any other start from the
    base model.
    """
    if kind == "debug":
        return on
    if source is not None:
        return source
    return root if kind == "scratch" else on


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Comparison of a running phase with the incumbent, at its start or at one of its validations.

    A difference is the phase's score minus the incumbent's.
    """

    global_step: int
    score: float
    """Current score of the running phase."""
    at_same_step: Difference | None
    """Difference to the incumbent's last validation up to this global step. None if its path ends earlier."""
    to_best: Difference | None
    """Difference to the incumbent's best validation. None without a scored incumbent."""


@dataclass(frozen=True, kw_only=True)
class EarlierVerdict:
    """Earlier decision on a running phase."""

    step: int
    stop: bool
    rule: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class StopRequest:
    """Request to judge a running phase against the incumbent."""

    task: TaskView
    running: NodeView
    incumbent: NodeView
    incumbent_path: tuple[tuple[int, float], ...]
    """(global step, validation score) along the incumbent's whole path including its start. Each phase counts
    up to where the next one resumes."""
    incumbent_chain: tuple[NodeView, ...] = ()
    """The incumbent's resume chain, base first, the incumbent last. The curves of each node end where the
    path leaves it."""
    standings: tuple[Standing, ...] = ()
    """Comparisons of the phase with the incumbent, at its start and at each of its validations."""
    ended: tuple[NodeView, ...] = ()
    """Other phases that had a score when this one began, without their curves."""
    verdicts: tuple[EarlierVerdict, ...] = ()
    """Decisions on this phase so far, oldest first."""
    saves: Saving | None = None
    """Savings of a stop."""
    budget: Budget = field(default_factory=Budget)
    """Remaining budget when the phase began, before its own steps."""
    checks: tuple[str, ...] = ()
    """Findings of the deterministic rules, one short sentence each."""


class Proposer(Protocol):
    """Agent that diagnoses a run and chooses changes, checkpoint and length of the next phase."""

    def propose(self, request: ProposalRequest) -> Proposal:
        """Proposal of the next phase below `request.on`."""
        ...


class ErrorAnalyzer(Protocol):
    """Agent that explains a failure and proposes a phase that fixes it."""

    def analyze(self, request: ErrorRequest) -> Proposal:
        """Proposal of a phase that fixes `request.failed`."""
        ...


class EarlyStopper(Protocol):
    """Agent that stops a run if it cannot realistically beat the incumbent. In doubt, it continues."""

    def judge(self, request: StopRequest) -> StopDecision:
        """Decision STOP or CONTINUE, with the reason."""
        ...


AgentName = Literal["proposer", "error_analyzer", "early_stopper"]
AGENT_NAMES: tuple[AgentName, ...] = get_args(AgentName)
SKILL_AGENT: Final = "skill_agent"
"""Name of the agent of `search.method: skills` in ledgers and in `agents.per_agent`."""
ModelRole: TypeAlias = AgentName | Literal["skill_agent"]
"""Role in which a language model is called."""

__all__ = [
    "AGENT_NAMES",
    "SKILL_AGENT",
    "AgentName",
    "Answer",
    "Budget",
    "Checkpoint",
    "EarlyStopper",
    "ErrorAnalyzer",
    "ErrorRequest",
    "KindScore",
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
