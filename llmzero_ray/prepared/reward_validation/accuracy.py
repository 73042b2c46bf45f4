"""Mean accuracies that a reward gives to right, empty and meaningless answers, and to those that need no
thought."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.manifest import RewardEntry
from llmzero_ray.prepared.reward import LoadedReward, open_reward
from llmzero_ray.prepared.reward_validation.calls import Row, accuracy_of, call_arguments, result_problem
from llmzero_ray.prepared.reward_validation.no_thought import NoThoughtPay, try_no_thought
from llmzero_ray.prepared.reward_validation.probe_responses import GARBAGE
from llmzero_ray.prepared.sandbox import CallOutcome

GoldResponse: TypeAlias = Callable[[str, str], str | None]
"""Response that must score 1 for a data_source and a ground truth, or None if not known."""
N_SAMPLES = 5
"""Rows that are kept to be shown."""


@dataclass(frozen=True, kw_only=True)
class ScoredSample:
    """One row and the accuracies of three answers to it."""

    data_source: str
    prompt: str
    """Content of its last message."""
    ground_truth: str
    gold: float | None
    """Score of the gold answer, or None if there is none."""
    empty: float
    garbage: float


@dataclass(frozen=True, kw_only=True)
class RewardAccuracy:
    """Mean accuracies over `n_rows` rows, in [0, 1], and a few of the rows."""

    n_rows: int
    gold: float | None
    """Over the rows that have a gold answer; None when no row has."""
    empty: float
    garbage: float
    samples: tuple[ScoredSample, ...]
    no_thought: tuple[NoThoughtPay, ...]
    """Pay of each kind of answer."""


def measure_accuracy(
    entry: RewardEntry, directory: Path, rows: Sequence[Row], gold_response: GoldResponse
) -> RewardAccuracy | None:
    """The accuracies over all `rows`, of which there must be one or more. None for an asynchronous reward.

    Raises:
        TaskError: it cannot be imported, raises, or returns results that VeRL cannot use.
    """
    with open_reward(entry, directory) as reward:
        return None if reward.asynchronous else _measured(reward, rows, gold_response)


def _measured(reward: LoadedReward, rows: Sequence[Row], gold_response: GoldResponse) -> RewardAccuracy:
    golds = [gold_response(row["data_source"], row["reward_model"]["ground_truth"]) for row in rows]
    probes = [[*([] if gold is None else [gold]), "", GARBAGE[0]] for gold in golds]
    calls = [
        call_arguments(row, response)
        for row, responses in zip(rows, probes, strict=True)
        for response in responses
    ]
    scores = iter([_accuracy(outcome) for outcome in reward.score(calls)])
    samples = [
        ScoredSample(
            data_source=row["data_source"],
            prompt=row["prompt"][-1]["content"],
            ground_truth=row["reward_model"]["ground_truth"],
            gold=None if gold is None else next(scores),
            empty=next(scores),
            garbage=next(scores),
        )
        for row, gold in zip(rows, golds, strict=True)
    ]
    found = [sample.gold for sample in samples if sample.gold is not None]
    step = max(1, len(samples) // N_SAMPLES)
    return RewardAccuracy(
        n_rows=len(samples),
        gold=fmean(found) if found else None,
        empty=fmean(sample.empty for sample in samples),
        garbage=fmean(sample.garbage for sample in samples),
        samples=tuple(samples[::step][:N_SAMPLES]),
        no_thought=try_no_thought(
            reward, rows, lambda row: gold_response(row["data_source"], row["reward_model"]["ground_truth"])
        ),
    )


def _accuracy(outcome: CallOutcome) -> float:
    if problem := outcome.problem or result_problem(outcome.result):
        raise TaskError(f"the reward {problem}; correct the reward")
    return accuracy_of(outcome)
