"""What all calls of a reward have in common, whatever was asked: exceptions, keys, time.

Not here: the questions (gate.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from llmzero_ray.tasks.gate_report import EXAMPLES, Check, shown
from llmzero_ray.tasks.reward_check import result_problem
from llmzero_ray.tasks.sandbox import Outcome


@dataclass
class Tally:
    """Of the calls that were added."""

    problems: list[str] = field(default_factory=list)
    """Calls without a result."""
    misshapen: list[str] = field(default_factory=list)
    """Calls whose result VeRL could not use."""
    kinds: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Keys of results -> the first call that gave them."""
    cpu_ms: list[float] = field(default_factory=list)

    def add(self, row: Mapping[str, Any], response: str, outcome: Outcome) -> None:
        """Count a call."""
        said = example(row, response)
        self.cpu_ms.append(outcome.cpu_ms)
        if outcome.problem:
            self.problems.append(f"{said}: {outcome.problem}")
        elif problem := result_problem(outcome.result):
            self.misshapen.append(f"{said}: {problem}")
        else:
            self.kinds.setdefault(tuple(sorted(outcome.result)), said)

    def median_ms(self) -> float:
        """Processor time of a call."""
        return median(self.cpu_ms)

    def time(self, max_ms: float) -> Check:
        """Of the calls so far."""
        spent = self.cpu_ms
        late = quantiles(spent, n=100, method="inclusive")[98] if len(spent) > 1 else spent[0]
        return Check(
            name="processor time of a row",
            passed=late < max_ms,
            found=f"median {self.median_ms():.2g} ms, p99 {late:.2g} ms",
            needed=f"p99 < {max_ms:g} ms",
            examples=(),
        )

    def raises(self) -> Check:
        """Whether every call gave a result."""
        return Check(
            name="every call gives a result",
            passed=not self.problems,
            found=f"{len(self.problems)} of {len(self.cpu_ms)} do not",
            needed="0",
            examples=tuple(self.problems[:EXAMPLES]),
        )

    def keys(self) -> Check:
        """Whether VeRL can use all results together."""
        kinds = [f"{', '.join(keys) or 'no keys'} ({said})" for keys, said in self.kinds.items()]
        return Check(
            name="same keys, finite numbers",
            passed=not self.misshapen and len(kinds) == 1,
            found=f"{len(kinds)} sets of keys, {len(self.misshapen)} results of another form",
            needed="1 and 0",
            examples=tuple([*self.misshapen, *(kinds if len(kinds) > 1 else [])][:EXAMPLES]),
        )


def example(row: Mapping[str, Any], response: str) -> str:
    """A call in a few words."""
    truth, extra = row["reward_model"]["ground_truth"], row["extra_info"]
    place = f"{extra.get('split', '')} row {extra.get('index', '?')}".strip()
    return f"{place}, answer {shown(response)}, ground truth {shown(truth)}"


def is_right(outcome: Outcome) -> bool:
    """Whether the answer scored 1."""
    return _is_good(outcome) and outcome.result["acc"] == 1 and outcome.result["score"] == 1


def is_unpaid(outcome: Outcome) -> bool:
    """Whether the answer scored 0, or less."""
    return _is_good(outcome) and outcome.result["acc"] == 0 and outcome.result["score"] <= 0


def accuracy(outcome: Outcome) -> float:
    """0 where there is no usable result."""
    return float(outcome.result["acc"]) if _is_good(outcome) else 0.0


def _is_good(outcome: Outcome) -> bool:
    return not outcome.problem and result_problem(outcome.result) is None
