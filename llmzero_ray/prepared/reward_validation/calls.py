"""Calls of a reward: the arguments that VeRL passes, the definition of a usable result, and statistics over
many calls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, TypeAlias

from llmzero_ray.prepared.gold_answers import as_text
from llmzero_ray.prepared.reward_validation.report import EXAMPLES, ValidationCheck, shown
from llmzero_ray.prepared.sandbox import CallOutcome, ForeignValue

REQUIRED_KEYS = ("score", "acc")
"""Keys of every result; VeRL reads `score`, validation metrics are made of `acc`."""
_VERLS_OWN_KEY = "reward"
"""VeRL adds a key of this name itself and would count the score twice."""

Row: TypeAlias = Mapping[str, Any]
"""A row of a task in VeRL's schema."""


def call_arguments(row: Row, response: str) -> dict[str, Any]:
    """The keyword arguments with which VeRL calls a reward for a response to a row."""
    return {
        "data_source": row["data_source"],
        "solution_str": response,
        "ground_truth": row["reward_model"]["ground_truth"],
        "extra_info": dict(row["extra_info"]),
    }


def result_problem(result: Any) -> str | None:
    """Reason why VeRL or the engine could not use the result of a reward, or None if they can."""
    expected = " and ".join(REQUIRED_KEYS)
    if not isinstance(result, Mapping):
        found = result.name if isinstance(result, ForeignValue) else type(result).__name__
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


def is_usable(outcome: CallOutcome) -> bool:
    """Whether a call gave a result that VeRL can use."""
    return not outcome.problem and result_problem(outcome.result) is None


def is_right(outcome: CallOutcome) -> bool:
    """Whether the response scored 1."""
    return is_usable(outcome) and outcome.result["acc"] == 1 and outcome.result["score"] == 1


def is_unpaid(outcome: CallOutcome) -> bool:
    """Whether the response scored 0, or less."""
    return is_usable(outcome) and outcome.result["acc"] == 0 and outcome.result["score"] <= 0


def accuracy_of(outcome: CallOutcome) -> float:
    """`acc` of a usable result, or 0 without one."""
    return float(outcome.result["acc"]) if is_usable(outcome) else 0.0


def pay_of(outcome: CallOutcome) -> float:
    """Payment of a usable result, in `score` or in `acc`, or 0 without one."""
    return max(accuracy_of(outcome), float(outcome.result["score"])) if is_usable(outcome) else 0.0


def describe_call(row: Row, response: str) -> str:
    """Split and index of the row, response and ground truth, each shortened."""
    truth, extra = row["reward_model"]["ground_truth"], row["extra_info"]
    place = f"{extra.get('split', '')} row {extra.get('index', '?')}".strip()
    return f"{place}, answer {shown(response)}, ground truth {shown(as_text(truth))}"


@dataclass
class CallStatistics:
    """Statistics over all calls of a reward: exceptions, keys, processor time."""

    problems: list[str] = field(default_factory=list)
    """Calls without a result."""
    unusable: list[str] = field(default_factory=list)
    """Calls whose result VeRL could not use."""
    key_sets: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Keys of results -> the first call that gave them."""
    cpu_ms: list[float] = field(default_factory=list)
    """Processor time of each call in milliseconds."""

    def add(self, row: Row, response: str, outcome: CallOutcome) -> None:
        """Count a call."""
        call = describe_call(row, response)
        self.cpu_ms.append(outcome.cpu_ms)
        if outcome.problem:
            self.problems.append(f"{call}: {outcome.problem}")
        elif problem := result_problem(outcome.result):
            self.unusable.append(f"{call}: {problem}")
        else:
            self.key_sets.setdefault(tuple(sorted(outcome.result)), call)

    def median_ms(self) -> float:
        """Median processor time of a call in milliseconds."""
        return median(self.cpu_ms)

    def time_check(self, max_ms: float) -> ValidationCheck:
        """Whether the 99th percentile of the processor time stays below `max_ms` milliseconds."""
        spent = self.cpu_ms
        p99 = quantiles(spent, n=100, method="inclusive")[98] if len(spent) > 1 else spent[0]
        return ValidationCheck(
            name="processor time of a row",
            passed=p99 < max_ms,
            found=f"median {self.median_ms():.2g} ms, p99 {p99:.2g} ms",
            needed=f"p99 < {max_ms:g} ms",
            examples=(),
        )

    def result_check(self) -> ValidationCheck:
        """Whether every call gave a result."""
        return ValidationCheck(
            name="every call gives a result",
            passed=not self.problems,
            found=f"{len(self.problems)} of {len(self.cpu_ms)} do not",
            needed="0",
            examples=tuple(self.problems[:EXAMPLES]),
        )

    def keys_check(self) -> ValidationCheck:
        """Whether VeRL can use all results together."""
        kinds = [f"{', '.join(keys) or 'no keys'} ({call})" for keys, call in self.key_sets.items()]
        return ValidationCheck(
            name="same keys, finite numbers",
            passed=not self.unusable and len(kinds) == 1,
            found=f"{len(kinds)} sets of keys, {len(self.unusable)} results of another form",
            needed="1 and 0",
            examples=tuple([*self.unusable, *(kinds if len(kinds) > 1 else [])][:EXAMPLES]),
        )
