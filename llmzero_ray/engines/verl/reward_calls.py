"""Rewards of a batch of samples: shipped rewards run in this process, others in VeRL's reward workers.

Every reward function gets a copy of the arguments that VeRL's naive reward manager passes. Workers count the
answers that could not be scored, and a batch with too many of them ends its phase.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

from llmzero_ray.engines.verl import confined_reward
from llmzero_ray.engines.verl.cpu.batched_rollouts import Trajectory
from llmzero_ray.errors import LlmzeroError, RewardError

logger = logging.getLogger(__name__)


def score_here(function: Callable[..., Any], samples: Sequence[Trajectory], texts: Sequence[str]) -> None:
    """Call `function` for each sample in turn, and set a score and `reward_extra_info`, or an error, on
    it."""
    for sample, text in zip(samples, texts, strict=True):
        try:
            result = function(**arguments_of(sample, text))
            take_result(sample, result)
        except Exception as error:
            logger.warning("the reward of %s raised", sample.key, exc_info=True)
            sample.error = f"the reward raised {type(error).__name__}: {error}"


def score_in_workers(workers: Sequence[Any], samples: Sequence[Trajectory], texts: Sequence[str]) -> None:
    """Score the samples with one call to each of `workers` (handles of BatchRewardWorker). Sets a score and
    `reward_extra_info`, or an error, on each sample."""
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
    """Arguments that VeRL's naive reward manager passes to a reward function, copied so that the function
    cannot change a row."""
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
    """Store the result of a reward function as VeRL's naive reward manager does: a dictionary with `score`,
    or only the score, which is then also `acc`.

    Raises:
        KeyError: the dictionary has no `score`.
        TypeError, ValueError: the score is not a number.
    """
    info = dict(result) if isinstance(result, Mapping) else {"acc": result}
    score = result["score"] if isinstance(result, Mapping) else result
    sample.score = float(score)
    sample.extra_fields["reward_extra_info"] = info


def said(error: BaseException) -> str:
    """Reason why a reward gave no score, as text."""
    ours = isinstance(error, LlmzeroError)
    return str(error) if ours else f"the reward raised {type(error).__name__}: {error}"


@dataclass(frozen=True)
class Unscored:
    """Number of answers that could not be scored since the previous `take_unscored`, and why."""

    n: int = 0
    last: str = ""
    """Reason why the last one has no score."""
    broken: str = ""
    """Reason why no answer can be scored any more. Empty if some can."""


def take_unscored(workers: Sequence[Any]) -> Unscored:
    """Unscored rows of all `workers` (handles of BatchRewardWorker), combined."""
    import ray

    found: list[Unscored] = ray.get([worker.take_unscored.remote() for worker in workers])
    return Unscored(
        n=sum(one.n for one in found),
        last=next((one.last for one in found if one.last), ""),
        broken=next((one.broken for one in found if one.broken), ""),
    )


def refuse_unscored(unscored: Unscored, n_answers: int) -> None:
    """Check that the reward scores at least half of `n_answers`.

    Raises:
        RewardError: it scored fewer, or can no longer score any answer.
    """
    if unscored.broken:
        raise RewardError(f"the reward is given up: {unscored.broken}")
    if 2 * unscored.n > n_answers:
        raise RewardError(
            f"the reward could not score {unscored.n} of {n_answers} answers, the last of them because "
            f"{unscored.last}; correct the reward"
        )


class BatchRewardWorker(RewardLoopWorker):
    """VeRL's reward worker that counts unscored answers, and scores many samples in one call."""

    def _init_reward_fn(self) -> None:
        self._unscored, self._counting = Unscored(), threading.Lock()
        super()._init_reward_fn()
        self.reward_manager.compute_score = self._counted(self.reward_manager.compute_score)

    def begin_phase(self) -> None:
        """Restart counting, and retry a reward that was given up."""
        self.take_unscored()
        self._unscored = Unscored()
        confined_reward.renew()

    def take_unscored(self) -> Unscored:
        """Answers that could not be scored since the previous call."""
        with self._counting:
            found = self._unscored
            self._unscored = Unscored(broken=found.broken)
        return found

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def awaited(*args: Any, **arguments: Any) -> Any:
            try:
                return await function(*args, **arguments)
            except Exception as error:
                self._count(error)
                raise

        @functools.wraps(function)
        def called(*args: Any, **arguments: Any) -> Any:
            try:
                return function(*args, **arguments)
            except Exception as error:
                self._count(error)
                raise

        return awaited if inspect.iscoroutinefunction(function) else called

    def _count(self, error: Exception) -> None:
        with self._counting:
            broken = said(error) if isinstance(error, RewardError) else self._unscored.broken
            self._unscored = Unscored(n=self._unscored.n + 1, last=said(error), broken=broken)

    async def score_samples(self, calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Results of the reward function for each set of keyword arguments: `result`, or `error` with a
        description if it raised. Functions that are not coroutines run on several threads."""
        asked = [self._call(arguments) for arguments in calls]
        results = await asyncio.gather(*asked, return_exceptions=True)
        return [
            {"error": said(result)} if isinstance(result, BaseException) else {"result": result}
            for result in results
        ]

    async def _call(self, arguments: Mapping[str, Any]) -> Any:
        function = self.reward_manager.compute_score
        if self.reward_manager.is_async_reward_score:
            return await function(**arguments)
        return await asyncio.get_running_loop().run_in_executor(None, lambda: function(**arguments))
