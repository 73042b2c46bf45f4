"""Static recipes: the default one alone, random ones and a grid.

Each is trained from the base model in one phase and never resumed. The paper's baselines train 8 (App. B.2);
here the budget is split over them, so that all methods cost the same. Not here: recipes that a sampler
suggests (suggested.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmzero_ray.config import SearchConfig
from llmzero_ray.config.schedule import Grid, shipped
from llmzero_ray.config.search_rules import MethodRules
from llmzero_ray.errors import ConfigError
from llmzero_ray.methods.planned_search import PlannedSearch
from llmzero_ray.methods.run_plan import RunPlan
from llmzero_ray.methods.values import PlannedStart, grid_cell, n_cells
from llmzero_ray.records import HyperparameterValue


class DefaultRecipe(PlannedSearch):
    """The default recipe in one phase as long as the budget. If the budget is raised later, it continues."""

    def next_run(self) -> RunPlan | None:
        """One run of the whole budget, later a run of what a raised budget has left."""
        if not self.runs:
            why = "the default recipe in one phase"
            return RunPlan(source="default", units=float(self.budget or 1), why=why)
        last = self.runs[-1]
        if last.is_running:
            return None
        left = 1.0 if self.left is None else self.left
        why = "the budget was raised: the recipe continues"
        return RunPlan(on=last.id, source="unchanged", start="last", units=left, why=why)


class IndependentRuns(PlannedSearch):
    """`rules.n_trials` runs from the base model, each with an equal share of the budget."""

    source: str
    words: str
    """Name of a recipe, for explanations."""
    may_go_on = True
    """Whether a raised budget adds recipes."""

    def next_run(self) -> RunPlan | None:
        """The next recipe, which does not depend on scores."""
        number, n_trials = len(self.nodes), self.rules.n_trials
        if number >= n_trials and not self.may_go_on:
            return None
        units = 1.0 if self.budget is None else self.budget / n_trials
        why = f"{self.words} {number + 1} of {n_trials}"
        return RunPlan(source=self.source, units=units, number=number, why=why)


class RandomSearch(IndependentRuns):
    """Recipes drawn at random from `search.ranges`."""

    source, words = "draw", "random recipe"


class GridSearch(IndependentRuns):
    """The cells of a grid. Raising the budget does not add cells."""

    source, words, may_go_on = "cell", "cell of the grid", False

    @classmethod
    def check_plan(cls, config: SearchConfig) -> None:
        """Check that each cell of the grid is one trial.

        Raises:
            ConfigError: a key has no factor, there are more or fewer trials, or the runs are too long.
        """
        for name, factors in _grid(config.search).items():
            if not factors:
                raise ConfigError(f"search.grid: {name} has no factor; give some, such as [0.5, 1.0].")
        cells, given = n_cells(_grid(config.search)), config.search.n_trials
        if given != cells:
            raise ConfigError(
                f"search.n_trials is {given}, and the grid has {cells} cells; set search.n_trials to {cells}."
            )
        super().check_plan(config)

    def values(self, plan: RunPlan, at: PlannedStart) -> Mapping[str, HyperparameterValue]:
        """The cell's values.

        Raises:
            ValueError: the grid does not have that many cells.
        """
        if plan.source != "cell":
            return {}
        return grid_cell(_grid(self.rules), at.root, plan.number)


def _grid(rules: MethodRules) -> Mapping[str, Sequence[float]]:
    return rules.grid or shipped(Grid, "lr_kl")
