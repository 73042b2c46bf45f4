"""The training recipes of prompts/recipes.yaml, and the rules that rank them for a task.

A recipe is a set of hyper-parameters of VeRL's GRPO trainer that `root.overrides` accepts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from pydantic import Field

from llmzero_ray.agents.knowledge import prompt_file
from llmzero_ray.config.yaml_text import StrictModel, read_yaml, validated
from llmzero_ray.tasks.drafting.base import RecipeRanking, TaskFeatures

RECIPES = "recipes.yaml"
_FEW_ROWS, _LONG_TOKENS, _FEW_LABELS = 2_000, 1_024, 10
_REASONED = ("math", "python", "mcq")
CASES = {
    "few_rows": f"fewer than {_FEW_ROWS} training rows, which are seen many times",
    "many_rows": f"{_FEW_ROWS} training rows or more",
    "reasoning": "an answer that needs a chain of thought",
    "short_answers": "short answers without a long chain of thought",
    "long_responses": f"responses of more than {_LONG_TOKENS} tokens",
    "few_labels": f"at most {_FEW_LABELS} different answers, so that a policy can collapse onto one",
}
"""Case -> its description; recipes get points for cases."""


class Recipe(StrictModel):
    """One entry of the registry."""

    title: str = Field(min_length=1)
    fits: str = Field(min_length=1)
    """Cases in which to choose it."""
    overrides: dict[str, bool | int | float | str]
    """Entries for `root.overrides`."""
    points: dict[str, int]
    """Case -> points for the recipe where the case applies; may be negative."""


@cache
def recipes() -> Mapping[str, Recipe]:
    """Name -> recipe, the default first.

    Raises:
        ConfigError: the installation lacks the file.
    """
    data = read_yaml(prompt_file(RECIPES).read_text(encoding="utf-8"), source=RECIPES)
    return {name: validated(Recipe, held, f"{RECIPES}: {name}") for name, held in data.items()}


def matching_cases(features: TaskFeatures, response_tokens: int) -> tuple[str, ...]:
    """The cases of `CASES` that apply to a task."""
    reasoned = features.kind in _REASONED
    holds = {
        "few_rows": features.n_train < _FEW_ROWS,
        "many_rows": features.n_train >= _FEW_ROWS,
        "reasoning": reasoned,
        "short_answers": not reasoned,
        "long_responses": response_tokens > _LONG_TOKENS,
        "few_labels": features.n_labels is not None and features.n_labels <= _FEW_LABELS,
    }
    return tuple(case for case in CASES if holds[case])


def rank_recipes(features: TaskFeatures, response_tokens: int) -> RecipeRanking:
    """All recipes by points, highest first; ties keep the order of the file."""
    cases = matching_cases(features, response_tokens)
    known = recipes()
    points = {name: sum(recipe.points.get(case, 0) for case in cases) for name, recipe in known.items()}
    names = tuple(sorted(known, key=lambda name: -points[name]))
    described = "; ".join(CASES[case] for case in cases)
    scores = ", ".join(f"{name} {points[name]:+d}" for name in names)
    return RecipeRanking(names=names, explanation=f"The task has {described}. Points: {scores}.")
