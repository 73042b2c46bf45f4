"""The quick check of a reward: an empty and a right answer to each of a few rows, up to the first fault.

A reward that raises, pays for silence, or changes its keys from row to row fails here with its reason,
instead of inside VeRL's workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.gold_answers import gold_responses
from llmzero_ray.prepared.reward import LoadedReward
from llmzero_ray.prepared.reward_validation.calls import Row, call_arguments, result_problem


def check_rows(reward: LoadedReward, gold_response: str | None, rows: Sequence[Row]) -> None:
    """Return quietly when the reward works on `rows`; `gold_response` must then score 1, `{answer}` standing
    for the ground truth.

    Raises:
        TaskError: the first fault.
    """
    key_sets = {tuple(sorted(_keys_of_row(reward, gold_response, row))) for row in rows}
    if len(key_sets) > 1:
        raise TaskError(
            f"{reward} returns different keys for different rows: {sorted(key_sets)}; VeRL needs the "
            "same for all"
        )


def _keys_of_row(reward: LoadedReward, gold_response: str | None, row: Row) -> set[str]:
    """Keys of the results for the empty and the gold response."""
    truth = row["reward_model"]["ground_truth"]
    empty = _result(reward, row, "")
    if empty["acc"] != 0:
        raise TaskError(
            f"{reward} gives acc {empty['acc']} to an empty response (ground truth {truth!r}); it must give 0"
        )
    if gold_response is None:
        return set(empty)
    responses = gold_responses(gold_response, truth)
    tried = [(response, _result(reward, row, response)) for response in responses]
    response, gold = max(tried, key=lambda one: one[1]["acc"] == 1)
    if gold["acc"] != 1:
        raise TaskError(
            f"{reward} gives acc {gold['acc']} to the gold response {response!r}; it must give 1. Correct "
            "the reward, or gold_response in the manifest"
        )
    if set(gold) != set(empty):
        raise TaskError(
            f"{reward} returns the keys {sorted(gold)} for a right answer and {sorted(empty)} for none; VeRL "
            "needs the same for all"
        )
    return set(empty)


def _result(reward: LoadedReward, row: Row, response: str) -> Mapping[str, Any]:
    """The reward's result, once it has the form that VeRL and the engine need."""
    [outcome] = reward.score([call_arguments(row, response)])
    if outcome.problem:
        truth = row["reward_model"]["ground_truth"]
        raise TaskError(f"{reward} {outcome.problem}; response {response!r}, ground truth {truth!r}")
    if problem := result_problem(outcome.result):
        raise TaskError(f"{reward} {problem}")
    result: Mapping[str, Any] = outcome.result
    return result
