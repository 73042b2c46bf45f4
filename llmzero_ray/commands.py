"""What is to be done in a search.

A command is not stored: the core can always say which ones are outstanding, and each carries an `id`, so that
doing it again after a restart is harmless. Not here: what happens (events.py), deciding (coordinator/),
carrying out (actors/executor.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmzero_ray.events import FinalWhat
from llmzero_ray.records import Event, PhaseSpec, ResumeFrom


@dataclass(frozen=True, kw_only=True)
class Command:
    """Base of all commands: what the core wants done."""

    id: str
    """Makes a repeat after a replay harmless."""


@dataclass(frozen=True, kw_only=True)
class Record(Command):
    """Make an event durable that the core itself concluded, then handle it."""

    event: Event

    @classmethod
    def of(cls, key: str, event: Event) -> Record:
        """A conclusion; its key makes a second delivery of it known as one."""
        return cls(id=f"record-{key}", event=dataclasses.replace(event, source=f"core:{key}"))


@dataclass(frozen=True, kw_only=True)
class Propose(Command):
    """Ask the proposer for a phase of `node`, created from `on`."""

    node: int
    on: int
    from_scratch: bool
    rejected: str | None = None
    tries: int = 0


@dataclass(frozen=True, kw_only=True)
class Analyze(Command):
    """Ask the error analyzer for a fixed phase of `node`, created from the failed node `on`."""

    node: int
    on: int
    rejected: str | None = None
    tries: int = 0


@dataclass(frozen=True, kw_only=True)
class RunPhase(Command):
    """Train `spec` in `slot`; harmless when that runner knows the phase already."""

    slot: int
    spec: PhaseSpec


@dataclass(frozen=True, kw_only=True)
class StopPhase(Command):
    """End the phase of `node` in `slot` at its next step boundary; `reason` becomes its stop reason."""

    node: int
    slot: int
    phase_attempt: int
    reason: str
    deadline_s: float | None = None
    """Kill it after that many seconds; None: as the engine's own deadline says."""


@dataclass(frozen=True, kw_only=True)
class KillRunner(Command):
    """End a slot's runner by force: what it does is not going to end."""

    slot: int
    node: int
    phase_attempt: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class FitSlots(Command):
    """See that slots 0..count-1 have hardware and runners."""

    count: int


@dataclass(frozen=True, kw_only=True)
class CloseSlot(Command):
    """Give an idle slot back that is one too many."""

    slot: int


@dataclass(frozen=True, kw_only=True)
class DeleteCheckpoints(Command):
    """Delete adapters; harmless when they are gone."""

    items: tuple[ResumeFrom, ...]


@dataclass(frozen=True, kw_only=True)
class PushIncumbent(Command):
    """Tell the stopper whom running phases have to beat: `node`'s path curve."""

    node: int
    path: tuple[tuple[int, int | None, int], ...]
    """(node, last step of it that counts, its base step) along the resume chain, the first phase first."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(Command):
    """Score a policy on a split, once."""

    slot: int
    what: FinalWhat
    adapter: str | None
    split: str
    node: int | None
    step: int | None


@dataclass(frozen=True, kw_only=True)
class WriteOutcome(Command):
    """Write strategy.yaml, best/ and the report from the journal."""


@dataclass(frozen=True, kw_only=True)
class End(Command):
    """Close runners, give hardware back and leave; `exit_code` is for the command line."""

    reason: str
    exit_code: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)
