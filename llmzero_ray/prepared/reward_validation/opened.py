"""The check of a reward whenever its task is opened: a few rows, up to the first defect."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.gold_answers import gold_response, gold_responses
from llmzero_ray.prepared.manifest import RewardEntry
from llmzero_ray.prepared.reward import LoadedReward, open_reward
from llmzero_ray.prepared.reward_validation.calls import Row, call_arguments, result_problem
from llmzero_ray.prepared.reward_validation.no_thought import try_no_thought

logger = logging.getLogger(__name__)
_OPENED = 12
"""Maximum rows on which answers without thought are tried whenever a task is opened."""


def check_reward(entry: RewardEntry, directory: Path, rows: Sequence[Row]) -> str:
    """Check that empty and right answers score as they must on every row. Returns the absolute path of the
    reward's file.

    An asynchronous reward, which may call a service, is only imported. If the manifest has the form of a
    right answer, pay for answers that need no thought is logged as a warning.

    Raises:
        TaskError: the first fault: it cannot be imported, raises, lacks keys, pays for an empty answer, or
            does not pay for the gold response; or it does not ship and there is no sandbox to try it in.
    """
    with open_reward(entry, directory) as reward:
        if not reward.asynchronous:
            form = entry.gold_response
            check_rows(reward, form, rows)
            if form is not None:
                some = rows[:: -(-len(rows) // _OPENED)]
                for pay in try_no_thought(
                    reward, some, lambda row: gold_response(form, row["reward_model"]["ground_truth"])
                ):
                    if pay.is_fault:
                        logger.warning("%s: %s", reward, pay.text())
        return str(reward.path)


def check_rows(reward: LoadedReward, gold_response: str | None, rows: Sequence[Row]) -> None:
    """Try an empty and a right answer on each row, so that a fault shows here and not in VeRL's workers.
    `gold_response` must score 1, `{answer}` standing for the ground truth.

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
    """The reward's result, checked for the form that VeRL and the engine need."""
    [outcome] = reward.score([call_arguments(row, response)])
    if outcome.problem:
        truth = row["reward_model"]["ground_truth"]
        raise TaskError(f"{reward} {outcome.problem}; response {response!r}, ground truth {truth!r}")
    if problem := result_problem(outcome.result):
        raise TaskError(f"{reward} {problem}")
    result: Mapping[str, Any] = outcome.result
    return result
