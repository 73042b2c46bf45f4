"""One policy trained in phases: unchanged, by a fixed schedule, or changed at random from its best."""

from __future__ import annotations

from llmzero_ray.config.schedule import Schedule, read_schedule
from llmzero_ray.config.search_rules import MethodRules
from llmzero_ray.errors import ConfigError
from llmzero_ray.search.planned_search import Next, PlannedSearch
from llmzero_ray.search.run_plan import RunPlan

_FIRST = RunPlan(recipe="default", why="the default recipe first")


class UnchangedContinuation(PlannedSearch):
    """The default recipe, phase after phase from the last adapter: what phases alone are worth."""

    def _next(self) -> Next | None:
        nodes = self._open
        if not nodes:
            return Next(None, _FIRST)
        why = f"the settings of node {nodes[-1].id} go on unchanged from its last adapter"
        plan = RunPlan(recipe="unchanged", start="last", why=why)
        return None if nodes[-1].is_running else Next(nodes[-1].id, plan)


class ScheduleReplay(PlannedSearch):
    """The phases of a schedule, each with its share of the budget; then no further run.

    Raises:
        ConfigError: there is no schedule.
    """

    def __init__(self, rules: MethodRules, budget: int | None = None, seed: int = 1) -> None:
        super().__init__(rules, budget, seed)
        self._schedule = self._of(rules)

    def _of(self, rules: MethodRules) -> Schedule:
        if rules.schedule is None:
            raise ConfigError(
                "search.method is replay, which needs search.schedule: chemcot, papersearchqa, ssmr, "
                "wildsci, guidebook, or a file, such as the strategy.yaml of a search."
            )
        return rules.schedule

    def _next(self) -> Next | None:
        nodes, shares = self._open, self._schedule.shares
        number = sum(node.plan.recipe == "phase" for node in self._nodes.values())
        if number >= len(shares) or (nodes and nodes[-1].is_running):
            return None
        units = shares[number] * (len(shares) if self.budget is None else self.budget)
        why = f"phase {number + 1} of {len(shares)} of the schedule"
        plan = RunPlan(recipe="phase", start="last" if nodes else "base", units=units, number=number, why=why)
        return Next(nodes[-1].id if nodes else None, plan)


class CapacityGuidebook(ScheduleReplay):
    """The capacity guidebook of the paper (Table 13), unless another schedule is given."""

    def _of(self, rules: MethodRules) -> Schedule:
        return rules.schedule or read_schedule("guidebook")


class RandomPerturbation(PlannedSearch):
    """From the best adapter so far, one to three hyper-parameters moved at random: a search without a
    diagnosis."""

    def _next(self) -> Next | None:
        nodes = self._open
        if not nodes:
            return Next(None, _FIRST)
        ended = [node for node in nodes if not node.is_running]
        if not ended:
            return None
        scored = [node for node in ended if node.score is not None]
        best = max(scored, key=lambda node: (node.score, -node.id), default=ended[0])
        why = f"a random change from the best adapter, of node {best.id}"
        return Next(best.id, RunPlan(recipe="perturb", start="best", why=why))
