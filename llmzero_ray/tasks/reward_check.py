"""Try a task's reward function on a few rows before a search relies on it.

A reward that cannot be imported, raises, or changes its keys from row to row fails here with its reason,
instead of inside VeRL's workers. Asynchronous rewards, which may ask a service, are imported only.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.manifest import RewardEntry

REQUIRED_KEYS = ("score", "acc")
_VERLS_OWN_KEY = "reward"
"""VeRL adds a key of this name itself and would count the score twice."""

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Reward:
    function: Callable[..., Any]
    path: Path
    name: str

    def __str__(self) -> str:
        return f"reward {self.name} of {self.path}"


def check_reward(entry: RewardEntry, directory: Path, rows: Sequence[Row]) -> str:
    """Absolute path of the reward's file, once it works on `rows`; a relative path starts at `directory`.

    Raises:
        TaskError: it cannot be imported, raises, lacks keys, pays for silence, or does not pay for the gold
            response.
    """
    reward = _load(entry, directory)
    if not inspect.iscoroutinefunction(reward.function):
        shapes = {tuple(sorted(_check_row(reward, entry.gold_response, row))) for row in rows}
        if len(shapes) > 1:
            raise TaskError(
                f"{reward} returns different keys for different rows: {sorted(shapes)}; VeRL needs the same "
                "for all"
            )
    return str(reward.path)


def _load(entry: RewardEntry, directory: Path) -> _Reward:
    named = entry.module or str((directory / str(entry.path)).resolve())
    try:
        module = importlib.import_module(named) if entry.module else _module_at(Path(named))
    except Exception as error:  # a user's module may raise anything
        raise TaskError(f"reward {named} cannot be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, entry.name, None)
    if not callable(function):
        held = ", ".join(name for name, value in vars(module).items() if inspect.isfunction(value))
        raise TaskError(f"reward {named} has no function {entry.name!r}; it has: {held or 'none'}")
    path = getattr(module, "__file__", None)
    if path is None:
        raise TaskError(f"reward {named} is not a file that VeRL's workers could load; put it into a module")
    return _Reward(function=function, path=Path(path).resolve(), name=entry.name)


def _module_at(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError("no such file")
    spec = importlib.util.spec_from_file_location(f"llmzero_reward_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling look their module up by name, already while it is being executed.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


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
    truth = row["reward_model"]["ground_truth"]
    try:
        result = reward.function(
            data_source=row["data_source"],
            solution_str=response,
            ground_truth=truth,
            extra_info=dict(row["extra_info"]),
        )
    except Exception as error:  # a user's reward may raise anything
        raise TaskError(
            f"{reward} raises {type(error).__name__}: {error}; response {response!r}, ground truth {truth!r}"
        ) from error
    if problem := _result_problem(result):
        raise TaskError(f"{reward} {problem}")
    valid: Mapping[str, Any] = result
    return valid


def _result_problem(result: Any) -> str | None:
    expected = " and ".join(REQUIRED_KEYS)
    if not isinstance(result, Mapping):
        return f"returns {type(result).__name__}; it must return a dict with {expected}"
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
