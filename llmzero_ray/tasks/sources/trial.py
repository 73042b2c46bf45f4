"""Try the reward of a prepared task on its own rows: a perfect answer, none, and one that means nothing.

Not here: whether a reward of the user's own may be trusted (vetting.py, ../gate.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from llmzero_ray.tasks.prepared import PreparedTask
from llmzero_ray.tasks.responses import GARBAGE
from llmzero_ray.tasks.rewards.loading import load_task_reward

GoldResponse: TypeAlias = Callable[[str, str], str | None]
"""A response that must score 1, for a data_source and a ground truth; None: not known."""
_MAX_ROWS = 500
"""Rows per split that gold, empty and garbage answers are scored for."""
N_SAMPLES = 5


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One row and the accuracies of three answers to it."""

    data_source: str
    prompt: str
    ground_truth: str
    gold: float | None
    """Of the gold answer; None when there is none."""
    empty: float
    garbage: float


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Mean accuracies over `n_rows` validation and test rows, and a few of the rows."""

    n_rows: int
    gold: float | None
    """Over the rows that have a gold answer; None when no row has."""
    empty: float
    garbage: float
    samples: tuple[Sample, ...]


def try_reward(task: PreparedTask, gold_response: GoldResponse) -> Trial | None:
    """The trial of a task; None for an asynchronous reward, which may ask a service."""
    function = load_task_reward(Path(task.directory))
    if inspect.iscoroutinefunction(function):
        return None
    rows = [row for path in (task.val, task.test) for row in _rows(path)]
    tried = [_sample(function, gold_response, row) for row in rows]
    golds = [sample.gold for sample in tried if sample.gold is not None]
    step = max(1, len(tried) // N_SAMPLES)
    return Trial(
        n_rows=len(tried),
        gold=_mean(golds) if golds else None,
        empty=_mean([sample.empty for sample in tried]),
        garbage=_mean([sample.garbage for sample in tried]),
        samples=tuple(tried[::step][:N_SAMPLES]),
    )


def _rows(path: str) -> list[Mapping[str, Any]]:
    import pyarrow.parquet as pq

    columns = ["data_source", "prompt", "reward_model", "extra_info"]
    rows: list[Mapping[str, Any]] = pq.ParquetFile(path).read(columns=columns).slice(0, _MAX_ROWS).to_pylist()
    return rows


def _sample(function: Callable[..., Any], gold_response: GoldResponse, row: Mapping[str, Any]) -> Sample:
    truth = row["reward_model"]["ground_truth"]
    gold = gold_response(row["data_source"], truth)

    def accuracy(response: str) -> float:
        scored = function(
            data_source=row["data_source"],
            solution_str=response,
            ground_truth=truth,
            extra_info=dict(row["extra_info"]),
        )
        return float(scored["acc"])

    return Sample(
        data_source=row["data_source"],
        prompt=row["prompt"][-1]["content"],
        ground_truth=truth,
        gold=None if gold is None else accuracy(gold),
        empty=accuracy(""),
        garbage=accuracy(GARBAGE[0]),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
