"""What the groups of a training step teach: how many are mixed, and what the best of each scores."""

from __future__ import annotations

import pytest

from llmzero_ray.engines.verl.verl_hooks import group_metrics


def test_a_group_is_mixed_if_its_answers_score_differently_and_counts_with_its_best() -> None:
    # Four prompts with two answers each: both right, mixed, both wrong, mixed by a partial score.
    scores = {"a": (1.0, 1.0), "b_c": (0.0, 1.0), "d": (0.0, 0.0), "e": (0.25, 0.0)}
    keys = [f"{prompt}_{session}_0" for session in range(2) for prompt in scores]
    found = group_metrics(keys, [scores[prompt][session] for session in range(2) for prompt in scores])
    assert found == {
        "critic/score/mixed_groups": 0.5,
        "critic/score/best@n": pytest.approx((1 + 1 + 0 + 0.25) / 4),
    }


def test_groups_that_all_score_the_same_teach_nothing() -> None:
    keys = ["a_0_0", "a_1_0", "b_0_0", "b_1_0"]
    for score in (0.0, 1.0):
        found = group_metrics(keys, [score] * 4)
        assert found == {"critic/score/mixed_groups": 0.0, "critic/score/best@n": score}
