"""The events of a search.

An event is durable in the journal before anything acts on it. The journal of a search is the list of its
events; replaying them in a new core gives the same state.

To add an event, subclass `Event` here and handle it in coordinator/core.py. Increment `FORMAT` in
journal/event_file.py if an older version could misread the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from llmzero_ray.records import (
    Event,
    PhaseFailure,
    PhaseResult,
    PhaseSpec,
    Proposal,
    ResumeFrom,
    Saving,
    StopDecision,
    register_record,
)

REFERENCE = -1
"""Node number of the default recipe, which is trained in one phase after the search. Not in the tree."""

BudgetKind: TypeAlias = Literal["gpu_hours", "wall_clock", "dollars", "compute"]
FinalWhat: TypeAlias = str
"""Policy evaluated after the search. On the test split: `base` (the base model), `best` (the best strategy's
adapter), `reference` (the reference's best adapter), `reference-whole` (the same within the compute of the
whole search) and `node-N` (a node's best step). On fresh validation items: `confirm-N` (a node's best
step)."""


@dataclass(frozen=True, kw_only=True)
class InitializationStarted(Event):
    """First event of a search that begins with a folder of data, from which its task is drafted. Another one
    follows if the user changes a decision."""

    folder: str
    sentence: str
    choices: Mapping[str, Any]
    """Decisions that the user has made (fields of `agents.drafting.base.UserChoices`)."""
    backend: str
    """`agents.backend`."""
    prompts: str
    """SHA-256 over the prompt templates of the initialization agents. Empty if rules replace the agents."""


@dataclass(frozen=True, kw_only=True)
class TaskDrafted(Event):
    """The initialization agents have drafted task and configuration."""

    files: Mapping[str, str]
    """File below initialization/ -> sha256."""
    found: tuple[str, ...]
    """The agents' findings and decisions, one line each."""
    problems: tuple[str, ...]
    """Open questions and defects, one line each. Empty if the task can be trained."""


@dataclass(frozen=True, kw_only=True)
class InitializationConfirmed(Event):
    """The user confirmed the drafted task."""

    by: Literal["terminal", "yes"]
    """How it was confirmed: at the terminal, or with --yes."""
    files: Mapping[str, str]
    """File below initialization/ -> sha256, after the user's edits."""


@dataclass(frozen=True, kw_only=True)
class SearchStarted(Event):
    """The first event of a journal, or the first after the initialization: configuration, task facts and
    versions."""

    config: Mapping[str, Any]
    """`SearchConfig.to_json()`."""
    task: Mapping[str, Any]
    """Facts of the prepared task: name, sizes, hashes of the splits, data sources, model."""
    root: Mapping[str, Any]
    """The root's complete hyper-parameters."""
    versions: Mapping[str, str]
    """Packages that can change results -> version."""
    agents: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the agents, frozen for the search. With a language model: `prompts` (file -> text),
    `digest` (sha256 over them), `price` (dollars per million tokens)."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """Facts with which the memory of planned phases is estimated: `gpu_gib` (of one GPU) and `shape` (of the
    model). If empty, phases are not checked."""


@dataclass(frozen=True, kw_only=True)
class CoordinatorStarted(Event):
    """A coordinator took over. Epochs count the writers of the journal, including commands that initialize a
    search."""

    epoch: int
    host: str
    pid: int
    previous_alive: float | None = None
    """Unix seconds of the previous coordinator's last heartbeat."""


@dataclass(frozen=True, kw_only=True)
class SearchPaused(Event):
    """The user paused the search. Running phases are repeated later, which does not count as a loss."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class SlotReady(Event):
    """A slot's hardware is reserved and its runner answers."""

    slot: int


@dataclass(frozen=True, kw_only=True)
class Decided(Event):
    """Decision to start a run of kind `action` from node `on` in `slot`, or to end the search."""

    action: Literal["root", "evolve", "debug", "scratch", "stop"]
    on: int | None
    node: int | None
    """The new node. None for stop."""
    slot: int | None
    stop_reason: str | None
    seen: Mapping[str, Any]
    """All numbers on which the decision was based (`search.Seen.to_dict()`)."""
    clone: str = ""
    """Source of the `CloneAsked` event that asked for this run. Empty if the search method chose it."""


@dataclass(frozen=True, kw_only=True)
class Proposed(Event):
    """An agent returned a proposal, which is not validated yet."""

    node: int
    proposal: Proposal
    tries: int = 0
    """Rejected proposals for the same request before this one."""


@dataclass(frozen=True, kw_only=True)
class ProposalFailed(Event):
    """An agent failed to return a proposal."""

    node: int
    reason: str
    tries: int = 0


@dataclass(frozen=True, kw_only=True)
class ProposalRefused(Event):
    """A proposal broke a rule or was refused by a person. `message` tells the agent why."""

    node: int
    message: str
    tries: int
    """Rejected proposals so far, including this one."""


@dataclass(frozen=True, kw_only=True)
class ApprovalAsked(Event):
    """A proposal that keeps all rules waits for a person (`agents.approve`)."""

    node: int
    tries: int
    """Rejected proposals for the same request before this one."""
    spec: PhaseSpec
    """Phase if the proposal is accepted unchanged."""
    price: str = ""
    """Expected cost of the phase as text. Empty if not known."""


@dataclass(frozen=True, kw_only=True)
class PhasePlanned(Event):
    """A node's phase was planned: its spec is final."""

    node: int
    slot: int
    spec: PhaseSpec
    proposal: Proposal | None
    """Proposal on which it is based. None for the root, the reference, or without a usable proposal."""
    note: str = ""
    """Corrections between proposal and spec, as a sentence. Empty if none."""


@dataclass(frozen=True, kw_only=True)
class PhaseStarted(Event):
    """A phase was started on a runner."""

    node: int
    slot: int
    phase_attempt: int


@dataclass(frozen=True, kw_only=True)
class PhaseFinished(Event):
    """A phase ended with a result."""

    node: int
    phase_attempt: int
    result: PhaseResult


@dataclass(frozen=True, kw_only=True)
class PhaseFailed(Event):
    """A phase failed."""

    node: int
    phase_attempt: int
    failure: PhaseFailure


@dataclass(frozen=True, kw_only=True)
class RunnerLost(Event):
    """A slot lost its runner: the process, the machine or the engine died."""

    slot: int
    node: int | None
    """Node whose phase it was training, if any."""
    phase_attempt: int
    reason: str
    salvaged: PhaseFailure | None = None
    """What the lost attempt had saved. It is the outcome of the phase if that is not repeated."""
    restart_step: int = 0
    """Step of the full checkpoint from which a retry would continue. 0 for the phase's start."""
    avoided: str | None = None
    """Ray's id (hex) of the slot's machine if a GPU failed there and the search no longer uses it."""


@dataclass(frozen=True, kw_only=True)
class PhaseInterrupted(Event):
    """A phase that a pause or an abort interrupted waits for its slot again. Written when the search is
    resumed."""

    node: int
    phase_attempt: int
    """Attempt that waits."""
    salvaged: PhaseFailure
    """What the attempts before it had saved. It is the outcome of the phase if the search ends before."""
    ended: bool = False
    """Whether one of them had ended. Its end is journalled next, even if the search ends before."""


@dataclass(frozen=True, kw_only=True)
class VerdictPosted(Event):
    """The stopper judged a running phase: STOP or CONTINUE."""

    node: int
    phase_attempt: int
    step: int
    """Last step of the phase that the verdict is based on."""
    decision: StopDecision
    saves: Saving | None = None
    """What a stop saves. None if not computed."""


@dataclass(frozen=True, kw_only=True)
class AgentCalled(Event):
    """A language model was called. The cost counts towards `budget.dollars`."""

    node: int
    agent: str
    """proposer, error_analyzer, early_stopper or skill_agent; before the search task_descriptor,
    reward_writer or tool_selector."""
    call: str
    """File of the record below the node's agents/, without its suffix. Empty if there is none, because the
    process died during the call, or the call only checked the server."""
    outcome: str
    """`ok`, or the kind of failure (`deadline`, `refusal`, `schema`, `cap`, `lost`, ...)."""
    model: str
    prompt: str
    """sha256 of everything that was sent, including figures."""
    input_tokens: int = 0
    """Input tokens that were neither read from nor written to the prompt cache."""
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    dollars: float = 0.0
    latency_s: float = 0.0
    n_attempts: int = 0
    """HTTP requests sent."""
    estimated: bool = False
    """Whether tokens and dollars are at least partly a worst case, because the server reported no usage, or
    more than the call can have used."""
    reservations: tuple[str, ...] = ()
    """Ids of the `CallReserved` events that this call settles."""


CallHolder: TypeAlias = Literal["coordinator", "stopper"]
"""Process that makes a call. A command that initializes a search counts as the coordinator."""


@dataclass(frozen=True, kw_only=True)
class CallReserved(Event):
    """A request to a language model is about to be sent. Its maximum cost is reserved from `budget.dollars`
    until an `AgentCalled` settles it."""

    node: int
    agent: str
    holder: CallHolder
    reservation: str
    """Id of the reservation."""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    dollars: float = 0.0


INITIALIZATION: tuple[type[Event], ...] = (
    InitializationStarted,
    TaskDrafted,
    InitializationConfirmed,
    AgentCalled,
    CallReserved,
)
"""Events that may precede `SearchStarted`."""


@dataclass(frozen=True, kw_only=True)
class BudgetReached(Event):
    """A budget limit was reached."""

    kind: BudgetKind
    used: float
    limit: float


@dataclass(frozen=True, kw_only=True)
class RunnerSilent(Event):
    """A running phase hangs. Its runner is killed and treated as lost."""

    slot: int
    node: int
    phase_attempt: int
    stage: str
    """The engine's stage, or `runner` if the runner itself does not respond."""
    since_s: float
    limit_s: float


@dataclass(frozen=True, kw_only=True)
class SlotClosed(Event):
    """A slot was released, because `slots.count` was lowered or no work was left for it."""

    slot: int


@dataclass(frozen=True, kw_only=True)
class SlotsNeeded(Event):
    """A phase could begin but no slot was idle. With `slots.reserve: when_needed`, all slots are reserved
    now."""


@dataclass(frozen=True, kw_only=True)
class CheckpointsDeleted(Event):
    """Adapters were chosen for deletion. They are deleted after this event is recorded."""

    items: tuple[ResumeFrom, ...]
    freed_bytes: int
    used_bytes: int
    """Bytes of all adapters before the deletion."""
    limit_bytes: int


@dataclass(frozen=True, kw_only=True)
class CheckpointCorrupt(Event):
    """A saved adapter is corrupt. Nothing resumes from it any more."""

    node: int
    step: int
    problem: str
    found_by: int | None = None
    """Node whose phase was to resume from it."""


# --- user requests to a running search, with source `user:<id of the request>` ------------------------------


@dataclass(frozen=True, kw_only=True)
class UserStop(Event):
    """The user stopped the search."""

    reason: str
    deadline_s: float | None = None
    """Seconds after which running phases are killed; 0 kills at once. If None, twice
    `engine.stop_deadline_s`."""


@dataclass(frozen=True, kw_only=True)
class HintGiven(Event):
    """The user gave the proposer a hint, which is part of every later request."""

    text: str


@dataclass(frozen=True, kw_only=True)
class NodeVetoed(Event):
    """The user vetoed a node. Its subtree is not expanded, and running phases in it stop without counting as
    failures."""

    node: int
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class CloneAsked(Event):
    """The user requested a clone of a node with changes. It is trained in the next free slot."""

    of: int
    step: int | None
    """Saved step of `of` to resume from. If None, its best one."""
    changes: Mapping[str, Any]
    """Hyper-parameter (VeRL key) -> value."""
    n_steps: int | None = None
    """Training steps. If None, `phase.n_steps`."""


@dataclass(frozen=True, kw_only=True)
class ApprovalAnswered(Event):
    """The user accepted, edited or refused a waiting proposal, or its deadline accepted it (source
    `timer:...`)."""

    node: int
    tries: int
    """Rejected proposals for the same request before this one."""
    accepted: bool
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Hyper-parameter (VeRL key) -> value. Replaces or adds to the proposal's changes."""
    n_steps: int | None = None
    """Training steps. If None, those of the proposal."""
    reason: str = ""

    @property
    def edits(self) -> bool:
        """Whether the proposal is changed."""
        return bool(self.changes) or self.n_steps is not None


@dataclass(frozen=True, kw_only=True)
class SettingsChanged(Event):
    """The user changed settings of a running search (`config.changes.CHANGEABLE`)."""

    changes: Mapping[str, Any]
    """Dotted key -> new value."""
    before: Mapping[str, Any]
    """Same keys -> old values."""


@dataclass(frozen=True, kw_only=True)
class SearchExtended(Event):
    """A search that had ended continues, because the user raised a limit or changed `final` settings. Its
    outcome is written again at the next end."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    """Dotted key -> new value. Empty if they were journalled during the final evaluation."""
    before: Mapping[str, Any] = field(default_factory=dict)
    """Same keys -> old values."""


@dataclass(frozen=True, kw_only=True)
class RequestRefused(Event):
    """A user's request was refused; nothing has changed."""

    kind: str
    message: str


@dataclass(frozen=True, kw_only=True)
class BackgroundTaskFailed(Event):
    """A periodic task of the coordinator raised an exception and continues. At most one a minute per task."""

    task: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class FinalScored(Event):
    """A policy was scored on `split`: the test split, or fresh validation items. It is scored only once, even
    if the search is extended."""

    what: FinalWhat
    split: str
    n: int
    """Items."""
    mean: float
    """Mean accuracy."""
    standard_error: float
    adapter: str | None
    node: int | None
    """Node whose adapter it is (`REFERENCE` for the default recipe). None for the base model."""
    step: int | None
    macro: float | None = None
    """Mean over the parts of one of the paper's tasks (prepared/aggregate.py). None for other tasks."""
    macro_error: float | None = None
    """Standard error of `macro`. Also None if a part has a single item."""


@dataclass(frozen=True, kw_only=True)
class FinalFailed(Event):
    """A policy could not be scored. The outcome is written without its score."""

    what: FinalWhat
    reason: str


@dataclass(frozen=True, kw_only=True)
class OutcomeWritten(Event):
    """strategy.yaml, best/ and the report were written. `problem` says what could not be written."""

    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class SearchAborted(Event):
    """The search was aborted for a reason outside its phases. Once that is fixed, the same command resumes
    it."""

    reason: str
    exit_code: int


# Subclasses of Event are found without registration. This clears a lookup made before this module was loaded.
@register_record
@dataclass(frozen=True, kw_only=True)
class SearchFinished(Event):
    """The search finished. The last event of a journal, unless the search is extended later."""

    reason: str
    """budget, exhausted, target, gpu_hours, compute, dollars, wall_clock or user."""
    best: int | None
    best_score: float | None


ENDS: tuple[type[Event], ...] = (SearchPaused, SearchAborted, SearchFinished)
"""Events with which a coordinator ends its work. Its slots are released and its time stops counting."""


def phase_ended(node: int, attempt: int, outcome: PhaseResult | PhaseFailure) -> Event:
    """Event for the end of a phase. Its source identifies repeated deliveries."""
    event: Event
    if isinstance(outcome, PhaseFailure):
        event = PhaseFailed(node=node, phase_attempt=attempt, failure=outcome)
    else:
        event = PhaseFinished(node=node, phase_attempt=attempt, result=outcome)
    return dataclasses.replace(event, source=f"phase:{node}", attempt=attempt, sequence=2)
