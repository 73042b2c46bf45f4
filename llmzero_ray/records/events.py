"""The events of a search.

An event is durable in the journal before anything acts on it; the journal of a search is the list of its
events, and replaying them in a new core gives the same state.

To add an event: subclass `Event` here, handle it in coordinator/core.py, and raise `journal.FORMAT` when an
older version could misread the result.
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
"""Node number of the default recipe trained in one phase after the search; not a node of the tree."""

BudgetKind: TypeAlias = Literal["gpu_hours", "wall_clock", "dollars", "compute"]
FinalWhat: TypeAlias = str
"""Policies evaluated after the search: `base` (the base model), `best` (the best strategy's adapter),
`reference` (the reference's best adapter), `node-N` (a node's best step) on the test split; `confirm-N` (a
node's best step) on fresh validation items."""


@dataclass(frozen=True, kw_only=True)
class InitializationStarted(Event):
    """First event of a search that begins with a folder of data: the source of its task's draft. Another one
    follows if the user changes the decisions."""

    folder: str
    sentence: str
    choices: Mapping[str, Any]
    """Decisions of the user, those that were made (fields of `agents.drafting.base.UserChoices`)."""
    backend: str
    """`agents.backend`."""
    prompts: str
    """SHA-256 over the templates of the initialization agents. Empty if rules answer."""


@dataclass(frozen=True, kw_only=True)
class TaskDrafted(Event):
    """The initialization agents have drafted task and configuration."""

    files: Mapping[str, str]
    """File below initialization/ -> sha256."""
    found: tuple[str, ...]
    """Their findings and decisions, a line each."""
    problems: tuple[str, ...]
    """Open questions and defects, one line each. Empty if it can be trained."""


@dataclass(frozen=True, kw_only=True)
class InitializationConfirmed(Event):
    """The user wants this task to be trained."""

    by: Literal["terminal", "yes"]
    """Source of the consent: at the terminal, or with --yes."""
    files: Mapping[str, str]
    """File below initialization/ -> sha256, edits of the user included."""


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
    """Facts of the agents, frozen for the search. Of a language model: `prompts` (file -> text), `digest`
    (sha256 over them), `price` (dollars per million tokens)."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """Facts by which phases are judged before they begin: `gpu_gib` (of one GPU) and `shape` (of the model).
    Empty: none is."""


@dataclass(frozen=True, kw_only=True)
class CoordinatorStarted(Event):
    """A coordinator took over. Epochs count writers of the journal, commands that initialize a search
    included."""

    epoch: int
    host: str
    pid: int
    previous_alive: float | None = None
    """Unix seconds of the previous coordinator's last heartbeat."""


@dataclass(frozen=True, kw_only=True)
class SearchPaused(Event):
    """The user paused the search: phases running now are repeated later without counting as lost."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class SlotReady(Event):
    """A slot's hardware is reserved and its runner answers."""

    slot: int


@dataclass(frozen=True, kw_only=True)
class Decided(Event):
    """A decision of the rules: a run of kind `action` created from node `on`, to be trained in `slot`, or the
    end."""

    action: Literal["root", "evolve", "debug", "scratch", "stop"]
    on: int | None
    node: int | None
    """The new node; None for stop."""
    slot: int | None
    stop_reason: str | None
    seen: Mapping[str, Any]
    """All numbers the decision was based on (`search.Seen.to_dict()`)."""
    clone: str = ""
    """Source of the `CloneAsked` that this run carries out. Empty if the rules chose."""


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
    """A proposal breaks a rule and is rejected with the message for the agent."""

    node: int
    message: str
    tries: int
    """Rejected proposals so far, this one included."""


@dataclass(frozen=True, kw_only=True)
class ApprovalAsked(Event):
    """A proposal that keeps all rules waits for a person (`agents.approve`)."""

    node: int
    tries: int
    """Rejected proposals for the same request before this one."""
    spec: PhaseSpec
    """The phase, if it is accepted as it is."""
    price: str = ""
    """Its expected cost, as a phrase. Empty if it is not known."""


@dataclass(frozen=True, kw_only=True)
class PhasePlanned(Event):
    """A node's phase has its spec: configuration, resume source, length."""

    node: int
    slot: int
    spec: PhaseSpec
    proposal: Proposal | None
    """The proposal behind it; None for the root, the reference, and without a usable proposal."""
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
    """A phase ended successfully."""

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
    """A slot's runner is gone: its process, its machine or its engine."""

    slot: int
    node: int | None
    """The phase it was training, if any."""
    phase_attempt: int
    reason: str
    salvaged: PhaseFailure | None = None
    """Saved part of the lost attempt, as the outcome of the phase if it is not repeated."""
    restart_step: int = 0
    """Step of the full checkpoint from which a retry would continue. 0 for the phase's start."""
    avoided: str | None = None
    """Ray's id (hex) of the slot's machine, when a card failed there: nothing is requested on it any more."""


@dataclass(frozen=True, kw_only=True)
class VerdictPosted(Event):
    """The stopper judged a running phase; a CONTINUE is kept for the record."""

    node: int
    phase_attempt: int
    step: int
    """Last step of the phase that the verdict is based on."""
    decision: StopDecision
    saves: Saving | None = None
    """Savings of a stop; None if nobody computed them."""


@dataclass(frozen=True, kw_only=True)
class AgentCalled(Event):
    """A call of a language model; its cost counts towards `budget.dollars`."""

    node: int
    agent: str
    """proposer, error_analyzer or early_stopper; before the search task_descriptor, reward_writer or
    tool_selector."""
    call: str
    """File of the record below the node's agents/, without its suffix. Empty if there is none, because the
    process died in the call, or it only checked the server."""
    outcome: str
    """`ok`, or the kind of failure (`deadline`, `refusal`, `schema`, `cap`, `lost`, ...)."""
    model: str
    prompt: str
    """sha256 of everything that was sent, figures included."""
    input_tokens: int = 0
    """Neither read from nor written to the prompt cache."""
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    dollars: float = 0.0
    latency_s: float = 0.0
    n_attempts: int = 0
    """HTTP requests sent."""
    estimated: bool = False
    """Whether tokens and dollars are a worst case, at least in part: the server reported no usage, or more
    than the call can have used."""
    reservations: tuple[str, ...] = ()
    """Ids of the `CallReserved` events that this call settles."""


CallHolder: TypeAlias = Literal["coordinator", "stopper"]
"""The process that makes a call; before the search starts, the command that initializes it counts as the
coordinator."""


@dataclass(frozen=True, kw_only=True)
class CallReserved(Event):
    """A request to a language model is about to be sent. Its maximum cost is reserved from `budget.dollars`
    until an `AgentCalled` settles it."""

    node: int
    agent: str
    holder: CallHolder
    reservation: str
    """Its id."""
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
    """A budget limit is reached."""

    kind: BudgetKind
    used: float
    limit: float


@dataclass(frozen=True, kw_only=True)
class RunnerSilent(Event):
    """A running phase hangs; its runner is treated as lost."""

    slot: int
    node: int
    phase_attempt: int
    stage: str
    """The engine's stage, or `runner` when the runner itself does not respond."""
    since_s: float
    limit_s: float


@dataclass(frozen=True, kw_only=True)
class SlotClosed(Event):
    """A slot was given back because `slots.count` was lowered, or nothing was left that it could do."""

    slot: int


@dataclass(frozen=True, kw_only=True)
class SlotsNeeded(Event):
    """A phase can begin and no slot is idle: with `slots.reserve: when_needed` all slots are reserved now."""


@dataclass(frozen=True, kw_only=True)
class CheckpointsDeleted(Event):
    """Adapters chosen for deletion; recorded before they are deleted."""

    items: tuple[ResumeFrom, ...]
    freed_bytes: int
    used_bytes: int
    """Bytes of all adapters before."""
    limit_bytes: int


@dataclass(frozen=True, kw_only=True)
class CheckpointCorrupt(Event):
    """A saved adapter is corrupt; nothing resumes from it any more."""

    node: int
    step: int
    problem: str
    found_by: int | None = None
    """Node whose phase was to resume from it."""


# --- what persons ask for while a search is at work: source `user:<id of the request>` ----------------------


@dataclass(frozen=True, kw_only=True)
class UserStop(Event):
    """The user stopped the search."""

    reason: str
    deadline_s: float | None = None
    """Seconds after which running phases are killed. If None, `engine.stop_deadline_s` applies; 0 kills at
    once."""


@dataclass(frozen=True, kw_only=True)
class HintGiven(Event):
    """A hint of the user to the proposer, part of every later request."""

    text: str


@dataclass(frozen=True, kw_only=True)
class NodeVetoed(Event):
    """The user vetoed a node: its subtree is not expanded, running phases in it stop, no failure counts."""

    node: int
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class CloneAsked(Event):
    """The user requested a clone of a node with these changes; trained in the next free slot."""

    of: int
    step: int | None
    """Saved step of `of` to resume from. If None, its best one."""
    changes: Mapping[str, Any]
    """Hyper-parameter (VeRL key) -> value."""
    n_steps: int | None = None
    """Training steps. If None, `phase.n_steps`."""


@dataclass(frozen=True, kw_only=True)
class ApprovalAnswered(Event):
    """The user accepted, edited or refused a proposal that waits; or nobody did by its deadline (source
    `timer:...`), which accepts it."""

    node: int
    tries: int
    """Rejected proposals for the same request before this one."""
    accepted: bool
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Hyper-parameter (VeRL key) -> value that replaces or adds to those of the proposal."""
    n_steps: int | None = None
    """Training steps. If None, those of the proposal."""
    reason: str = ""

    @property
    def edits(self) -> bool:
        """Whether the proposal is changed."""
        return bool(self.changes) or self.n_steps is not None


@dataclass(frozen=True, kw_only=True)
class SettingsChanged(Event):
    """The user changed settings that may change in a running search (`config.changes.CHANGEABLE`)."""

    changes: Mapping[str, Any]
    """Dotted key -> new value."""
    before: Mapping[str, Any]
    """Same keys -> old values."""


@dataclass(frozen=True, kw_only=True)
class SearchExtended(Event):
    """A search that had ended continues, because the user raised a limit. Its outcome is written again at the
    next end."""

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
    """A policy was scored on the test split, or on fresh validation items (`split`): once, also in a search
    that is extended."""

    what: FinalWhat
    split: str
    n: int
    """Items."""
    mean: float
    """Mean accuracy."""
    standard_error: float
    adapter: str | None
    node: int | None
    """Node whose adapter it is (`REFERENCE` for the default recipe); None for the base model."""
    step: int | None
    macro: float | None = None
    """Mean over the parts of one of the paper's tasks (prepared/aggregate.py); None for other tasks."""
    macro_error: float | None = None
    """Its standard error; None too where a part has a single item."""


@dataclass(frozen=True, kw_only=True)
class FinalFailed(Event):
    """A policy could not be scored; the outcome is written without its score."""

    what: FinalWhat
    reason: str


@dataclass(frozen=True, kw_only=True)
class OutcomeWritten(Event):
    """strategy.yaml, best/ and the report are written. `problem` names what could not be written."""

    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class SearchAborted(Event):
    """The search was aborted for a reason outside its phases; the same command resumes it once that is
    fixed."""

    reason: str
    exit_code: int


# Subclasses of Event are found by themselves; this refreshes what was looked up before this module was there.
@register_record
@dataclass(frozen=True, kw_only=True)
class SearchFinished(Event):
    """The last event of a journal, unless the search is extended later."""

    reason: str
    """budget, exhausted, target, gpu_hours, compute, dollars, wall_clock or user."""
    best: int | None
    best_score: float | None


ENDS: tuple[type[Event], ...] = (SearchPaused, SearchAborted, SearchFinished)
"""With one of these a coordinator ends its work: its slots are released, its time is over."""


def phase_ended(node: int, attempt: int, outcome: PhaseResult | PhaseFailure) -> Event:
    """The event of a phase's end, with a source that identifies repeated deliveries."""
    event: Event
    if isinstance(outcome, PhaseFailure):
        event = PhaseFailed(node=node, phase_attempt=attempt, failure=outcome)
    else:
        event = PhaseFinished(node=node, phase_attempt=attempt, result=outcome)
    return dataclasses.replace(event, source=f"phase:{node}", attempt=attempt, sequence=2)
