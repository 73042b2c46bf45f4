"""Final evaluation: scores on the test split after the search, and the reference trained for comparison.

Test scores exist only from here on; agents and rules never see them. Not here: the search (core.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from llmzero_ray import commands as cmd
from llmzero_ray import events as ev
from llmzero_ray.commands import Command
from llmzero_ray.config import SearchConfig
from llmzero_ray.coordinator.plan import Planner
from llmzero_ray.coordinator.runs import FinalJob, PhaseRun, SlotState
from llmzero_ray.events import REFERENCE
from llmzero_ray.records import PhaseFailure, PhaseResult
from llmzero_ray.search import SearchNode

SPLIT = "test"


class FinalEvaluation:
    """The final test-set evaluations of one search."""

    def __init__(
        self,
        config: SearchConfig,
        planner: Planner,
        runs: dict[int, PhaseRun],
        *,
        extension: int = 0,
        earlier: Mapping[str, FinalJob] = MappingProxyType({}),
    ) -> None:
        """`earlier` are those before the search's `extension`th extension: a policy is scored once."""
        self._config, self._planner, self._runs = config, planner, runs
        self._extension, self._earlier = extension, earlier
        self.jobs: dict[str, FinalJob] = {}
        self._train_steps: int | None = None
        """Steps of the reference that is still to be trained."""

    def use(self, config: SearchConfig, planner: Planner) -> None:
        """Apply changed settings."""
        self._config, self._planner = config, planner

    def for_extension(self, extension: int) -> FinalEvaluation:
        """The evaluation at the next end of a search that goes on."""
        earlier = {**self._earlier, **{what: job for what, job in self.jobs.items() if job.score is not None}}
        return FinalEvaluation(self._config, self._planner, self._runs, extension=extension, earlier=earlier)

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
            adapter = str(self._runs[best.id].adapter(self._planner.paths, best.best_step))
            self._add(FinalJob(what="best", adapter=adapter, node=best.id, step=best.best_step))
        if wanted.default_recipe:
            n_steps = self._runs[best.id].base_step + best.best_step
            if wanted.test:
                self._add(FinalJob(what="reference", node=REFERENCE, ready=False))
            reference = self._runs.get(REFERENCE)
            if reference is not None and _is_trained(reference, n_steps):
                self.reference_ended(reference)
            else:
                self._train_steps = n_steps

    def assign(self, slots: list[SlotState]) -> None:
        """Assign work to idle slots: training first, since it takes longest."""
        for slot in slots:
            if not (slot.ready and slot.idle):
                continue
            if self._train_steps is not None:
                spec = self._planner.reference_phase(self._train_steps)
                earlier = self._runs.get(REFERENCE)
                run = PhaseRun(
                    node=REFERENCE,
                    kind="root",
                    on=None,
                    slot=slot.index,
                    stage="planned",
                    spec=spec,
                    attempt=0 if earlier is None else earlier.attempt + 1,
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
                    cmd.Record.of(
                        self._key(f"final-{job.what}"), ev.FinalFailed(what=job.what, reason=job.problem)
                    )
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
            job.adapter = str(run.adapter(self._planner.paths, run.outcome.best_step))
            job.attempt = run.attempt
            self._reuse(job)

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
        if job.ready:
            self._reuse(job)

    def _reuse(self, job: FinalJob) -> None:
        """Take over the score of the same policy from before an extension."""
        known = self._earlier.get(job.what)
        if known is not None and (known.node, known.step, known.attempt) == (job.node, job.step, job.attempt):
            job.done, job.score = True, known.score

    def _key(self, key: str) -> str:
        return numbered(key, self._extension)

    def _evaluate(self, job: FinalJob, slot: int) -> cmd.Evaluate:
        return cmd.Evaluate(
            id=self._key(f"evaluate-{job.what}-{job.losses}"),
            slot=slot,
            what=job.what,
            adapter=job.adapter,
            split=SPLIT,
            node=job.node,
            step=job.step,
            extension=self._extension,
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


def numbered(key: str, extension: int) -> str:
    """A key of something that occurs once per end of a search: events of a known source are dropped."""
    return f"{key}-{extension}" if extension else key


def _is_trained(reference: PhaseRun, n_steps: int) -> bool:
    """Whether the reference was trained for as many steps before the search was extended."""
    trained = reference.spec is not None and reference.spec.n_steps == n_steps
    return trained and isinstance(reference.outcome, PhaseResult)


def _is_open(job: FinalJob) -> bool:
    return job.ready and not job.done and job.problem is None
