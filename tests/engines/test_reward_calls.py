"""What a reward function is given and what is kept of its result, in the driver and in reward workers."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from llmzero_ray.engines.verl.batched_rollouts import Trajectory
from tests.builders import verl_settings

pytest.importorskip("verl")

SETTINGS = verl_settings()


def sample() -> Trajectory:
    row = {
        "uid": "u",
        "data_source": "echo",
        "reward_model": {"ground_truth": ["7"]},
        "extra_info": {"index": 3, "parts": ["a"]},
    }
    return Trajectory(row=row, session=0, extra_fields={"global_steps": 2, "turn_scores": []})


def test_a_function_that_writes_into_its_arguments_changes_no_row() -> None:
    from llmzero_ray.engines.verl.reward_calls import score_here

    def greedy(*, extra_info: Any, ground_truth: Any, **_: Any) -> float:
        extra_info["parts"].append("b")
        extra_info["turn_scores"].append(1)
        extra_info["index"] = None
        ground_truth.clear()
        return 0.5

    one = sample()
    score_here(greedy, [one], ["text"])
    assert one.row == sample().row
    assert (one.score, one.error) == (0.5, None)
    assert one.extra_fields == {"global_steps": 2, "turn_scores": [], "reward_extra_info": {"acc": 0.5}}


def test_the_arguments_are_those_of_verls_naive_reward_manager() -> None:
    from llmzero_ray.engines.verl.reward_calls import arguments_of

    assert arguments_of(sample(), "text") == {
        "data_source": "echo",
        "solution_str": "text",
        "ground_truth": ["7"],
        "extra_info": {
            "index": 3,
            "parts": ["a"],
            "global_steps": 2,
            "turn_scores": [],
            "num_turns": 2,
            "rollout_reward_scores": {},
        },
    }


@pytest.mark.parametrize("result", [{"acc": 1.0}, {"score": "much"}, "much", None])
def test_a_result_without_a_score_is_an_error_of_that_sample(result: Any) -> None:
    from llmzero_ray.engines.verl.reward_calls import score_here

    one, other = sample(), sample()
    results = iter([result, {"score": 1, "acc": 0.5}])
    score_here(lambda **_: next(results), [one, other], ["", ""])
    assert one.score is None and one.error is not None
    assert other.score == 1.0 and other.extra_fields["reward_extra_info"] == {"score": 1, "acc": 0.5}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_reward_worker_says_which_of_many_samples_raised(asynchronous: bool) -> None:
    from llmzero_ray.engines.verl.reward_calls import BatchRewardWorker

    def reward(*, solution_str: str) -> float:
        return 1 / int(solution_str)

    async def slowly(*, solution_str: str) -> float:
        await asyncio.sleep(0)
        return reward(solution_str=solution_str)

    worker = BatchRewardWorker.__new__(BatchRewardWorker)
    worker.reward_manager = SimpleNamespace(
        compute_score=slowly if asynchronous else reward, is_async_reward_score=asynchronous
    )
    calls = [{"solution_str": text} for text in ("2", "0", "4")]
    found = asyncio.run(worker.score_samples(calls))
    assert found[0] == {"result": 0.5} and found[2] == {"result": 0.25}
    assert "ZeroDivisionError" in found[1]["error"]


def test_only_rewards_that_ship_are_called_in_the_driver() -> None:
    assert SETTINGS.scores_in_driver
    for source in (
        "/task/vetted_reward.py",
        "pkg://theirs.rewards",
        "pkg://llmzero_ray.tasks.rewards_of_mine.x",
    ):
        assert not dataclasses.replace(SETTINGS, reward_source=source).scores_in_driver
    assert not dataclasses.replace(SETTINGS, rollout_calls="per_request").scores_in_driver
    changed = {"reward.reward_manager.name": "dapo"}
    assert not dataclasses.replace(SETTINGS, overrides=changed).scores_in_driver


def test_reward_workers_are_started_for_other_rewards_alone() -> None:
    from llmzero_ray.engines.verl.overrides import engine_overrides

    theirs = dataclasses.replace(SETTINGS, reward_source="/task/reward.py", reward_workers=3)
    assert engine_overrides(SETTINGS)["reward.num_workers"] == 0
    assert engine_overrides(theirs)["reward.num_workers"] == 3
