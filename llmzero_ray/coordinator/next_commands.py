"""Commands that are due in a state of the search.

These functions never change the state. Equal states give equal commands with equal ids.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from llmzero_ray.coordinator.price import a_step_fits
from llmzero_ray.coordinator.proposals import towards_plan
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.coordinator.state import SearchState
from llmzero_ray.coordinator.steering import clone_problem
from llmzero_ray.records import Event, RecordedStop
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.commands import Command


def next_commands(state: SearchState) -> list[Command]:
    """All commands that are due in this state, including those already executing."""
    if state.started is None:
        return []
    if state.interrupted is not None:
        reason, exit_code = state.interrupted
        return [cmd.End(id=f"end-{state.n_interruptions}", reason=reason, exit_code=exit_code)]
    if state.finished is not None:
        return [cmd.End(id=state.ending_key("end"), reason=state.finished.reason)]
    if state.end_reason is None:
        return [*_upkeep(state), *_while_searching(state)]
    if not state.final.done:
        return [*_upkeep(state), *state.final.commands(state.slots, lambda run: run_phase(state, run))]
    if not state.written:
        return [cmd.WriteOutcome(id=state.ending_key("write-outcome"))]
    if state.extension_wanted:
        return [cmd.Record.of(state.ending_key("extended"), ev.SearchExtended())]
    return [cmd.Record.of(state.ending_key("finished"), _conclusion(state, state.end_reason))]


def _upkeep(state: SearchState) -> Iterator[Command]:
    """Housekeeping: open and close slots, delete adapters, kill hanging attempts."""
    for number, deletion in enumerate(state.deletions):
        yield cmd.DeleteCheckpoints(id=f"delete-{number}", items=deletion.items)
    needed_late = state.slots_needed and state.config.slots.reserve == "when_needed"
    if state.n_settings or needed_late:
        fit_id = f"slots-{state.n_settings}" + "-needed" * needed_late
        yield cmd.FitSlots(id=fit_id, count=state.config.slots.count)
    wanted = state.wanted_slots
    for slot in state.slots:
        if slot.ready and slot.index not in wanted:
            yield cmd.CloseSlot(id=f"close-{slot.index}-{slot.generation}", slot=slot.index)
    for run in state.runs.values():
        if run.active and run.silent is not None:
            yield cmd.KillRunner(
                id=f"kill-{run.node}-{run.attempt}",
                node=run.node,
                slot=run.slot,
                phase_attempt=run.attempt,
                reason=f"no sign of life in stage {run.silent.stage} for {run.silent.since_s:.0f} s "
                f"(limit {run.silent.limit_s:.0f} s)",
            )


def _while_searching(state: SearchState) -> Iterator[Command]:
    for run in state.runs.values():
        if run.active:
            yield from _for_run(state, run)
    best = state.search.best
    if best is not None:
        cuts = state.search.cuts(best.id)
        path = tuple((cut.node, cut.step, state.runs[cut.node].base_step) for cut in cuts)
        yield cmd.PushIncumbent(id=f"incumbent-{state.n_ended}", node=best.id, path=path)
    decided = _next_decision(state)
    if decided is not None:
        yield decided


def _for_run(state: SearchState, run: PhaseRun) -> Iterator[Command]:
    slot = state.slots[run.slot]
    if run.stage == "proposing":
        command = towards_plan(state, run)
        if command is not None:
            yield command
    elif run.given_up:
        yield cmd.Record.of(f"lost-{run.node}-{run.attempt}", _give_up(run))
    elif slot.ready:
        yield run_phase(state, run)
        if run.stop_reason is not None:
            wait_s = state.stop_deadline_s
            yield cmd.StopPhase(
                id=f"stop-{run.node}-{run.attempt}" + ("" if wait_s is None else f"-{wait_s:g}"),
                node=run.node,
                slot=run.slot,
                phase_attempt=run.attempt,
                reason=run.stop_reason,
                deadline_s=wait_s,
            )


def _next_decision(state: SearchState) -> Command | None:
    """Decision for the first idle slot, or the end of the search if no phase trains any more."""
    training = any(run.active for run in state.runs.values())
    if state.ending is not None:
        return _refuse_clone(state, "no further run begins") or (
            None if training else _record_stop(state, state.ending)
        )
    slot = next((slot for slot in state.open_slots if slot.ready and slot.idle), None)
    if slot is None:
        return _need_slots(state)
    if state.clones:
        return _decide_clone(state, slot.index)
    decision = state.search.ask()
    if decision.action == "wait":
        return None
    if decision.action == "stop":
        return None if training else _record_stop(state, str(decision.stop_reason))
    if not a_step_fits(state, decision.on, state.config):
        return None if training else _end_by_compute(state)
    node = len(state.search.nodes)
    decided = ev.Decided(
        action=decision.action,
        on=decision.on,
        node=node,
        slot=slot.index,
        stop_reason=None,
        seen=decision.seen.to_dict(),
    )
    return cmd.Record.of(f"decide-{node}", decided)


def _need_slots(state: SearchState) -> Command | None:
    """Command to reserve the remaining slots. None unless a phase could begin and every reserved slot is
    busy."""
    if state.slots_needed or any(state.slots[index].idle for index in state.wanted_slots):
        return None
    if not state.clones and state.search.ask().action in ("wait", "stop"):
        return None
    return cmd.Record.of("slots-needed", ev.SlotsNeeded())


def _decide_clone(state: SearchState, slot: int) -> Command | None:
    """Start the oldest requested clone. Clones take precedence over the search method."""
    clone = state.clones[0]
    problem = clone_problem(state, clone)
    if problem is not None:
        return _refuse_clone(state, problem)
    node, seen = len(state.search.nodes), state.search.ask().seen.to_dict()
    decided = ev.Decided(
        action="evolve", on=clone.of, node=node, slot=slot, stop_reason=None, seen=seen, clone=clone.source
    )
    return cmd.Record.of(f"decide-{node}", decided)


def _refuse_clone(state: SearchState, why: str) -> Command | None:
    if not state.clones:
        return None
    clone = state.clones[0]
    return cmd.Record.of(
        f"clone-{clone.source}", ev.RequestRefused(kind="clone", message=f"clone of node {clone.of}: {why}")
    )


def _end_by_compute(state: SearchState) -> Command:
    """Command to end a search whose remaining compute does not pay for one validated step. It records an
    event, so that older journals, whose searches continued at this point, replay unchanged."""
    limit = state.config.budget.compute
    assert limit is not None
    reached = ev.BudgetReached(kind="compute", used=state.compute, limit=limit)
    return cmd.Record.of(f"compute-{limit:g}-{state.n_settings}", reached)


def _record_stop(state: SearchState, reason: str) -> Command:
    seen = state.search.ask().seen.to_dict()
    stop = ev.Decided(action="stop", on=None, node=None, slot=None, stop_reason=reason, seen=seen)
    return cmd.Record.of(state.ending_key("decide-stop"), stop)


def run_phase(state: SearchState, run: PhaseRun) -> Command:
    """Command to start a planned run in its slot, with paths in the search's current directory."""
    spec, paths = run.spec, state.paths
    assert spec is not None
    source = spec.resume_from
    spec = dataclasses.replace(
        spec,
        attempt=run.attempt,
        first_attempt=run.first_attempt,
        # Paths are set only now, because the search's directory may be moved after the run was planned.
        adapter=None if source is None else str(state.runs[source.node].adapter(paths, source.step)),
        checkpoint_dir=str(paths.checkpoints(run.node)),
        rolling_dir=str(paths.rolling(run.node, run.attempt)),
        rolling_freq=state.rolling_freq,
        restore=run.attempt > run.first_attempt,
        known_start=state.planner.known_start(spec),
        stop_after=_recorded_stop(state, run.node),
    )
    generation = state.slots[run.slot].generation
    run_id = f"run-{run.node}-{run.attempt}-{generation}-{run.replanned}"
    return cmd.RunPhase(id=run_id, slot=run.slot, spec=spec)


def _recorded_stop(state: SearchState, node: int) -> RecordedStop | None:
    found = (state.started.agents if state.started is not None else {}).get("stops", {}).get(str(node))
    return None if found is None else RecordedStop(step=int(found[0]), reason=str(found[1]))


def _give_up(run: PhaseRun) -> Event:
    left = run.salvaged
    assert left is not None
    if run.stop_reason is not None and left.failure_class != "timeout":
        return ev.PhaseFinished(node=run.node, phase_attempt=run.attempt, result=run.as_ended())
    return ev.PhaseFailed(node=run.node, phase_attempt=run.attempt, failure=left)


def _conclusion(state: SearchState, reason: str) -> Event:
    best = state.best
    return ev.SearchFinished(
        reason=reason,
        best=None if best is None else best.node,
        best_score=None if best is None else best.score,
    )
