"""Costs of a search, as values and as tables: wall-clock time and the share spent in phases, GPU hours, warm
and cold starts.

All are computed from event times and the phases' reports.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from statistics import median

from llmzero_ray.coordinator.meter import Meter, gone_since
from llmzero_ray.coordinator.steering import measures_alone
from llmzero_ray.journal import ActiveTime, active_seconds
from llmzero_ray.records import Event, PhaseFailure, PhaseResult
from llmzero_ray.records import events as ev
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.report import formatting as fmt
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.utils import text


@dataclass(frozen=True, kw_only=True)
class Stay:
    """Time of a phase in its slot, from when its runner received it, in Unix seconds. A long time without a
    coordinator divides it in two."""

    node: int
    slot: int
    begin: float
    end: float
    lost: bool = False
    """Whether the phase's hardware was lost, so that it was retried or given up."""


@dataclass(kw_only=True)
class _Clock:
    """Reads stays from events."""

    void: Collection[tuple[int, int]]
    """As in `stays_of`."""
    stays: list[Stay] = field(default_factory=list)
    _open: dict[int, list[Stay]] = field(default_factory=dict)
    """Parts of each stay that has not ended. The end of the last one is not known yet."""

    def add_event(self, event: Event) -> None:
        match event:
            case ev.PhaseStarted() if (event.node, event.phase_attempt) not in self.void:
                # A new coordinator records the start of a running phase again.
                part = Stay(node=event.node, slot=event.slot, begin=event.time, end=event.time)
                self._open.setdefault(event.node, [part])
            case ev.CoordinatorStarted():
                self._leave_gap_out(event)
            case ev.PhaseFinished() | ev.PhaseFailed():
                self.close(event.node, event.time)
            case ev.RunnerLost() if event.node is not None:
                self.close(event.node, event.time, lost=True)
            case ev.SearchPaused() | ev.SearchAborted():
                self.close_all(event.time)
            case _:
                pass

    def _leave_gap_out(self, event: ev.CoordinatorStarted) -> None:
        gone = gone_since(event)
        if gone is None:
            return
        for parts in self._open.values():
            parts[-1] = replace(parts[-1], end=max(parts[-1].begin, gone))
            parts.append(replace(parts[-1], begin=event.time))

    def close(self, node: int, end: float, *, lost: bool = False) -> None:
        parts = self._open.pop(node, [])
        parts[-1:] = [replace(part, end=end) for part in parts[-1:]]
        self.stays += [replace(part, lost=lost) for part in parts]

    def close_all(self, end: float) -> None:
        for node in list(self._open):
            self.close(node, end)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Time spent by one search, in seconds unless the name says otherwise."""

    wall_s: float
    """Wall-clock time with a live coordinator, over all coordinator processes."""
    until_ready_s: float
    """Time from the first event until the first slot could train."""
    search_s: float
    """Time from then until the decision to end, or until the last event so far."""
    busy_s: float
    """Seconds with at least one phase in its slot."""
    after_s: float
    """Time for test scores and the default recipe in one phase."""
    lost_s: float
    """Time in phases whose hardware was lost."""
    gpu_hours: float
    """GPU hours of the tree's phases."""
    reference_gpu_hours: float
    reserved_gpu_hours: float
    """GPU hours for which slots were reserved, busy or idle."""
    cpu_hours: float
    """CPU hours during `gpu_hours` and `reference_gpu_hours`: these, times the CPUs per GPU."""
    on_cpu: bool
    """Whether the GPUs were logical ones on a machine without GPUs."""
    phases: int
    warm: int
    cold: int
    warm_setups_s: tuple[float, ...]
    cold_setups_s: tuple[float, ...]

    @property
    def between_s(self) -> float:
        """Seconds of the search without a running phase: decisions, agents, the journal, starting and
        stopping runners."""
        return max(0.0, self.search_s - self.busy_s)


def _reserved(events: Sequence[Event], n_gpus: int) -> float:
    meter = Meter(n_gpus)
    for event in events:
        meter.take(event)
    return meter.gpu_hours(events[-1].time)


def costs(facts: SearchFacts) -> Costs:
    """Costs of a search so far."""
    events = _until_written(facts.events)
    stays = stays_of(events, facts.core.void_starts)
    wall_s, after_s, until_ready_s = active_seconds(events), _after_s(events), _until_ready_s(events)
    outcomes = [run.outcome for run in facts.core.runs.values() if run.outcome is not None]
    results = [outcome for outcome in outcomes if isinstance(outcome, PhaseResult)]
    reference_hours = facts.core.reference_gpu_hours
    hours = facts.core.gpu_hours + reference_hours
    return Costs(
        wall_s=wall_s,
        until_ready_s=until_ready_s,
        search_s=max(0.0, wall_s - after_s - until_ready_s),
        busy_s=_covered(stay for stay in stays if stay.node != REFERENCE),
        after_s=after_s,
        lost_s=sum(stay.end - stay.begin for stay in stays if stay.lost),
        gpu_hours=facts.core.gpu_hours,
        reference_gpu_hours=reference_hours,
        reserved_gpu_hours=_reserved(events, facts.config.slots.n_gpus),
        cpu_hours=hours * facts.config.slots.cpus_per_gpu,
        on_cpu=_on_cpu(facts),
        phases=len(outcomes),
        warm=sum(outcome.warm for outcome in outcomes),
        cold=sum(not outcome.warm for outcome in outcomes),
        warm_setups_s=tuple(result.setup_s for result in results if result.warm),
        cold_setups_s=tuple(result.setup_s for result in results if not result.warm),
    )


def all_stays(facts: SearchFacts) -> tuple[Stay, ...]:
    """All stays of a search's phases in slots so far, without starts of phases that never ran."""
    return stays_of(facts.events, facts.core.void_starts)


def stays_of(events: Iterable[Event], void: Collection[tuple[int, int]] = ()) -> tuple[Stay, ...]:
    """All stays of phases in slots. A stay that has not ended lasts until the last event. `void` are the
    starts of phases that never ran (`SearchState.void_starts`)."""
    clock, last = _Clock(void=void), 0.0
    for event in events:
        clock.add_event(event)
        last = event.time
    clock.close_all(last)
    return tuple(clock.stays)


def cold_reason(outcome: PhaseResult | PhaseFailure) -> str:
    """`warm`, or `cold` with the reason: `cold (REASON)`."""
    if outcome.warm:
        return "warm"
    return f"cold ({outcome.cold_reason})" if outcome.cold_reason else "cold"


def _until_written(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Events until the outcome was written, after an extension if there was one. Later events must not change
    an outcome that is written again."""
    begin = max((n for n, event in enumerate(events) if isinstance(event, ev.SearchExtended)), default=0)
    rest = takewhile(lambda event: not isinstance(event, ev.OutcomeWritten), events[begin:])
    return (*events[:begin], *rest)


def _until_ready_s(events: tuple[Event, ...]) -> float:
    """Seconds from the first event until the first slot was ready, or until the last event if none was. Time
    without a coordinator does not count if there were several before."""
    first = next((place for place, e in enumerate(events) if isinstance(e, ev.SlotReady)), len(events))
    before = events[: first + 1]
    if sum(isinstance(event, ev.CoordinatorStarted) for event in before) > 1:
        return active_seconds(before)
    return before[-1].time - next(e.time for e in before if isinstance(e, ev.SearchStarted))


def _after_s(events: tuple[Event, ...]) -> float:
    """Seconds of work after decisions to end, each up to the search's extension if there was one."""
    clock, stopped, total = ActiveTime(), None, 0.0
    for event in events:
        clock.take(event)
        if isinstance(event, ev.Decided) and event.action == "stop":
            stopped = clock.seconds()
        elif isinstance(event, ev.SearchExtended) and stopped is not None:
            total, stopped = total + clock.seconds() - stopped, None
            if measures_alone(event.changes):
                stopped = clock.seconds()
    return total if stopped is None else total + clock.seconds() - stopped


def _covered(stays: Iterable[Stay]) -> float:
    """Seconds covered by at least one stay."""
    total, reached = 0.0, float("-inf")
    for stay in sorted(stays, key=lambda stay: stay.begin):
        total += max(0.0, stay.end - max(stay.begin, reached))
        reached = max(reached, stay.end)
    return total


def _on_cpu(facts: SearchFacts) -> bool:
    """Whether the search ran on the CPU, according to its configuration or, for `auto`, its build of
    torch."""
    platform = facts.config.engine.platform
    return platform == "cpu" or (platform == "auto" and facts.versions.get("torch", "").endswith("+cpu"))


def account_table(account: Costs) -> str:
    """Table of wall-clock time and hardware hours."""
    return fmt.table(("what", "how much"), _rows(account))


def _rows(account: Costs) -> list[tuple[str, str]]:
    total = account.gpu_hours + account.reference_gpu_hours
    rows = [
        ("wall clock, with a coordinator at work", text.duration(account.wall_s)),
        ("until the first slot was ready", text.duration(account.until_ready_s)),
        ("search, from then until the decision to end", text.duration(account.search_s)),
        (
            "of the search, with a phase in a slot",
            f"{text.duration(account.busy_s)} ({fmt.share(account.busy_s, account.search_s)})",
        ),
        (
            "of the search, between phases",
            f"{text.duration(account.between_s)} ({fmt.share(account.between_s, account.search_s)})",
        ),
    ]
    if account.after_s > 0:
        rows.append(("after it: default recipe, test scores, this report", text.duration(account.after_s)))
    rows += [
        ("GPU hours, phases of the search", fmt.hours(account.gpu_hours)),
        ("GPU hours, default recipe for comparison", fmt.hours(account.reference_gpu_hours)),
        ("GPU hours, together", fmt.hours(total)),
        ("CPU hours reserved with them", fmt.hours(account.cpu_hours)),
        ("GPU hours reserved, idle ones included", fmt.hours(account.reserved_gpu_hours)),
        ("GPU hours reserved and idle", fmt.hours(max(0.0, account.reserved_gpu_hours - total))),
    ]
    if account.lost_s > 0:
        rows.append(("lost with hardware, repeated or given up", text.duration(account.lost_s)))
    return rows


def call_table(calls: Sequence[ev.AgentCalled]) -> str:
    """Table of language-model calls by agent."""
    header = ("agent", "calls", "without an answer", "input", "of it cached", "output", "dollars")
    names = [*dict.fromkeys(call.agent for call in calls)]
    rows = [_calls_row(name, [call for call in calls if call.agent == name]) for name in names]
    if len(names) > 1:
        rows.append(_calls_row("together", calls))
    return fmt.table(header, rows)


def _calls_row(name: str, calls: Sequence[ev.AgentCalled]) -> tuple[str, ...]:
    cached = sum(call.cache_read_tokens for call in calls)
    sent = cached + sum(call.input_tokens + call.cache_creation_tokens for call in calls)
    return (
        name.replace("_", " "),
        str(len(calls)),
        str(sum(call.outcome != "ok" for call in calls)),
        str(sent),
        str(cached),
        str(sum(call.output_tokens for call in calls)),
        f"{sum(call.dollars for call in calls):.4f}",
    )


def median_setups(account: Costs) -> str:
    """`0.6 s warm, 48 s cold`: median set-up times. Empty if there was no set-up."""
    kinds = (("warm", account.warm_setups_s), ("cold", account.cold_setups_s))
    return ", ".join(f"{text.duration(median(times))} {name}" for name, times in kinds if times)


def phase_table(facts: SearchFacts) -> str:
    """Table of each phase's time and start. Empty without phases."""
    rows = []
    for run in facts.core.runs.values():
        outcome = run.outcome
        if outcome is None:
            continue
        result = outcome if isinstance(outcome, PhaseResult) else None
        rows.append(
            (
                "default recipe" if run.node == REFERENCE else str(run.node),
                str(outcome.steps_done),
                text.duration(outcome.wall_s),
                fmt.NONE if result is None else text.duration(result.setup_s),
                fmt.NONE if result is None else text.duration(result.train_wall_s),
                fmt.hours(outcome.gpu_hours),
                cold_reason(outcome),
            )
        )
    header = ("node", "steps", "wall clock", "set-up", "training", "GPU hours", "start")
    return fmt.table(header, rows, right=(0, 1, 2, 3, 4, 5)) if rows else ""
