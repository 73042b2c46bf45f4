"""Static recipes: the default one alone, drawn ones, a grid, and those that a sampler suggests.

Each is trained from the base model in one phase and resumed by nobody. The paper's baselines train 8 (App.
B.2); here the budget is split over them, so that all methods cost the same.
"""

from __future__ import annotations

from llmzero_ray.search.planned_search import Next, PlannedSearch
from llmzero_ray.search.run_plan import Recipe, RunPlan


class DefaultRecipe(PlannedSearch):
    """The root's recipe in one phase as long as the budget; where that is raised later, it goes on."""

    def _next(self) -> Next | None:
        nodes = self._open
        if not nodes:
            return Next(
                None,
                RunPlan(
                    recipe="default", units=float(self.budget or 1), why="the default recipe in one phase"
                ),
            )
        if nodes[-1].is_running:
            return None
        left = 1.0 if self.budget is None else self.budget - self.units
        plan = RunPlan(
            recipe="unchanged", start="last", units=left, why="the budget was raised: the recipe goes on"
        )
        return Next(nodes[-1].id, plan)


class IndependentRuns(PlannedSearch):
    """`rules.recipes` runs from the base model, each with an equal share of the budget."""

    recipe_kind: Recipe
    words: str
    """What a recipe is, for explanations."""
    may_go_on = True
    """Whether a raised budget brings further recipes."""

    def _next(self) -> Next | None:
        number, recipes = len(self._nodes), self.rules.recipes
        if number >= recipes and not self.may_go_on:
            return None
        units = 1.0 if self.budget is None else self.budget / recipes
        why = f"{self.words} {number + 1} of {recipes}"
        return Next(None, RunPlan(recipe=self.recipe_kind, units=units, number=number, why=why))


class RandomSearch(IndependentRuns):
    """Recipes drawn from the ranges."""

    recipe_kind, words = "draw", "random recipe"


class GridSearch(IndependentRuns):
    """The cells of a grid; a budget that is raised later buys no further cell."""

    recipe_kind, words, may_go_on = "cell", "cell of the grid", False


class SuggestedRuns(IndependentRuns):
    """Recipes that a sampler suggests from the scores of the earlier ones."""

    recipe_kind, words = "suggest", "suggested recipe"
