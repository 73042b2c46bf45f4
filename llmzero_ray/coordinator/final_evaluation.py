"""Final evaluation: confirmation of the winner on fresh items, test scores, and the reference for comparison.

The best strategies are confirmed first, because by default only the winner is tested. Test scores are
measured only here, so agents and rules never see them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from llmzero_ray.config import SearchConfig
from llmzero_ray.coordinator.plan import Planner
from llmzero_ray.coordinator.runs import FinalJob, PhaseRun, SlotState
from llmzero_ray.coordinator.strategy_compute import compared_cost, compute_of, steps_within
from llmzero_ray.hyperparameters.compute import amount, spent
from llmzero_ray.records import ComputeLimit, PhaseFailure, PhaseResult, PhaseSpec, TokenCost
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.commands import Command
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.search import SearchNode
from llmzero_ray.storage import SearchPaths

TEST, CONFIRM = "test", "confirm"
WHOLE = "reference-whole"
"""Key of the default recipe at its best step within the compute of the whole search."""
POLICY_NAMES = {
    "base": "base model",
    "reference": "default recipe",
    WHOLE: "default recipe, whole compute",
    "best": "best strategy",
}
_MOST = 10
"""Maximum length of a reference limited by compute, in multiples of the strategy's steps."""


class FinalEvaluation:
    """Final evaluations of one search: those that are due, running and done."""

    def __init__(
        self,
        config: SearchConfig,
        planner: Planner,
        runs: dict[int, PhaseRun],
        paths: SearchPaths,
        *,
        extension: int = 0,
        earlier: Mapping[str, FinalJob] = MappingProxyType({}),
    ) -> None:
        """`earlier` has the scored evaluations from before extension number `extension` of the search, so
        that no policy is scored twice."""
        self._config, self._planner, self._runs = config, planner, runs
        self._paths, self._extension, self._earlier = paths, extension, earlier
        self.jobs: dict[str, FinalJob] = {}
        self.winner: int | None = None
        """Node that ends the best strategy: the best confirmed node, or without one the best-scored node."""
        self.dropped = False
        """Whether evaluations of a scored search were cancelled."""
        self._ranked: list[SearchNode] = []
        """Nodes with a score, best first."""
        self._is_testing = False
        """Whether the winner is known and the test scores are scheduled."""
        self._reference_spec: PhaseSpec | None = None
        """Phase of the reference, until it is assigned to a slot."""
        self._strategy_compute: float | None = None
        """Compute of the best strategy's phases, if the reference is compared at equal compute."""

    def use(self, config: SearchConfig, planner: Planner) -> None:
        """Apply changed settings."""
        self._config, self._planner = config, planner

    def for_extension(self, extension: int) -> FinalEvaluation:
        """Evaluation for the next end of an extended search. Scores are carried over."""
        earlier = {**self._earlier, **{what: job for what, job in self.jobs.items() if job.score is not None}}
        return FinalEvaluation(
            self._config, self._planner, self._runs, self._paths, extension=extension, earlier=earlier
        )

    @property
    def done(self) -> bool:
        """Whether nothing is left to train or to score."""
        reference = self._runs.get(REFERENCE)
        training = self._reference_spec is not None or (reference is not None and reference.active)
        return not training and all(job.done for job in self.jobs.values())

    @property
    def is_testing(self) -> bool:
        """Whether the winner is known. From then on, no further work is added."""
        return self._is_testing

    @property
    def n_waiting(self) -> int:
        """Number of trainings and evaluations that wait for a slot."""
        waiting = sum(_is_open(job) and job.slot is None for job in self.jobs.values())
        return waiting + (self._reference_spec is not None)

    @property
    def confirmed(self) -> list[FinalJob]:
        """Evaluations on fresh validation items, ordered by validation score, best first."""
        return [job for job in self.jobs.values() if job.split == CONFIRM]

    @property
    def confirmation(self) -> FinalJob | None:
        """The winner's evaluation on fresh items, or None."""
        return next((job for job in self.confirmed if job.score and job.node == self.winner), None)

    def begin(self, nodes: Iterable[SearchNode], *, skip: bool) -> None:
        """Schedule the evaluations of a search with these nodes, or none if `skip` is set."""
        if skip:
            return
        scored = [node for node in nodes if node.score is not None]
        self._ranked = sorted(scored, key=lambda node: -(node.score or 0.0))
        for node in self._ranked[: self._config.confirm.k]:
            if node.best_step is not None:
                self._add(self._job_of(node, f"{CONFIRM}-{node.id}", CONFIRM))
        self._test_when_confirmed()

    def _test_when_confirmed(self) -> None:
        """Once all confirmations are done, determine the winner and schedule the test scores."""
        if self._is_testing or not all(job.done for job in self.confirmed):
            return
        self._is_testing = True
        best = self._best()
        if best is not None:
            self.winner = best.id
        self._schedule_tests(best)

    def _best(self) -> SearchNode | None:
        """Best confirmed node. Ties, and a search without confirmed nodes, are decided by the validation
        score."""
        scores = {job.node: job.score.mean for job in self.confirmed if job.score is not None}
        known = [node for node in self._ranked if node.id in scores]
        if known:
            return max(known, key=lambda node: scores[node.id])
        return self._ranked[0] if self._ranked else None

    def _schedule_tests(self, best: SearchNode | None) -> None:
        wanted = self._config.final
        if wanted.test:
            self._add(FinalJob(what="base"))
        if best is None or best.best_step is None:
            return
        if wanted.test:
            self._add(self._job_of(best, "best", TEST))
        if wanted.default_recipe:
            spec = self._planned_reference(best)
            if wanted.test:
                self._add(FinalJob(what="reference", node=REFERENCE, ready=False))
                if wanted.default_recipe == "whole":
                    self._add(FinalJob(what=WHOLE, node=REFERENCE, ready=False))
            reference = self._runs.get(REFERENCE)
            if reference is not None and _is_trained(reference, spec):
                self.reference_ended(reference)
            else:
                self._reference_spec = spec
        if wanted.test == "all":
            for node in self._ranked:
                if node is not best and node.best_step is not None:
                    self._add(self._job_of(node, f"node-{node.id}", TEST))

    def _planned_reference(self, best: SearchNode) -> PhaseSpec:
        """Phase of the reference. Its length is set in steps if it is not compared at equal compute, or if
        the engine did not count the strategy's tokens."""
        assert best.best_step is not None
        n_steps = self._runs[best.id].base_step + best.best_step
        wanted = self._config.final.default_recipe
        cost = compared_cost(self._config, self._runs, best.id)
        strategy = None if wanted is True else compute_of(self._runs, best.id, best.best_step, cost)
        self._strategy_compute = strategy
        if strategy is None:
            return self._planner.reference_phase(n_steps)
        whole = spent((run.outcome for run in self._runs.values() if run.node != REFERENCE), cost)
        limit = ComputeLimit(amount=max(whole, strategy) if wanted == "whole" else strategy, cost=cost)
        longest = steps_within(limit, self._runs.get(0)) or _MOST * n_steps
        return self._planner.reference_phase(longest, limit)

    def assign(self, slots: list[SlotState]) -> None:
        """Assign work to idle slots. The reference comes first, because its training takes longest."""
        for slot in slots:
            if not (slot.ready and slot.idle):
                continue
            if self._reference_spec is not None:
                spec = self._reference_spec
                earlier = self._runs.get(REFERENCE)
                attempt = 0 if earlier is None else earlier.attempt + 1
                run = PhaseRun(
                    node=REFERENCE,
                    kind="root",
                    on=None,
                    slot=slot.index,
                    stage="planned",
                    spec=spec,
                    attempt=attempt,
                    first_attempt=attempt,
                )
                self._runs[REFERENCE], slot.node, self._reference_spec = run, REFERENCE, None
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
                found.append(self._evaluate(job, slots[job.slot]))
        return found

    def reference_ended(self, run: PhaseRun) -> None:
        """Record that the reference has been trained. Its best checkpoint by validation is scored next."""
        if run.outcome is None:
            return
        for what, limit in (("reference", self._strategy_compute), (WHOLE, None)):
            job = self.jobs.get(what)
            if job is None:
                continue
            step = best_step_within(run.outcome, limit, _cost_of(run))
            if isinstance(run.outcome, PhaseFailure):
                job.problem = f"the default recipe failed: {run.outcome.cause}"
            elif step is None:
                job.problem = "the default recipe has no validation score to choose a checkpoint by"
            else:
                job.step, job.ready = step, True
                job.adapter = str(run.adapter(self._paths, step))
                job.attempt = run.attempt
                self._reuse(job)

    def scored(self, event: ev.FinalScored, slots: list[SlotState]) -> None:
        """Record the score of a policy."""
        self._close(event.what, slots, event, None)

    def failed(self, event: ev.FinalFailed, slots: list[SlotState]) -> None:
        """Record that a policy cannot be scored."""
        self._close(event.what, slots, None, event.reason)

    def slot_lost(self, slot: int, reason: str) -> None:
        """Queue the evaluations of a lost slot again. After a second loss, an evaluation fails."""
        for job in self.jobs.values():
            if job.slot == slot and not job.done:
                job.slot, job.losses = None, job.losses + 1
                if job.losses >= 2:
                    job.problem = f"its runner was lost twice: {reason}"

    def unassign(self, slot: SlotState) -> None:
        """Unassign the work of a slot that is closed. It starts again later, perhaps in another slot."""
        slot.scoring = None
        for job in self.jobs.values():
            if job.slot == slot.index and not job.done:
                job.slot = None

    def drop(self) -> None:
        """Cancel the remaining evaluations."""
        self._reference_spec, self._is_testing, self.dropped = None, True, bool(self._ranked)
        reference = self._runs.get(REFERENCE)
        if reference is not None and reference.active:
            reference.stage = "cancelled"
        for job in self.jobs.values():
            job.done = True

    def _job_of(self, node: SearchNode, what: ev.FinalWhat, split: str) -> FinalJob:
        assert node.best_step is not None
        adapter = str(self._runs[node.id].adapter(self._paths, node.best_step))
        return FinalJob(what=what, split=split, adapter=adapter, node=node.id, step=node.best_step)

    def _add(self, job: FinalJob) -> None:
        self.jobs[job.what] = job
        if job.ready:
            self._reuse(job)

    def _reuse(self, job: FinalJob) -> None:
        """Reuse the score that the same policy got before an extension."""
        known = self._earlier.get(job.what)
        if known is not None and (known.node, known.step, known.attempt) == (job.node, job.step, job.attempt):
            job.done, job.score = True, known.score

    def _key(self, key: str) -> str:
        return numbered(key, self._extension)

    def _evaluate(self, job: FinalJob, slot: SlotState) -> cmd.Evaluate:
        return cmd.Evaluate(
            id=self._key(f"evaluate-{job.what}-{job.losses}-{slot.index}-{slot.generation}"),
            slot=slot.index,
            what=job.what,
            adapter=job.adapter,
            split=job.split,
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
        self._test_when_confirmed()


def numbered(key: str, extension: int) -> str:
    """Key of something that occurs once per end of a search. Each extension needs keys of its own, because
    the journal drops events whose source it already has."""
    return f"{key}-{extension}" if extension else key


def best_step_within(outcome: PhaseResult | PhaseFailure, limit: float | None, cost: TokenCost) -> int | None:
    """Step with the best validation score. With a compute limit, steps up to half a step beyond it count,
    because phases end with the step nearest to their limit."""
    if limit is None:
        return outcome.best_step
    kept = [one for one in outcome.checkpoints if one.val_score is not None and one.tokens is not None]
    per_step = amount(outcome.tokens, cost) / max(1, outcome.steps_done)
    within = [one for one in kept if amount(one.tokens, cost) <= limit + per_step / 2]
    best = max(within, key=lambda one: (one.val_score or 0.0, -one.step), default=None)
    return None if best is None else best.step


def _cost_of(reference: PhaseRun) -> TokenCost:
    """Token cost in which the compute limit of a reference is counted."""
    limit = None if reference.spec is None else reference.spec.compute
    return TokenCost() if limit is None else limit.cost


def _is_trained(reference: PhaseRun, wanted: PhaseSpec) -> bool:
    """Whether the trained reference has the wanted length, so that an extended search need not repeat it."""
    spec = reference.spec
    same = spec is not None and (spec.n_steps, spec.compute) == (wanted.n_steps, wanted.compute)
    return same and isinstance(reference.outcome, PhaseResult)


def _is_open(job: FinalJob) -> bool:
    return job.ready and not job.done and job.problem is None
