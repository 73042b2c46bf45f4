"""What is read of a training step's answers: what its groups teach, and a few of them as texts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import NonTensorStack, TensorDict

from llmzero_ray.agents.knowledge import metric_notes
from llmzero_ray.engines.verl.verl_hooks import group_metrics, places_to_show, sampled_answers
from llmzero_ray.records import Answer


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


@given(st.lists(st.tuples(*[st.sampled_from([0.0, 1.0])] * 3), min_size=1, max_size=9))
def test_groups_that_are_all_wrong_or_all_right_follow_as_the_note_says(
    groups: list[tuple[float, ...]],
) -> None:
    keys = [f"{prompt}_{session}_0" for prompt, group in enumerate(groups) for session in range(len(group))]
    found = group_metrics(keys, [score for group in groups for score in group])
    mixed, best = found["critic/score/mixed_groups"], found["critic/score/best@n"]
    note = metric_notes()["critic/score/mixed_groups"].description
    assert "all wrong (1 - best@n) or all right (best@n - mixed_groups)" in note
    assert 1 - best == pytest.approx(sum(not any(group) for group in groups) / len(groups))
    assert best - mixed == pytest.approx(sum(all(group) for group in groups) / len(groups))


@pytest.mark.parametrize(
    ("scores", "cut", "places"),
    [
        # The middle one of four right answers, of three wrong ones and of two that were cut off.
        ([1, 0, 1, 0, 0, 1, 0, 1, 0], [0, 1, 0, 0, 0, 1, 0, 0, 1], [5, 4, 8]),
        ([0.2, 0.9, 0.1, 0.5], [0, 0, 0, 0], [1, 2]),
        ([0, 0, 0], [0, 0, 0], [1]),
        ([1, 1], [1, 1], [1]),
    ],
)
def test_a_right_a_wrong_and_a_cut_off_answer_are_shown(
    scores: list[float], cut: list[bool], places: list[int]
) -> None:
    assert places_to_show(scores, cut) == places


def test_a_sampled_answer_has_its_texts_and_what_the_reward_told() -> None:
    class Tokenizer:
        def batch_decode(self, rows: list[torch.Tensor], *, skip_special_tokens: bool) -> list[str]:
            assert skip_special_tokens
            return [" ".join(map(str, row.tolist())) for row in rows]

    told = {"reward_extra_info": {"acc": 1.0, "pred": "x" * 999}}
    asked = [[{"role": "user", "content": text}] for text in ("1 + 6", "4")]
    rows = [
        {"responses": [3], "extra_fields": told, "reward_model": {"ground_truth": "7"}},
        {"responses": [5, 6], "extra_fields": {}, "reward_model": {"ground_truth": 7}},
    ]
    ids = torch.nested.as_nested_tensor([torch.tensor(row["responses"]) for row in rows], layout=torch.jagged)
    others = {name: NonTensorStack(*(row[name] for row in rows)) for name in ("extra_fields", "reward_model")}
    columns = TensorDict({"responses": ids, "raw_prompt": NonTensorStack(*asked), **others}, batch_size=2)
    assert sampled_answers(columns, [(0.9, False), (0.0, True)], Tokenizer(), 12) == (
        Answer(prompt="1 + 6", response="3", score=0.9, acc=1.0, pred="x" * 200, expected="7", step=12),
        Answer(prompt="4", response="5 6", score=0.0, acc=0.0, cut=True, step=12),
    )
