"""Methods that train one policy phase after phase: unchanged, by a fixed schedule, or with random changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from llmzero_ray.agents.expert.perturbation import perturbed
from llmzero_ray.config.schedule import Schedule, read_schedule
from llmzero_ray.methods.planned_search import PlannedSearch
from llmzero_ray.methods.run_plan import RunPlan, Start
from llmzero_ray.methods.values import PlannedStart, scheduled
from llmzero_ray.records import HyperparameterValue

_FIRST = RunPlan(source="default", why="the default recipe first")


class UnchangedContinuation(PlannedSearch):
    """The default recipe, phase after phase from the last adapter. Shows what phases alone are worth."""

    def next_run(self) -> RunPlan | None:
        """The next phase once the previous one has ended."""
        if not self.runs:
            return _FIRST
        last = self.runs[-1]
        why = f"the settings of node {last.id} continue unchanged from its last adapter"
        return None if last.is_running else RunPlan(on=last.id, source="unchanged", start="last", why=why)


class FixedSchedule(PlannedSearch):
    """The phases of a schedule, each with its share of the budget, and no further run."""

    usual = ""
    """Name of the schedule if `search.schedule` has none. If it is empty, SearchConfig requires a
    schedule."""

    @cached_property
    def schedule(self) -> Schedule:
        """The configured schedule, or the one that `usual` names."""
        return self.rules.schedule or read_schedule(self.usual)

    def next_run(self) -> RunPlan | None:
        """The next phase of the schedule once the previous one has ended."""
        runs, shares = self.runs, self.schedule.shares
        number = sum(node.plan.source == "phase" for node in self.nodes.values())
        if number >= len(shares) or (runs and runs[-1].is_running):
            return None
        units = shares[number] * (len(shares) if self.budget is None else self.budget)
        why = f"phase {number + 1} of {len(shares)} of the schedule"
        last = runs[-1].id if runs else None
        start: Start = "last" if runs else "base"
        return RunPlan(on=last, source="phase", start=start, units=units, number=number, why=why)

    def values(self, plan: RunPlan, at: PlannedStart) -> Mapping[str, HyperparameterValue]:
        """Values that the schedule sets in the planned phase and all phases before it."""
        return scheduled(self.schedule, at.root, plan.number) if plan.source == "phase" else {}


class CapacityGuidebook(FixedSchedule):
    """The capacity guidebook of the paper (Table 13), unless another schedule is given."""

    usual = "guidebook"


class RandomPerturbation(PlannedSearch):
    """Search without a diagnosis: continues from the best adapter so far, with one to three hyper-parameters
    changed at random."""

    def next_run(self) -> RunPlan | None:
        """A random change from the best run that has ended."""
        if not self.runs:
            return _FIRST
        best = self.best_ended
        if best is None:
            return None
        why = f"a random change from the best adapter, of node {best.id}"
        return RunPlan(on=best.id, source="perturb", start="best", why=why)

    def values(self, plan: RunPlan, at: PlannedStart) -> Mapping[str, HyperparameterValue]:
        """One to three hyper-parameters changed at random."""
        return perturbed(at.base, at.rng) if plan.source == "perturb" else {}
