"""Proposer for search methods that plan their runs: turns a plan's start, changes and length into a proposal.

The same request gives the same proposal: random numbers derive from the search's seed, the node's number and
the number of tries. Values that break a rule of the space or would have no effect are left out. Not here:
which run comes next (planned_search.py), how methods choose values (values.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from llmzero_ray.agents.expert.apply_moves import ChangePlan, ProposalBase
from llmzero_ray.agents.expert.moves import MoveSet
from llmzero_ray.agents.expert.perturbation import changes_of
from llmzero_ray.agents.expert.proposer import proposal_base, write
from llmzero_ray.agents.expert.resume import StartPoint
from llmzero_ray.hyperparameters import VERL_SPACE, canonical, mentioned_keys, rate_depends_on_length
from llmzero_ray.methods.run_plan import RunPlan
from llmzero_ray.methods.values import PlannedStart, Values
from llmzero_ray.records import Diagnosis, HyperparameterValue, Proposal
from llmzero_ray.records.agents import OfferedCheckpoint, ProposalRequest

_DIGITS = 3
_FIXED = ("own", "phase")
"""Sources that give the same values on every try, so rejected values are left out instead."""
_PLANNED = Diagnosis(state="unknown", summary="Planned by the search method; nothing was diagnosed.")


class PlanProposer:
    """Proposer of the planned runs of `method`.

    `values` returns the values of a plan that depend on where the run starts. `n_gpus` is the number of GPUs
    of a slot. With `by_compute`, a run may have `phase.max_steps` steps, because compute ends it. A run
    with a cosine schedule or a warm-up ratio gets only the steps of its share of the budget, because these
    must know its length.
    """

    def __init__(
        self,
        method: str,
        values: Callable[[RunPlan, PlannedStart], Mapping[str, HyperparameterValue]],
        *,
        seed: int = 1,
        n_gpus: int = 1,
        by_compute: bool = False,
    ) -> None:
        self._method, self._values_of, self._seed, self._n_gpus = method, values, seed, n_gpus
        self._by_compute = by_compute

    def propose(self, request: ProposalRequest) -> Proposal:
        """Proposal of the planned phase.

        Raises:
            ValueError: the plan names a grid cell or phase that does not exist.
            HyperparameterError: the plan changes an unknown hyper-parameter.
        """
        plan = RunPlan.from_dict(request.plan)
        start = self._start(request, plan)
        base = proposal_base(request, request.base(start.resume_from), self._n_gpus)
        refused = mentioned_keys(request.rejected) if plan.source in _FIXED else frozenset[str]()
        wanted = {k: v for k, v in self._values(request, plan, base).items() if k not in refused}
        chosen = _changes(base, wanted, plan.why)
        most, units = request.task.max_phase_steps, plan.units * request.task.phase_steps
        by_compute = self._by_compute and not rate_depends_on_length(chosen.full)
        n_steps = most if by_compute else max(1, min(most, round(units)))
        return write(request, _PLANNED, chosen, start, n_steps, agent=self._method)

    def _values(self, request: ProposalRequest, plan: RunPlan, base: ProposalBase) -> Values:
        rng = random.Random(f"{self._seed}:{request.node}:{request.tries}")
        found = self._values_of(plan, PlannedStart(request=request, base=base, rng=rng))
        given = {canonical(name): value for name, value in plan.changes.items()}
        return {**{key: _rounded(value) for key, value in found.items()}, **given}

    def _start(self, request: ProposalRequest, plan: RunPlan) -> StartPoint:
        if plan.start == "base" or request.from_scratch:
            return StartPoint(checkpoint=None, reason="its recipe is trained from the first step on")
        found = _checkpoint(request, best=plan.start == "best")
        if found is None:
            return StartPoint(checkpoint=None, reason="no adapter was saved before")
        return StartPoint(checkpoint=found, reason=f"the {plan.start} adapter of node {found.node}")


def _checkpoint(request: ProposalRequest, *, best: bool) -> OfferedCheckpoint | None:
    """Last or best adapter of the phase's parent node, or of the nearest earlier node on its path that has
    one."""
    for view in reversed(request.path):
        offered = [one for one in request.checkpoints if one.node == view.node]
        scored = [one for one in offered if one.val_score is not None]
        if best and scored:
            return max(scored, key=lambda one: (one.val_score or 0.0, -one.step))
        if offered:
            return max(offered, key=lambda one: one.step)
    return None


def _changes(base: ProposalBase, wanted: Values, why: str) -> ChangePlan:
    made = changes_of(base, {key: (value, why) for key, value in wanted.items()})
    if made is not None:
        inert = VERL_SPACE.inert(made[1])
        live = {change.key: (change.new, why) for change in made[0] if change.key not in inert}
        made = changes_of(base, live)
    changes, full = made if made is not None else ((), dict(base.hyperparameters))
    return ChangePlan(move_set=MoveSet(name="planned", why=f"{why}.", moves=()), changes=changes, full=full)


def _rounded(value: HyperparameterValue) -> HyperparameterValue:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
