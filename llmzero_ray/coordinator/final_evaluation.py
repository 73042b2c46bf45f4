"""Final evaluation: scores on the test split after the search, and the reference trained for comparison.

Test scores exist only from here on; agents and rules never see them. Not here: the search (core.py).
"""

from __future__ import annotations

from collections.abc import Callable

from llmzero_ray import commands as cmd
from llmzero_ray import events as ev
from llmzero_ray.commands import Command
from llmzero_ray.config import SearchConfig
from llmzero_ray.coordinator.plan import Planner
from llmzero_ray.coordinator.runs import FinalJob, PhaseRun, SlotState
from llmzero_ray.events import REFERENCE
from llmzero_ray.records import PhaseFailure
from llmzero_ray.search import SearchNode

SPLIT = "test"


class FinalEvaluation:
    """The final test-set evaluations of one search."""

    def __init__(self, config: SearchConfig, planner: Planner, runs: dict[int, PhaseRun]) -> None:
        self._config, self._planner, self._runs = config, planner, runs
        self.jobs: dict[str, FinalJob] = {}
        self._train_steps: int | None = None
        """Steps of the reference that is still to be trained."""

    def use(self, config: SearchConfig, planner: Planner) -> None:
        """Apply changed settings."""
        self._config, self._planner = config, planner

    @property
    def done(self) -> bool:
        """Whether nothing is left to train or to score."""
        reference = self._runs.get(REFERENCE)
        training = self._train_steps is not None or (reference is not None and reference.active)
        return not training and all(job.done for job in self.jobs.values())

    def begin(self, best: SearchNode | None, *, skip: bool) -> None:
        """Schedule the evaluations; with `skip` none."""
        if skip:
            return
        wanted = self._config.final
        if wanted.test:
            self._add(FinalJob(what="base"))
        if best is None or best.best_step is None:
            return
        if wanted.test:
            adapter = str(self._planner.paths.adapter(best.id, best.best_step))
            self._add(FinalJob(what="best", adapter=adapter, node=best.id, step=best.best_step))
        if wanted.default_recipe:
            self._train_steps = self._runs[best.id].base_step + best.best_step
            if wanted.test:
                self._add(FinalJob(what="reference", node=REFERENCE, ready=False))

    def assign(self, slots: list[SlotState]) -> None:
        """Assign work to idle slots: training first, since it takes longest."""
        for slot in slots:
            if not (slot.ready and slot.idle):
                continue
            if self._train_steps is not None:
                spec = self._planner.reference_phase(self._train_steps)
                run = PhaseRun(
                    node=REFERENCE, kind="root", on=None, slot=slot.index, stage="planned", spec=spec
                )
                self._runs[REFERENCE], slot.node, self._train_steps = run, REFERENCE, None
                continue
            job = next((job for job in self.jobs.values() if _is_open(job) and job.slot is None), None)
            if job is not None:
                job.slot, slot.scoring = slot.index, job.what

    def commands(self, slots: list[SlotState], run_phase: Callable[[PhaseRun], Command]) -> list[Command]:
        """Commands for the evaluations that are due."""
        found: list[Command] = []
        reference = self._runs.get(REFERENCE)
        if reference is not None and reference.active:
            if reference.given_up and reference.salvaged is not None:
                failed = ev.PhaseFailed(
                    node=REFERENCE, phase_attempt=reference.attempt, failure=reference.salvaged
                )
                found.append(cmd.Record.of(f"lost-{REFERENCE}-{reference.attempt}", failed))
            elif slots[reference.slot].ready:
                found.append(run_phase(reference))
        for job in self.jobs.values():
            if job.problem is not None and not job.done:
                found.append(
                    cmd.Record.of(f"final-{job.what}", ev.FinalFailed(what=job.what, reason=job.problem))
                )
            elif job.slot is not None and not job.done and slots[job.slot].ready:
                found.append(self._evaluate(job, job.slot))
        return found

    def reference_ended(self, run: PhaseRun) -> None:
        """The reference has been trained; its best checkpoint by validation is scored."""
        job = self.jobs.get("reference")
        if job is None or run.outcome is None:
            return
        if isinstance(run.outcome, PhaseFailure):
            job.problem = f"the default recipe failed: {run.outcome.cause}"
        elif run.outcome.best_step is None:
            job.problem = "the default recipe has no validation score to choose a checkpoint by"
        else:
            job.step, job.ready = run.outcome.best_step, True
            job.adapter = str(self._planner.paths.adapter(REFERENCE, run.outcome.best_step))

    def scored(self, event: ev.FinalScored, slots: list[SlotState]) -> None:
        """Record the test score of a policy."""
        self._close(event.what, slots, event, None)

    def failed(self, event: ev.FinalFailed, slots: list[SlotState]) -> None:
        """Record that a policy cannot be scored."""
        self._close(event.what, slots, None, event.reason)

    def slot_lost(self, slot: int, reason: str) -> None:
        """Repeat a scoring once after lost hardware."""
        for job in self.jobs.values():
            if job.slot == slot and not job.done:
                job.slot, job.losses = None, job.losses + 1
                if job.losses >= 2:
                    job.problem = f"its runner was lost twice: {reason}"

    def unassign(self, slot: SlotState) -> None:
        """The slot closes in an orderly way; its scoring starts again later or in another slot."""
        slot.scoring = None
        for job in self.jobs.values():
            if job.slot == slot.index and not job.done:
                job.slot = None

    def drop(self) -> None:
        """Cancel the remaining evaluations."""
        self._train_steps = None
        reference = self._runs.get(REFERENCE)
        if reference is not None and reference.active:
            reference.stage = "cancelled"
        for job in self.jobs.values():
            job.done = True

    def _add(self, job: FinalJob) -> None:
        self.jobs[job.what] = job

    def _evaluate(self, job: FinalJob, slot: int) -> cmd.Evaluate:
        return cmd.Evaluate(
            id=f"evaluate-{job.what}-{job.losses}",
            slot=slot,
            what=job.what,
            adapter=job.adapter,
            split=SPLIT,
            node=job.node,
            step=job.step,
        )

    def _close(
        self, what: ev.FinalWhat, slots: list[SlotState], score: ev.FinalScored | None, problem: str | None
    ) -> None:
        job = self.jobs.get(what)
        if job is None or job.done:
            return
        job.done, job.score, job.problem = True, score, problem
        for slot in slots:
            if slot.scoring == what:
                slot.scoring = None


def _is_open(job: FinalJob) -> bool:
    return job.ready and not job.done and job.problem is None
