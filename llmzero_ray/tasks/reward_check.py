"""Try a task's reward function on a few rows before a search relies on it.

A reward that cannot be imported, raises, or changes its keys from row to row fails here with its reason,
instead of inside VeRL's workers. The reward of a file runs in a sandbox. Asynchronous rewards, which may ask
a service, are imported only. Not here: what a reward must do to be trusted (gate.py).
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.manifest import RewardEntry
from llmzero_ray.tasks.rewards.loading import ALLOW_IN_MANIFEST
from llmzero_ray.tasks.sandbox import Foreign, Outcome, Sandbox

REQUIRED_KEYS = ("score", "acc")
_VERLS_OWN_KEY = "reward"
"""VeRL adds a key of this name itself and would count the score twice."""

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Reward:
    ask: Callable[[Row], Outcome]
    asynchronous: bool
    path: Path
    name: str

    def __str__(self) -> str:
        return f"reward {self.name} of {self.path}"


def check_reward(entry: RewardEntry, directory: Path, rows: Sequence[Row]) -> str:
    """Absolute path of the reward's file, once it works on `rows`; a relative path starts at `directory`.

    Raises:
        TaskError: it cannot be imported, raises, lacks keys, pays for silence, or does not pay for the gold
            response; or it is a file and there is no sandbox to try it in.
    """
    with _opened(entry, directory) as reward:
        if not reward.asynchronous:
            shapes = {tuple(sorted(_check_row(reward, entry.gold_response, row))) for row in rows}
            if len(shapes) > 1:
                raise TaskError(
                    f"{reward} returns different keys for different rows: {sorted(shapes)}; VeRL needs the "
                    "same for all"
                )
        return str(reward.path)


@contextlib.contextmanager
def _opened(entry: RewardEntry, directory: Path) -> Iterator[_Reward]:
    if entry.module is not None:
        yield _of_module(entry.module, entry.name)
        return
    path = (directory / str(entry.path)).resolve()
    allowed = entry.allow_unsandboxed
    with Sandbox(path, entry.name, allow_unsandboxed=allowed, how_to_allow=ALLOW_IN_MANIFEST) as sandbox:
        yield _Reward(
            ask=lambda row: sandbox.score([row])[0],
            asynchronous=sandbox.asynchronous,
            path=path,
            name=entry.name,
        )


def _of_module(named: str, name: str) -> _Reward:
    try:
        module = importlib.import_module(named)
    except Exception as error:  # a user's module may raise anything
        raise TaskError(f"reward {named} cannot be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        held = ", ".join(name for name, value in vars(module).items() if inspect.isfunction(value))
        raise TaskError(f"reward {named} has no function {name!r}; it has: {held or 'none'}")
    path = getattr(module, "__file__", None)
    if path is None:
        raise TaskError(f"reward {named} is not a file that VeRL's workers could load; put it into a module")

    def ask(row: Row) -> Outcome:
        try:
            return Outcome(result=function(**row))
        except Exception as error:  # noqa: BLE001  a user's reward may raise anything
            return Outcome(result=None, problem=f"raises {type(error).__name__}: {error}")

    asynchronous = inspect.iscoroutinefunction(function)
    return _Reward(ask=ask, asynchronous=asynchronous, path=Path(path).resolve(), name=name)


def _check_row(reward: _Reward, gold_response: str | None, row: Row) -> set[str]:
    """Keys of the results for the empty and the gold response."""
    truth = row["reward_model"]["ground_truth"]
    empty = _call(reward, row, "")
    if empty["acc"] != 0:
        raise TaskError(
            f"{reward} gives acc {empty['acc']} to an empty response (ground truth {truth!r}); it must give 0"
        )
    if gold_response is None:
        return set(empty)
    response = gold_response.replace("{answer}", truth)
    gold = _call(reward, row, response)
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


def _call(reward: _Reward, row: Row, response: str) -> Mapping[str, Any]:
    """The reward's result, once it has the form that VeRL and the engine need."""
    outcome = reward.ask(question(row, response))
    if outcome.problem:
        truth = row["reward_model"]["ground_truth"]
        raise TaskError(f"{reward} {outcome.problem}; response {response!r}, ground truth {truth!r}")
    if problem := result_problem(outcome.result):
        raise TaskError(f"{reward} {problem}")
    valid: Mapping[str, Any] = outcome.result
    return valid


def question(row: Row, response: str) -> dict[str, Any]:
    """The arguments with which VeRL asks for the score of a response to a row of a task."""
    return {
        "data_source": row["data_source"],
        "solution_str": response,
        "ground_truth": row["reward_model"]["ground_truth"],
        "extra_info": dict(row["extra_info"]),
    }


def result_problem(result: Any) -> str | None:
    """Why VeRL or the engine could not use what a reward returned; None: they can."""
    expected = " and ".join(REQUIRED_KEYS)
    if not isinstance(result, Mapping):
        found = result.name if isinstance(result, Foreign) else type(result).__name__
        return f"returns {found}; it must return a dict with {expected}"
    missing = ", ".join(key for key in REQUIRED_KEYS if key not in result)
    if missing:
        return (
            f"returns no {missing}; keys expected: {expected}; found: {', '.join(map(str, result)) or 'none'}"
        )
    if _VERLS_OWN_KEY in result:
        return f"returns a key named {_VERLS_OWN_KEY!r}, which VeRL uses itself; rename it"
    for key in REQUIRED_KEYS:
        if not isinstance(result[key], int | float) or not math.isfinite(result[key]):
            return f"returns {key} = {result[key]!r}; it must be a finite number"
    return None
