"""Rewards of a batch of samples: in this process for rewards that ship, in VeRL's reward workers for others.

A reward of one's own may crash, hang or write where it likes, so it stays in a process of its own. Every
function gets what VeRL's naive reward manager passes, a copy of it. Not here: what rewards are
(llmzero_ray/tasks/rewards), which of both ways is taken (settings.py).
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

from llmzero_ray.engines.verl.batched_rollouts import Trajectory

logger = logging.getLogger(__name__)


def score_here(function: Callable[..., Any], samples: Sequence[Trajectory], texts: Sequence[str]) -> None:
    """Call `function` for each sample, one after the other; each gets a score and `reward_extra_info`, or an
    error."""
    for sample, text in zip(samples, texts, strict=True):
        try:
            result = function(**arguments_of(sample, text))
            take_result(sample, result)
        except Exception as error:
            logger.warning("the reward of %s raised", sample.key, exc_info=True)
            sample.error = f"the reward raised {type(error).__name__}: {error}"


def score_in_workers(workers: Sequence[Any], samples: Sequence[Trajectory], texts: Sequence[str]) -> None:
    """One call to each of `workers` (handles of BatchRewardWorker) for its share of the samples; each sample
    gets a score and `reward_extra_info`, or an error."""
    import ray

    share = [list(range(start, len(samples), len(workers))) for start in range(len(workers))]
    calls = [
        worker.score_samples.remote([arguments_of(samples[i], texts[i]) for i in places])
        for worker, places in zip(workers, share, strict=True)
    ]
    for places, call in zip(share, calls, strict=True):
        try:
            results = ray.get(call)
        except Exception as error:
            logger.exception("a reward worker failed to score %d samples", len(places))
            results = [{"error": f"the reward worker failed: {type(error).__name__}"}] * len(places)
        for place, answer in zip(places, results, strict=True):
            sample = samples[place]
            if "error" in answer:
                sample.error = answer["error"]
                continue
            try:
                take_result(sample, answer["result"])
            except (KeyError, TypeError, ValueError) as error:
                sample.error = f"the reward's result cannot be used: {type(error).__name__}: {error}"


def arguments_of(sample: Trajectory, text: str) -> dict[str, Any]:
    """What VeRL's naive reward manager passes to a reward function; copies, so that a function that writes
    into them changes no row."""
    extra_info = copy.deepcopy(sample.row.get("extra_info", {}))
    extra_info.update(copy.deepcopy(sample.extra_fields))
    extra_info["num_turns"] = 2
    extra_info["rollout_reward_scores"] = copy.deepcopy(sample.row.get("reward_scores", {}))
    return {
        "data_source": sample.row["data_source"],
        "solution_str": text,
        "ground_truth": copy.deepcopy(sample.row["reward_model"]["ground_truth"]),
        "extra_info": extra_info,
    }


def take_result(sample: Trajectory, result: Any) -> None:
    """Keep what a reward function returned, as VeRL's naive reward manager does: a dictionary with `score`,
    or the score alone, which then is `acc` too.

    Raises:
        KeyError: a dictionary without `score`.
        TypeError, ValueError: the score is no number.
    """
    info = dict(result) if isinstance(result, Mapping) else {"acc": result}
    score = result["score"] if isinstance(result, Mapping) else result
    sample.score = float(score)
    sample.extra_fields["reward_extra_info"] = info


class BatchRewardWorker(RewardLoopWorker):
    """VeRL's reward worker that also scores many samples in one call."""

    async def score_samples(self, calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """What the reward function returns for each set of keyword arguments, as `result`; where it raised,
        `error` says so in words. Functions that are no coroutines run on threads, several at once."""
        asked = [self._call(arguments) for arguments in calls]
        results = await asyncio.gather(*asked, return_exceptions=True)
        return [
            {"error": f"the reward raised {type(result).__name__}: {result}"}
            if isinstance(result, BaseException)
            else {"result": result}
            for result in results
        ]

    async def _call(self, arguments: Mapping[str, Any]) -> Any:
        function = self.reward_manager.compute_score
        if self.reward_manager.is_async_reward_score:
            return await function(**arguments)
        return await asyncio.get_running_loop().run_in_executor(None, lambda: function(**arguments))
