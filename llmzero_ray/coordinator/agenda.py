"""What is to be done in a search, from its state alone.

Nothing here changes the state: the same state always gives the same commands with the same ids. Not here:
what events change (core.py), plans (plan.py), the measurements after the search (final.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from llmzero_ray import commands as cmd
from llmzero_ray import events as ev
from llmzero_ray.commands import Command
from llmzero_ray.coordinator.plan import MAX_REFUSALS
from llmzero_ray.coordinator.state import Run
from llmzero_ray.coordinator.steering import clone_problem
from llmzero_ray.errors import ProposalError
from llmzero_ray.records import Event, PhaseSpec, Proposal

if TYPE_CHECKING:
    from llmzero_ray.coordinator.core import CoordinatorCore


def agenda(core: CoordinatorCore) -> list[Command]:
    """Everything that is to be done as things stand, things under way included."""
    if core.started is None:
        return []
    if core.interrupted is not None:
        reason, exit_code = core.interrupted
        return [cmd.End(id=f"end-{core.n_interruptions}", reason=reason, exit_code=exit_code)]
    if core.finished is not None:
        return [cmd.End(id="end", reason=core.finished.reason)]
    if core.end_reason is None:
        return [*_upkeep(core), *_while_searching(core)]
    if not core.final.done:
        return [*_upkeep(core), *core.final.commands(core.slots, lambda run: run_phase(core, run))]
    if not core.written:
        return [cmd.WriteOutcome(id="write-outcome")]
    return [record("finished", _conclusion(core, core.end_reason))]


def _upkeep(core: CoordinatorCore) -> Iterator[Command]:
    """Slots as many as there are to be, no adapter that was thinned out, no run that hangs."""
    for number, deletion in enumerate(core.deletions):
        yield cmd.DeleteCheckpoints(id=f"delete-{number}", items=deletion.items)
    if core.n_settings:
        yield cmd.FitSlots(id=f"slots-{core.n_settings}", count=core.config.slots.count)
    for slot in core.slots[core.config.slots.count :]:
        if slot.ready and slot.idle:
            yield cmd.CloseSlot(id=f"close-{slot.index}-{slot.generation}", slot=slot.index)
    for run in core.runs.values():
        if run.active and run.silent is not None:
            yield cmd.KillRunner(
                id=f"kill-{run.node}-{run.attempt}",
                node=run.node,
                slot=run.slot,
                phase_attempt=run.attempt,
                reason=f"no sign of life in stage {run.silent.stage} for {run.silent.since_s:.0f} s "
                f"(limit {run.silent.limit_s:.0f} s)",
            )


def _while_searching(core: CoordinatorCore) -> Iterator[Command]:
    for run in core.runs.values():
        if run.active:
            yield from _for_run(core, run)
    best = core.tree.best
    if best is not None:
        cuts = core.tree.recipe(best.id)
        path = tuple((cut.node, cut.step, core.runs[cut.node].base_step) for cut in cuts)
        yield cmd.PushIncumbent(id=f"incumbent-{core.n_ended}", node=best.id, path=path)
    decided = _next_decision(core)
    if decided is not None:
        yield decided


def _for_run(core: CoordinatorCore, run: Run) -> Iterator[Command]:
    slot = core.slots[run.slot]
    if run.stage == "proposing":
        yield _towards_plan(core, run)
    elif run.given_up:
        yield record(f"lost-{run.node}-{run.attempt}", _give_up(run))
    elif slot.ready:
        yield run_phase(core, run)
        if run.stop_reason is not None:
            wait_s = core.stop_deadline_s
            yield cmd.StopPhase(
                id=f"stop-{run.node}-{run.attempt}" + ("" if wait_s is None else f"-{wait_s:g}"),
                node=run.node,
                slot=run.slot,
                phase_attempt=run.attempt,
                reason=run.stop_reason,
                deadline_s=wait_s,
            )


def _towards_plan(core: CoordinatorCore, run: Run) -> Command:
    """The next step from "a run of this kind" to a spec."""
    if run.kind == "root":
        return _record_plan(run, core.planner.root_phase(), None, "")
    if run.no_answer is not None or run.tries >= (MAX_REFUSALS if run.clone is None else 1):
        why = run.no_answer or f"{run.tries} proposals were refused, the last one: {run.rejected}"
        note = f"{why}. The parent's own configuration is continued."
        return _record_plan(run, core.planner.fallback(run, core.offered(run.node)), None, note)
    if run.answer is not None:
        return _judge(core, run, run.answer)
    assert run.on is not None
    ask_id, rejected = f"propose-{run.node}-{run.tries}", run.rejected
    if run.kind == "debug":
        return cmd.Analyze(id=ask_id, node=run.node, on=run.on, rejected=rejected, tries=run.tries)
    scratch = run.kind == "scratch"
    return cmd.Propose(
        id=ask_id, node=run.node, on=run.on, from_scratch=scratch, rejected=rejected, tries=run.tries
    )


def _judge(core: CoordinatorCore, run: Run, proposal: Proposal) -> Command:
    try:
        planned = core.planner.proposed_phase(run, proposal, core.offered(run.node))
    except ProposalError as error:
        tries = run.tries + 1
        refused = ev.ProposalRefused(node=run.node, message=str(error), tries=tries)
        return record(f"refuse-{run.node}-{tries}", refused)
    return _record_plan(run, planned.spec, proposal, planned.note)


def _next_decision(core: CoordinatorCore) -> Command | None:
    """One decision for the first slot that waits for one; the end when nothing trains any more."""
    training = any(run.active for run in core.runs.values())
    if core.ending is not None:
        return _refuse_clone(core, "no further run begins") or (
            None if training else _record_stop(core, core.ending)
        )
    slot = next((slot for slot in core.open_slots if slot.ready and slot.idle), None)
    if slot is None:
        return None
    if core.clones:
        return _decide_clone(core, slot.index)
    decision = core.tree.ask()
    if decision.action == "wait":
        return None
    if decision.action == "stop":
        return None if training else _record_stop(core, str(decision.stop_reason))
    node = len(core.tree.nodes)
    decided = ev.Decided(
        action=decision.action,
        on=decision.on,
        node=node,
        slot=slot.index,
        stop_reason=None,
        seen=decision.seen.to_dict(),
    )
    return record(f"decide-{node}", decided)


def _decide_clone(core: CoordinatorCore, slot: int) -> Command | None:
    """What a person asked for goes before what the rules would choose."""
    asked = core.clones[0]
    problem = clone_problem(core, asked)
    if problem is not None:
        return _refuse_clone(core, problem)
    node, seen = len(core.tree.nodes), core.tree.ask().seen.to_dict()
    decided = ev.Decided(
        action="evolve", on=asked.of, node=node, slot=slot, stop_reason=None, seen=seen, clone=asked.source
    )
    return record(f"decide-{node}", decided)


def _refuse_clone(core: CoordinatorCore, why: str) -> Command | None:
    if not core.clones:
        return None
    asked = core.clones[0]
    return record(
        f"clone-{asked.source}", ev.RequestRefused(kind="clone", message=f"clone of node {asked.of}: {why}")
    )


def _record_stop(core: CoordinatorCore, reason: str) -> Command:
    seen = core.tree.ask().seen.to_dict()
    stop = ev.Decided(action="stop", on=None, node=None, slot=None, stop_reason=reason, seen=seen)
    return record("decide-stop", stop)


def run_phase(core: CoordinatorCore, run: Run) -> Command:
    """Train a planned run in its slot, with the paths of where the search is now."""
    spec, paths = run.spec, core.paths
    assert spec is not None
    source = spec.resume_from
    spec = dataclasses.replace(
        spec,
        attempt=run.attempt,
        # The search may have been moved since this was planned.
        adapter=None if source is None else str(paths.adapter(source.node, source.step)),
        node_dir=str(paths.node(run.node)),
        checkpoint_dir=str(paths.checkpoints(run.node)),
        rolling_dir=str(paths.rolling(run.node)),
        rolling_freq=core.rolling_freq,
        restore=run.attempt > 0,
    )
    generation = core.slots[run.slot].generation
    run_id = f"run-{run.node}-{run.attempt}-{generation}-{run.replanned}"
    return cmd.RunPhase(id=run_id, slot=run.slot, spec=spec)


def _give_up(run: Run) -> Event:
    left = run.salvaged
    assert left is not None
    if run.stop_reason is not None and left.failure_class != "timeout":
        return ev.PhaseFinished(node=run.node, phase_attempt=run.attempt, result=run.as_ended())
    return ev.PhaseFailed(node=run.node, phase_attempt=run.attempt, failure=left)


def _conclusion(core: CoordinatorCore, reason: str) -> Event:
    best = core.best
    return ev.SearchFinished(
        reason=reason,
        best=None if best is None else best.node,
        best_score=None if best is None else best.score,
    )


def _record_plan(run: Run, spec: PhaseSpec, proposal: Proposal | None, note: str) -> Command:
    planned = ev.PhasePlanned(node=run.node, slot=run.slot, spec=spec, proposal=proposal, note=note)
    return record(f"plan-{run.node}", planned)


def record(key: str, event: Event) -> cmd.Record:
    """A conclusion; its key makes a second delivery of it known as one."""
    return cmd.Record(id=f"record-{key}", event=dataclasses.replace(event, source=f"core:{key}"))
