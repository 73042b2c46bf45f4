"""Commands of the core to its executor.

Commands are not stored, because the core can always compute the outstanding ones. Each has an `id`, so that
repeating it after a restart is harmless.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from llmzero_ray.records import Event, PhaseSpec, ResumeFrom
from llmzero_ray.records.events import FinalWhat


@dataclass(frozen=True, kw_only=True)
class Command:
    """Base of all commands."""

    id: str
    """Identifies repetitions of the command. Equal states give equal ids."""


@dataclass(frozen=True, kw_only=True)
class Record(Command):
    """Record an event that the core itself concluded, then handle it."""

    event: Event

    @classmethod
    def of(cls, key: str, event: Event) -> Record:
        """Command for a conclusion. The journal drops a second event with the same key."""
        return cls(id=f"record-{key}", event=dataclasses.replace(event, source=f"core:{key}"))


@dataclass(frozen=True, kw_only=True)
class Propose(Command):
    """Ask the proposer for the phase of `node`, which was created from `on`."""

    node: int
    on: int
    from_scratch: bool
    rejected: str | None = None
    tries: int = 0


@dataclass(frozen=True, kw_only=True)
class Analyze(Command):
    """Ask the error analyzer for the phase of `node`, which fixes the failed node `on`."""

    node: int
    on: int
    rejected: str | None = None
    tries: int = 0


@dataclass(frozen=True, kw_only=True)
class RunPhase(Command):
    """Train `spec` in `slot`. Harmless if the runner already knows the phase."""

    slot: int
    spec: PhaseSpec


@dataclass(frozen=True, kw_only=True)
class StopPhase(Command):
    """End the phase of `node` in `slot` at its next step boundary. `reason` becomes its stop reason."""

    node: int
    slot: int
    phase_attempt: int
    reason: str
    deadline_s: float | None = None
    """Seconds after which it is killed. If None, twice `engine.stop_deadline_s`."""


@dataclass(frozen=True, kw_only=True)
class KillRunner(Command):
    """Kill a slot's runner because its work hangs."""

    slot: int
    node: int
    phase_attempt: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class FitSlots(Command):
    """Provide slots 0..count-1 with hardware and runners."""

    count: int


@dataclass(frozen=True, kw_only=True)
class CloseSlot(Command):
    """Close a surplus idle slot."""

    slot: int


@dataclass(frozen=True, kw_only=True)
class DeleteCheckpoints(Command):
    """Delete adapters. Harmless if they are gone."""

    items: tuple[ResumeFrom, ...]


@dataclass(frozen=True, kw_only=True)
class PushIncumbent(Command):
    """Send the incumbent `node`, which running phases have to beat, to the stopper."""

    node: int
    path: tuple[tuple[int, int | None, int], ...]
    """(node, last step of it that counts, its base step) along the resume chain, base first."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(Command):
    """Score a policy on a split, once."""

    slot: int
    what: FinalWhat
    adapter: str | None
    split: str
    node: int | None
    step: int | None
    extension: int = 0
    """Number of earlier extensions of the search."""


@dataclass(frozen=True, kw_only=True)
class WriteOutcome(Command):
    """Write strategy.yaml, best/ and the report from the journal."""


@dataclass(frozen=True, kw_only=True)
class End(Command):
    """Close runners, release hardware and end the coordinator. `exit_code` is that of the command line."""

    reason: str
    exit_code: int = 0
