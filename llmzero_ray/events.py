"""What happens in a search.

An event is durable in the journal before anything acts on it; the journal of a search is the list of its
events, and feeding them to a fresh core gives the same search.

To add an event: subclass `Event` here, handle it in coordinator/core.py, and raise `journal.FORMAT` when an
older version could misread the result. Not here: what is to be done about it (commands.py), deciding
(coordinator/).
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
    StopDecision,
    register_record,
)

REFERENCE = -1
"""Node number of the default recipe trained in one phase after the search; not a node of the tree."""

BudgetKind: TypeAlias = Literal["gpu_hours", "wall_clock", "dollars"]
FinalWhat: TypeAlias = Literal["base", "best", "reference"]
"""Who is scored on the test split: the base model, the best strategy's adapter, the default recipe's best
adapter."""


@dataclass(frozen=True, kw_only=True)
class SearchStarted(Event):
    """The first event of a journal: configuration, task facts and versions."""

    config: Mapping[str, Any]
    """`SearchConfig.to_json()`."""
    task: Mapping[str, Any]
    """Facts of the prepared task: name, sizes, hashes of the splits, data sources, model."""
    root: Mapping[str, Any]
    """The root's complete hyper-parameters."""
    versions: Mapping[str, str]
    """Packages that can change results -> version."""
    agents: Mapping[str, Any] = field(default_factory=dict)
    """What language-model agents work with, frozen for the search: `prompts` (file -> text), `digest` (sha256
    over them), `price` (dollars per million tokens). Empty for other agents."""


@dataclass(frozen=True, kw_only=True)
class CoordinatorStarted(Event):
    """A coordinator took over (`epoch` 1 is the first one)."""

    epoch: int
    host: str
    pid: int
    previous_alive: float | None = None
    """Unix seconds of the last sign of life of the coordinator before."""


@dataclass(frozen=True, kw_only=True)
class SearchPaused(Event):
    """A person ended the processes and means to go on later: phases running now are repeated at no charge."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class SlotReady(Event):
    """A slot's hardware is reserved and its runner answers."""

    slot: int


@dataclass(frozen=True, kw_only=True)
class Decided(Event):
    """The rules chose: a run of kind `action` created from node `on`, to be trained in `slot`, or the end."""

    action: Literal["root", "evolve", "debug", "scratch", "stop"]
    on: int | None
    node: int | None
    """The new node; None for stop."""
    slot: int | None
    stop_reason: str | None
    seen: Mapping[str, Any]
    """All numbers the decision was based on (`search.Seen.to_dict()`)."""
    clone: str = ""
    """Source of the `CloneAsked` that this run carries out; empty: the rules chose."""


@dataclass(frozen=True, kw_only=True)
class Proposed(Event):
    """An agent answered; not validated yet."""

    node: int
    proposal: Proposal
    tries: int = 0
    """Answers to the same question that were refused before this one."""
    prefetched: bool = False
    """Whether it was asked for before the phase in front of it had ended, without its last steps."""


@dataclass(frozen=True, kw_only=True)
class ProposalFailed(Event):
    """An agent could not answer at all."""

    node: int
    reason: str
    tries: int = 0


@dataclass(frozen=True, kw_only=True)
class ProposalRefused(Event):
    """A proposal breaks a rule and goes back to the agent with the message."""

    node: int
    message: str
    tries: int
    """Refused answers so far, this one included."""


@dataclass(frozen=True, kw_only=True)
class PhasePlanned(Event):
    """A node's phase is settled: what trains, from where, for how long."""

    node: int
    slot: int
    spec: PhaseSpec
    proposal: Proposal | None
    """What it was made from; None for the root, the reference and when the agents gave nothing usable."""
    note: str = ""
    """What was changed on the way from proposal to spec, in a sentence; empty when nothing was."""


@dataclass(frozen=True, kw_only=True)
class PhaseStarted(Event):
    """A runner was handed the phase."""

    node: int
    slot: int
    phase_attempt: int


@dataclass(frozen=True, kw_only=True)
class PhaseFinished(Event):
    """A phase came to an end that is a success to the rules."""

    node: int
    phase_attempt: int
    result: PhaseResult


@dataclass(frozen=True, kw_only=True)
class PhaseFailed(Event):
    """A phase failed; data for the search."""

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
    """What the lost attempt left on the disk, in the form it takes if the phase is given up."""
    restart_step: int = 0
    """Step of the full checkpoint that a repeat would go on from; 0: from the phase's start."""


@dataclass(frozen=True, kw_only=True)
class VerdictPosted(Event):
    """The stopper judged a running phase; a CONTINUE is kept for the record."""

    node: int
    phase_attempt: int
    step: int
    """Step of the phase that the verdict saw last."""
    decision: StopDecision


@dataclass(frozen=True, kw_only=True)
class AgentCalled(Event):
    """A language model was asked; its price counts towards `budget.dollars`."""

    node: int
    agent: str
    """proposer, error_analyzer or early_stopper."""
    call: str
    """File of the record below the node's agents/, without its ending; empty: the process died in the
    call."""
    outcome: str
    """`ok`, or what went wrong (`deadline`, `refusal`, `schema`, `cap`, `lost`, ...)."""
    model: str
    prompt: str
    """sha256 of everything that was sent, pictures included."""
    input_tokens: int = 0
    """Neither read from nor written to the prompt cache."""
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    dollars: float = 0.0
    latency_s: float = 0.0
    n_attempts: int = 0
    """HTTP requests sent."""


@dataclass(frozen=True, kw_only=True)
class BudgetReached(Event):
    """A timer or a ledger found a limit reached."""

    kind: BudgetKind
    used: float
    limit: float


@dataclass(frozen=True, kw_only=True)
class RunnerSilent(Event):
    """A running phase has not moved for longer than can be explained: it is treated like a death."""

    slot: int
    node: int
    phase_attempt: int
    stage: str
    """What the engine was doing, or `runner` when the runner itself does not answer."""
    since_s: float
    limit_s: float


@dataclass(frozen=True, kw_only=True)
class SlotClosed(Event):
    """A slot was given back because `slots.count` was lowered."""

    slot: int


@dataclass(frozen=True, kw_only=True)
class CheckpointsDeleted(Event):
    """Adapters that were thinned out, written down before they are deleted."""

    items: tuple[ResumeFrom, ...]
    freed_bytes: int
    used_bytes: int
    """What all adapters took before."""
    limit_bytes: int


@dataclass(frozen=True, kw_only=True)
class CheckpointCorrupt(Event):
    """An adapter is not what was saved; nothing resumes from it any more."""

    node: int
    step: int
    problem: str


# --- what persons ask for while a search is at work: source `user:<id of the request>` ----------------------


@dataclass(frozen=True, kw_only=True)
class UserStop(Event):
    """A person ended the search."""

    reason: str
    deadline_s: float | None = None
    """Phases that have not ended by then are killed; None: `engine.stop_deadline_s` decides; 0: at once."""


@dataclass(frozen=True, kw_only=True)
class HintGiven(Event):
    """A person's advice to the proposer, shown with every later question."""

    text: str


@dataclass(frozen=True, kw_only=True)
class NodeVetoed(Event):
    """A person closed a subtree: nothing in it is expanded, what trains in it stops, no failure is
    charged."""

    node: int
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class CloneAsked(Event):
    """A person wants a node continued with these changes; trained in the next free slot."""

    of: int
    step: int | None
    """Saved step of `of` to go on from; None: its best one."""
    changes: Mapping[str, Any]
    """Hyper-parameter (VeRL key) -> value."""
    n_steps: int | None = None
    """Training steps; None: `phase.n_steps`."""


@dataclass(frozen=True, kw_only=True)
class SettingsChanged(Event):
    """A person changed what may be changed while a search goes on (`config_changes.CHANGEABLE`)."""

    changes: Mapping[str, Any]
    """Dotted key -> new value."""
    before: Mapping[str, Any]
    """The same keys -> old values."""


@dataclass(frozen=True, kw_only=True)
class RequestRefused(Event):
    """A person asked for something that cannot be done; nothing has changed."""

    kind: str
    message: str


@dataclass(frozen=True, kw_only=True)
class BackgroundTaskFailed(Event):
    """A periodic task of the coordinator raised an exception; it goes on. At most one a minute per task."""

    task: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class FinalScored(Event):
    """A policy was scored on the test split, for the only time."""

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
    """Mean over the parts of one of the paper's tasks (tasks/aggregate.py); None for other tasks."""
    macro_error: float | None = None
    """Its standard error; None too where a part has a single item."""


@dataclass(frozen=True, kw_only=True)
class FinalFailed(Event):
    """A final measurement could not be taken; the outcome goes without it."""

    what: FinalWhat
    reason: str


@dataclass(frozen=True, kw_only=True)
class OutcomeWritten(Event):
    """strategy.yaml, best/ and the report are on the disk; `problem` says what could not be written."""

    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class SearchAborted(Event):
    """Something that no phase can be blamed for ended the work; the same command resumes it once that is
    mended."""

    reason: str
    exit_code: int


# Subclasses of Event are found by themselves; this refreshes what was looked up before this module was there.
@register_record
@dataclass(frozen=True, kw_only=True)
class SearchFinished(Event):
    """The last event of a journal."""

    reason: str
    """budget, exhausted, target, gpu_hours, dollars, wall_clock or user."""
    best: int | None
    best_score: float | None


def phase_ended(node: int, attempt: int, outcome: PhaseResult | PhaseFailure) -> Event:
    """The event of a phase's end; a second delivery of it is known as one."""
    event: Event
    if isinstance(outcome, PhaseFailure):
        event = PhaseFailed(node=node, phase_attempt=attempt, failure=outcome)
    else:
        event = PhaseFinished(node=node, phase_attempt=attempt, result=outcome)
    return dataclasses.replace(event, source=f"phase:{node}", attempt=attempt, sequence=2)
