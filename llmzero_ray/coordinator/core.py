"""The core of a search: events in, commands out.

Every event changes the state, and the commands depend only on the state. A restart replays the journal into a
new core and executes `outstanding()`. The core's own conclusions (a decision, a plan, a failure) are commands
to record an event; the core acts on them only when that event arrives. The journal, not the code, is
therefore the record of what was decided.

No clock, no Ray, no disk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

from llmzero_ray.config import stored_config
from llmzero_ray.coordinator import checkpoint_retention, proposals, steering
from llmzero_ray.coordinator.final_evaluation import FinalEvaluation
from llmzero_ray.coordinator.meter import Meter, gone_since
from llmzero_ray.coordinator.next_commands import next_commands
from llmzero_ray.coordinator.plan import Planner
from llmzero_ray.coordinator.price import fresh_start_fits
from llmzero_ray.coordinator.runs import PhaseRun, SlotState, finite
from llmzero_ray.coordinator.state import SearchState
from llmzero_ray.errors import JournalError
from llmzero_ray.estimate import SearchMemory
from llmzero_ray.hyperparameters import Space, space_with
from llmzero_ray.hyperparameters.compute import amount, token_cost
from llmzero_ray.records import Event, NodeKind, PhaseFailure, PhaseResult, ResumeFrom
from llmzero_ray.records import events as ev
from llmzero_ray.records.commands import Command, Record
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.search import TreeSearch, make_search, plans_its_runs
from llmzero_ray.storage import SearchPaths
from llmzero_ray.storage.strategy import plain


class CoordinatorCore(SearchState):
    """The state of one search, and how events change it. `space` defaults to VeRL's hyper-parameters."""

    def __init__(self, paths: SearchPaths, space: Space | None = None) -> None:
        super().__init__(paths)
        self._space = space
        self._emitted: set[str] = set()

    # --- in and out -----------------------------------------------------------------------------------------

    async def record(self, event: Event, append: Callable[[Event], Awaitable[Event | None]]) -> list[Command]:
        """Append an event to the journal and handle it, then do the same with every event that the core
        concludes from it. Returns the other new commands.

        `append` makes an event durable and returns it as written, or None if the journal already has it.

        Raises:
            JournalError: an event cannot follow the earlier events.
        """
        pending: Event | None = event
        commands = list[Command]()
        while pending is not None:
            written = await append(pending)
            fresh = self._fresh() if written is None else self.handle(written)
            pending = next((command.event for command in fresh if isinstance(command, Record)), None)
            commands += [command for command in fresh if not isinstance(command, Record)]
        return commands

    def handle(self, event: Event) -> list[Command]:
        """Apply an event and return the new commands, at most one of which records an event: once that is
        applied, the core may conclude otherwise.

        Raises:
            JournalError: the event cannot follow the earlier events.
        """
        self.apply(event)
        return self._fresh()

    def apply(self, event: Event) -> None:
        """Apply an event of a replayed journal. After the last one, `resume` returns the commands.

        Raises:
            JournalError: the event cannot follow the earlier events.
        """
        if self.started is None and not isinstance(event, (ev.SearchStarted, *ev.INITIALIZATION)):
            raise JournalError(
                f"the journal begins with {type(event).__name__}; its first event must be SearchStarted, or "
                "one of a search's initialization."
            )
        handler = _HANDLERS.get(type(event))
        if handler is None:
            raise JournalError(f"{type(event).__name__} is not an event of a search.")
        self.now = event.time
        handler(self, event)
        self.meter.take(event)
        self.active_time.take(event)
        if self.started is not None and isinstance(self.search, TreeSearch):
            self.search.fresh_start_fits = fresh_start_fits(self)

    def resume(self) -> list[Command]:
        """Commands that are due after a replay, including those that earlier coordinators issued. At most one
        records an event, as in `handle`."""
        self._emitted = set()
        return self._fresh()

    def outstanding(self) -> list[Command]:
        """All commands that are due in this state, including those already executing."""
        return next_commands(self)

    def _fresh(self) -> list[Command]:
        """Commands that are due and were not given before, without any further one that records an event."""
        fresh = [command for command in self.outstanding() if command.id not in self._emitted]
        further = [command for command in fresh if isinstance(command, Record)][1:]
        fresh = [command for command in fresh if command not in further]
        self._emitted.update(command.id for command in fresh)
        return fresh

    # --- what happened --------------------------------------------------------------------------------------

    def _on_initialization_started(self, event: ev.InitializationStarted) -> None:
        self.initialization, self.n_initializations = event, self.n_initializations + 1
        self.drafted = self.confirmed = None

    def _on_task_drafted(self, event: ev.TaskDrafted) -> None:
        self.drafted, self.confirmed = event, None

    def _on_confirmed(self, event: ev.InitializationConfirmed) -> None:
        self.confirmed = event

    def _on_search_started(self, event: ev.SearchStarted) -> None:
        if self.started is not None:
            raise JournalError(
                "the journal holds a second SearchStarted; two searches wrote to one directory."
            )
        self.started = event
        self.config = stored_config(plain(event.config), source="journal")
        settings, runs = self.config.search, self.config.budget.runs
        self.search = make_search(settings.method, settings, runs, self.config.seed, dict(event.root))
        if isinstance(self.search, TreeSearch):
            self.search.offers_best = self.config.agents.backend != "expert"
        self.fit_slots()
        self.slots_needed = self.config.slots.reserve == "at_start"
        self.meter = Meter(self.config.slots.n_gpus)
        self.planner = Planner(
            config=self.config,
            n_train=int(event.task["n_train"]),
            root=dict(event.root),
            runs=self.runs,
            space=self._space or space_with(self.config.agents.allow),
        )
        self.final = FinalEvaluation(self.config, self.planner, self.runs, self.paths)
        self.memory = SearchMemory(self.config, event.memory) if event.memory else None

    def _on_coordinator_started(self, event: ev.CoordinatorStarted) -> None:
        self.interrupted = None
        gone = gone_since(event)
        for run in self._training():
            if gone is not None and run.started_at is not None:
                run.started_at += max(0.0, event.time - max(gone, run.started_at))

    def _on_interrupted(self, event: ev.SearchPaused | ev.SearchAborted) -> None:
        """Free all slots, because the runners are about to be closed. Their phases start again later, which
        does not count as a loss. A search that has finished cannot be interrupted."""
        if self.finished is not None:
            return
        code = event.exit_code if isinstance(event, ev.SearchAborted) else 0
        self.interrupted = (event.reason, code)
        self.n_interruptions += 1
        for run in self._training():
            run.interrupted = True
            self._count_hours(run, self._hours_so_far(run))
        for slot in self.slots:
            self._slot_gone(slot)

    def _on_slot_ready(self, event: ev.SlotReady) -> None:
        slot = self.slots[event.slot]
        slot.ready, slot.generation = True, slot.generation + 1
        self._settle()

    def _on_slot_closed(self, event: ev.SlotClosed) -> None:
        self._slot_gone(self.slots[event.slot])

    def _on_slots_needed(self, _: ev.SlotsNeeded) -> None:
        self.slots_needed = True

    def _on_decided(self, event: ev.Decided) -> None:
        if event.action == "stop":
            self.end_reason = event.stop_reason or "user"
            self.final.begin(self.search.nodes.values(), skip=self.end_reason == "user")
            return self._settle()
        assert event.node is not None
        assert event.slot is not None
        kind: NodeKind = event.action
        run = PhaseRun(node=event.node, kind=kind, on=event.on, slot=event.slot)
        # The journal is authoritative, even if this version would decide differently.
        if event.clone and event.on is not None:
            run.clone = self._take_clone(event.clone)
            run.answer = None if run.clone is None else steering.clone_proposal(self, run.clone)
            self.search.clone(event.on, event.node)
        else:
            run.plan = event.seen.get("plan") or {}
            self.search.create(kind, event.on, event.node)
        self.runs[event.node] = run
        self.slots[event.slot].node = event.node
        return None

    def _take_clone(self, source: str) -> ev.CloneAsked | None:
        request = next((clone for clone in self.clones if clone.source == source), None)
        self.clones = [clone for clone in self.clones if clone is not request]
        return request

    def _on_proposed(self, event: ev.Proposed) -> None:
        run = self._waiting_for_answer(event.node, event.tries)
        if run is not None:
            run.answer = event.proposal

    def _on_proposal_failed(self, event: ev.ProposalFailed) -> None:
        run = self._waiting_for_answer(event.node, event.tries)
        if run is not None:
            run.no_answer = f"the agent gave no answer ({event.reason})"

    def _waiting_for_answer(self, node: int, tries: int) -> PhaseRun | None:
        """Run that waits for this answer, or None. A cancelled run takes it too, in case the search is
        extended."""
        run = self.runs.get(node)
        return run if run is not None and run.needs_answer(tries) else None

    def _on_proposal_refused(self, event: ev.ProposalRefused) -> None:
        run = self.runs[event.node]
        run.refused, run.answer = run.answer, None
        run.rejected, run.tries = event.message, event.tries
        run.asked = run.approval = None

    def _on_approval_asked(self, event: ev.ApprovalAsked) -> None:
        run = self.runs[event.node]
        if run.tries == event.tries:
            run.asked = event

    def _on_phase_planned(self, event: ev.PhasePlanned) -> None:
        run = self.runs[event.node]
        if run.stage != "proposing":
            return
        run.stage, run.spec, run.proposal, run.note = "planned", event.spec, event.proposal, event.note
        if event.spec.resume_from is not None:
            self.search.set_resume_from(run.node, event.spec.resume_from.node, event.spec.resume_from.step)

    def _on_phase_started(self, event: ev.PhaseStarted) -> None:
        run = self._current(event.node, event.phase_attempt)
        if run is not None:
            run.started, run.started_at = True, event.time
            return
        self.void_starts[event.node, event.phase_attempt] = event.time
        # A run that was cancelled while it was handed over. The journal takes the start of an attempt only
        # once, so it needs another attempt if the search continues.
        run = self.runs.get(event.node)
        if run is not None and run.stage == "cancelled" and run.node != REFERENCE:
            run.attempt += run.attempt == event.phase_attempt

    def _on_phase_ended(self, event: ev.PhaseFinished | ev.PhaseFailed) -> None:
        run = self._current(event.node, event.phase_attempt) or self._trained_by_older(event)
        if run is None:
            return  # a late outcome of an attempt that was given up
        outcome = finite(event.result if isinstance(event, ev.PhaseFinished) else event.failure)
        run.stage, run.outcome = "done", outcome
        self.slots[run.slot].node = None
        # An interrupted attempt may have ended after all. Its hours up to the interruption are counted.
        hours = min(outcome.gpu_hours, self._hours_so_far(run)) if run.interrupted else outcome.gpu_hours
        waited = run.losses > 0 and not run.started and run.node != REFERENCE
        self._count_hours(run, 0.0 if waited else hours)  # those of its lost attempts are counted
        if run.node == REFERENCE:
            self.final.reference_ended(run)
        else:
            self._node_ended(run, outcome, event.time)
        self._settle()

    def _node_ended(self, run: PhaseRun, outcome: PhaseResult | PhaseFailure, now: float) -> None:
        status = outcome.status if isinstance(outcome, PhaseResult) else "failed"
        self.search.tell(run.node, status, outcome.best_score, outcome.best_step)
        self._learn_memory(run, outcome)
        self.n_ended += 1
        budget, best = self.config.budget, self.search.best
        if (
            budget.target is not None
            and best is not None
            and best.score is not None
            and best.score >= budget.target
        ):
            self._end("target")
        elif budget.gpu_hours is not None and self.meter.gpu_hours(now) >= budget.gpu_hours:
            self._end("gpu_hours")
        elif self._compute_is_spent(outcome):
            self._end("compute")

    def _compute_is_spent(self, outcome: PhaseResult | PhaseFailure) -> bool:
        """Whether the remaining compute is at most one step of the phase that has just ended. False for a
        method that plans its runs, because it gives each run its share."""
        whole = self.config.budget.compute
        if whole is None or plans_its_runs(self.search):
            return False
        step = amount(outcome.tokens, token_cost(self.config)) / max(1, outcome.steps_done)
        return whole - self.compute <= step

    def _learn_memory(self, run: PhaseRun, outcome: PhaseResult | PhaseFailure) -> None:
        if self.memory is None or run.spec is None:
            return
        if isinstance(outcome, PhaseFailure) and outcome.failure_class == "oom":
            self.memory.ran_out(run.spec.hyperparameters, outcome)
        elif isinstance(outcome, PhaseResult) and outcome.steps_done:
            self.memory.trained(run.spec.hyperparameters)

    def _on_runner_lost(self, event: ev.RunnerLost) -> None:
        slot = self.slots[event.slot]
        slot.ready = False
        if event.avoided is not None:
            self.avoided_nodes |= {event.avoided}
        self.final.slot_lost(event.slot, event.reason)
        slot.scoring = None
        run = None if event.node is None else self._current(event.node, event.phase_attempt)
        if run is None or not run.started:
            return
        nothing = PhaseFailure(node=run.node, failure_class="resource", cause=event.reason, log_tail="")
        run.losses, run.salvaged = run.losses + 1, event.salvaged or nothing
        no_further = run.restart_step == event.restart_step
        run.restart_step = event.restart_step
        # Do not repeat a phase that was being stopped, or one that was lost twice at the same step.
        if no_further or run.losses > self.config.slots.max_infra_retries or run.stop_reason is not None:
            run.given_up = True
        else:
            if run.node != REFERENCE:
                self.gpu_hours += run.salvaged.gpu_hours
            run.begin_again()

    def _on_phase_interrupted(self, event: ev.PhaseInterrupted) -> None:
        run = self._current(event.node, event.phase_attempt)
        if run is not None and not run.started:
            run.salvaged, run.has_result = event.salvaged, event.ended

    def _on_runner_silent(self, event: ev.RunnerSilent) -> None:
        run = self._current(event.node, event.phase_attempt)
        if run is not None and run.started:
            run.silent = event

    def _on_checkpoints_deleted(self, event: ev.CheckpointsDeleted) -> None:
        keep = checkpoint_retention.pinned(self)  # something may have been planned since the list was made
        items = tuple(item for item in event.items if (item.node, item.step) not in keep)
        self.deletions.append(dataclasses.replace(event, items=items))
        for item in items:
            self.runs[item.node].lost_steps |= {item.step}

    def _on_checkpoint_corrupt(self, event: ev.CheckpointCorrupt) -> None:
        self.runs[event.node].lost_steps |= {event.step}
        for run in self.runs.values():
            source = None if run.spec is None else run.spec.resume_from
            # The phase that found it may be marked as started, if its runner was lost before it began.
            waits = run.stage == "planned" and (not run.started or run.node == event.found_by)
            waits = waits and not run.given_up
            if source is not None and waits and (source.node, source.step) == (event.node, event.step):
                run.begin_again()
                self._resume_elsewhere(
                    run, checkpoint_retention.nearest_good(self, (source.node, source.step))
                )

    def _resume_elsewhere(self, run: PhaseRun, source: ResumeFrom | None) -> None:
        assert run.spec is not None
        base = 0 if source is None else self.runs[source.node].base_step + source.step
        run.spec = dataclasses.replace(run.spec, resume_from=source, base_step=base)
        run.replanned += 1
        # Checkpoints of earlier attempts started from another adapter.
        run.first_attempt, run.restart_step, run.salvaged = run.attempt, None, None
        if run.node != REFERENCE:
            self.search.set_resume_from(
                run.node, *(None, None) if source is None else (source.node, source.step)
            )

    def _on_hint(self, event: ev.HintGiven) -> None:
        self.hints.append(event.text)

    def _on_clone_asked(self, event: ev.CloneAsked) -> None:
        self.clones.append(event)

    def _on_settings_changed(self, event: ev.SettingsChanged) -> None:
        steering.change_settings(self, event)
        self._settle()

    def _on_request_refused(self, event: ev.RequestRefused) -> None:
        self._take_clone(event.source.removeprefix("core:clone-"))

    def _on_verdict(self, event: ev.VerdictPosted) -> None:
        run = self._current(event.node, event.phase_attempt)
        if run is None:
            return
        run.verdicts.append(event)
        if event.decision.stop and run.stop_reason is None:
            run.stop_reason = f"verdict: {event.decision.rule}: {event.decision.reason}"

    def _on_agent_called(self, event: ev.AgentCalled) -> None:
        self.dollars += event.dollars
        self.n_calls += 1

    def _on_budget_reached(self, event: ev.BudgetReached) -> None:
        if self.end_reason is None:
            self._end(event.kind)

    def _on_user_stop(self, event: ev.UserStop) -> None:
        if event.deadline_s is not None:
            self.stop_deadline_s = event.deadline_s
        if self.end_reason is None:
            self._end("user")
            # If it was ending already, a phase that was interrupted may wait for its slot, perhaps for ever.
            for run in self.runs.values():
                if run.active and not run.started and not self.slots[run.slot].ready:
                    self.stop_or_cancel(run, "user")
        else:
            self.extension_wanted = False
            if not self.final.done:
                self.final.drop()

    def _on_final_scored(self, event: ev.FinalScored) -> None:
        self.final.scored(event, self.slots)
        self._settle()

    def _on_final_failed(self, event: ev.FinalFailed) -> None:
        self.final.failed(event, self.slots)
        self._settle()

    def _on_outcome_written(self, event: ev.OutcomeWritten) -> None:
        self.written, self.problem = True, event.problem or None

    def _on_search_finished(self, event: ev.SearchFinished) -> None:
        self.finished = event
        for slot in self.slots:  # all hardware is released
            slot.ready, slot.node, slot.scoring = False, None, None

    # --- parts ----------------------------------------------------------------------------------------------

    def _current(self, node: int, attempt: int) -> PhaseRun | None:
        """The run, if `attempt` is its current attempt."""
        run = self.runs.get(node)
        return run if run is not None and run.stage == "planned" and run.attempt == attempt else None

    def _trained_by_older(self, event: ev.PhaseFinished | ev.PhaseFailed) -> PhaseRun | None:
        """A cancelled run that has ended: a second stop did not cancel it in the version that trained it."""
        run, begun = self.runs.get(event.node), (event.node, event.phase_attempt)
        if run is None or run.stage != "cancelled" or begun not in self.void_starts:
            return None
        run.attempt, run.started, run.started_at = event.phase_attempt, True, self.void_starts.pop(begun)
        return run

    def _training(self) -> list[PhaseRun]:
        """Runs that a runner trains."""
        return [run for run in self.runs.values() if run.active and run.started]

    def _hours_so_far(self, run: PhaseRun) -> float:
        """GPU hours of a run's current attempt up to the newest event. 0 if it has not started."""
        since = run.started_at if run.started else None
        return 0.0 if since is None else max(0.0, self.now - since) / 3600 * self.config.slots.n_gpus

    def _count_hours(self, run: PhaseRun, hours: float) -> None:
        if run.node == REFERENCE:
            self.reference_gpu_hours += hours
        else:
            self.gpu_hours += hours

    def _end(self, reason: str) -> None:
        """Begin to end the search: stop running phases and cancel those that have not started."""
        if self.ending is not None:
            return
        self.ending = reason
        stop_reason = "user" if reason == "user" else f"budget: {reason}"
        for run in self.runs.values():
            if run.active:
                self.stop_or_cancel(run, stop_reason)

    def _slot_gone(self, slot: SlotState) -> None:
        slot.ready = False
        self.final.unassign(slot)
        run = None if slot.node is None else self.runs[slot.node]
        if run is not None:
            run.begin_again()

    def _settle(self) -> None:
        """Assign final evaluations to idle slots."""
        if self.end_reason is not None and self.finished is None:
            self.final.assign(self.open_slots)


_HANDLERS: dict[type[Event], Callable[[CoordinatorCore, Any], None]] = {
    ev.InitializationStarted: CoordinatorCore._on_initialization_started,
    ev.TaskDrafted: CoordinatorCore._on_task_drafted,
    ev.InitializationConfirmed: CoordinatorCore._on_confirmed,
    ev.SearchStarted: CoordinatorCore._on_search_started,
    ev.CoordinatorStarted: CoordinatorCore._on_coordinator_started,
    ev.SearchPaused: CoordinatorCore._on_interrupted,
    ev.SearchAborted: CoordinatorCore._on_interrupted,
    ev.SlotReady: CoordinatorCore._on_slot_ready,
    ev.Decided: CoordinatorCore._on_decided,
    ev.Proposed: CoordinatorCore._on_proposed,
    ev.ProposalFailed: CoordinatorCore._on_proposal_failed,
    ev.ProposalRefused: CoordinatorCore._on_proposal_refused,
    ev.ApprovalAsked: CoordinatorCore._on_approval_asked,
    ev.ApprovalAnswered: proposals.apply_answer,
    ev.PhasePlanned: CoordinatorCore._on_phase_planned,
    ev.PhaseStarted: CoordinatorCore._on_phase_started,
    ev.PhaseFinished: CoordinatorCore._on_phase_ended,
    ev.PhaseFailed: CoordinatorCore._on_phase_ended,
    ev.RunnerLost: CoordinatorCore._on_runner_lost,
    ev.PhaseInterrupted: CoordinatorCore._on_phase_interrupted,
    ev.VerdictPosted: CoordinatorCore._on_verdict,
    ev.AgentCalled: CoordinatorCore._on_agent_called,
    ev.CallReserved: lambda *_: None,  # used by the ledger of agent calls
    ev.BudgetReached: CoordinatorCore._on_budget_reached,
    ev.RunnerSilent: CoordinatorCore._on_runner_silent,
    ev.SlotClosed: CoordinatorCore._on_slot_closed,
    ev.SlotsNeeded: CoordinatorCore._on_slots_needed,
    ev.CheckpointsDeleted: CoordinatorCore._on_checkpoints_deleted,
    ev.CheckpointCorrupt: CoordinatorCore._on_checkpoint_corrupt,
    ev.HintGiven: CoordinatorCore._on_hint,
    ev.NodeVetoed: steering.veto,
    ev.CloneAsked: CoordinatorCore._on_clone_asked,
    ev.SettingsChanged: CoordinatorCore._on_settings_changed,
    ev.SearchExtended: steering.extend,
    ev.RequestRefused: CoordinatorCore._on_request_refused,
    ev.BackgroundTaskFailed: lambda *_: None,  # used by reports
    ev.UserStop: CoordinatorCore._on_user_stop,
    ev.FinalScored: CoordinatorCore._on_final_scored,
    ev.FinalFailed: CoordinatorCore._on_final_failed,
    ev.OutcomeWritten: CoordinatorCore._on_outcome_written,
    ev.SearchFinished: CoordinatorCore._on_search_finished,
}
