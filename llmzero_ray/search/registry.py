"""Search methods by name: `llmzero`, the tree search of the paper; those that are compared with it; or a
user's factory."""

from __future__ import annotations

from collections.abc import Callable

from llmzero_ray.config.search_rules import MethodRules, SearchRules
from llmzero_ray.search.base import SearchMethod
from llmzero_ray.search.chains import (
    CapacityGuidebook,
    RandomPerturbation,
    ScheduleReplay,
    UnchangedContinuation,
)
from llmzero_ray.search.halving import AsynchronousHalving
from llmzero_ray.search.independent import DefaultRecipe, GridSearch, RandomSearch, SuggestedRuns
from llmzero_ray.search.planned_search import PlannedSearch
from llmzero_ray.search.population import PopulationTraining
from llmzero_ray.search.skill_search import SkillSearch
from llmzero_ray.search.tree_search import TreeSearch
from llmzero_ray.utils.plugins import load_factory

_METHODS: dict[str, Callable[[SearchRules, int | None], SearchMethod]] = {
    "llmzero": TreeSearch,
    "skills": SkillSearch,
}
PLANNED: dict[str, type[PlannedSearch]] = {
    "default": DefaultRecipe,
    "unchanged": UnchangedContinuation,
    "random": RandomSearch,
    "grid": GridSearch,
    "tpe": SuggestedRuns,
    "cmaes": SuggestedRuns,
    "asha": AsynchronousHalving,
    "pbt": PopulationTraining,
    "perturb": RandomPerturbation,
    "replay": ScheduleReplay,
    "guidebook": CapacityGuidebook,
}
"""Methods that plan their runs themselves; agents/methods fills in the values."""
METHODS = ("llmzero", *PLANNED, "skills")
PROPOSED = tuple(_METHODS)
"""Methods whose phases agents propose, of any length, and end early: of them the compute is limited, not the
number of usual phases."""
MODEL_METHODS = ("skills",)
"""Methods that a language model carries out: rules cannot take its place."""


def is_planned(method: str) -> bool:
    """Whether a method plans its runs itself, so that no agent decides on them."""
    return method in PLANNED


def make_search(method: str, rules: SearchRules, budget: int | None, seed: int = 1) -> SearchMethod:
    """A new search by a method: one of `METHODS`, or a factory of a plug-in, called with (rules, budget).

    Raises:
        ConfigError: the factory cannot be loaded, or the method lacks what it needs.
    """
    planned = PLANNED.get(method)
    if planned is not None:
        own = rules if isinstance(rules, MethodRules) else MethodRules(**rules.model_dump())
        return planned(own, budget, seed)
    factory = _METHODS.get(method) or load_factory(method, field="search.method", own=METHODS)
    found: SearchMethod = factory(rules, budget)
    return found
