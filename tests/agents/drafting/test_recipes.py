"""The registry of recipes: everything in it can be configured, and rules rank it by the task."""

from __future__ import annotations

import dataclasses

import pytest

from llmzero_ray.config import parse_config
from llmzero_ray.engines.verl.overrides import hydra_literal
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.hyperparameters.verl_keys import ADV_NORM, CLIP_HIGH, USE_KL_LOSS
from llmzero_ray.tasks.drafting.base import TaskFeatures
from llmzero_ray.tasks.drafting.config_fields import response_tokens, tokens_of
from llmzero_ray.tasks.drafting.recipes import CASES, matching_cases, rank_recipes, recipes

FACTS = TaskFeatures(n_train=5_000, kind="math", prompt_tokens=200, answer_tokens=4, n_labels=None)


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_is_a_root_that_can_be_trained(name: str) -> None:
    config = parse_config({"name": "x", "root": {"overrides": {**recipes()[name].overrides, "resp": 512}}})
    root = root_hyperparameters(config, 5_000)
    assert [hydra_literal(value) for value in root.values()]
    assert set(recipes()[name].points) <= set(CASES)


def test_the_recipes_differ_in_what_they_train_with() -> None:
    roots = [
        root_hyperparameters(parse_config({"name": "x", "root": {"overrides": each.overrides}}), 5_000)
        for each in recipes().values()
    ]
    kinds = {
        (root[ADV_NORM], root[CLIP_HIGH], root[USE_KL_LOSS], root["actor_rollout_ref.actor.loss_agg_mode"])
        for root in roots
    }
    assert len(kinds) == len(roots) >= 4


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"answer_tokens": 600}, "dapo_clip"),
        ({"n_train": 800}, "practitioner"),
        ({"kind": "exact_match", "n_labels": 3}, "grpo"),
    ],
)
def test_rules_rank_all_recipes_by_what_the_task_is_like(changes: dict[str, object], first: str) -> None:
    features = dataclasses.replace(FACTS, **changes)  # type: ignore[arg-type]
    ranking = rank_recipes(features, response_tokens(features))
    assert ranking.names[0] == first and set(ranking.names) == set(recipes())
    assert all(
        CASES[case] in ranking.explanation for case in matching_cases(features, response_tokens(features))
    )


def test_lengths_grow_with_answers_and_scripts_that_need_more_tokens() -> None:
    assert tokens_of("abcdef") == 2 and tokens_of("日本語") == 3
    assert response_tokens(FACTS) == 1_280
    assert response_tokens(dataclasses.replace(FACTS, kind="exact_match", answer_tokens=1)) == 768
    assert response_tokens(dataclasses.replace(FACTS, answer_tokens=10**6)) == 32_768
