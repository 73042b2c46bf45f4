"""Worked answers that step through an expression from left to right: `5-1-9` -> `4,-5#-5`."""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Sequence

_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def partial_results(expression: str, modulus: int | None = None) -> list[int]:
    """The value after each operation, strictly left to right; `modulus` folds every value into [0, modulus).

    Anything that is not an operation followed by a number is padding.
    """
    value, results = int(re.match(r"\d+", expression).group()), []  # type: ignore[union-attr]
    for symbol, number in re.findall(r"([+*-])(\d+)", expression):
        value = _OPERATIONS[symbol](value, int(number))
        value = value if modulus is None else value % modulus
        results.append(value)
    return results


def worked_answer(results: Sequence[int], rng: random.Random, mix: tuple[float, float, float]) -> str:
    """`#r`, preceded by nothing, every second result, or all results, with the probabilities `mix`."""
    answer = f"#{results[-1]}"
    mode = rng.choices(("direct", "short", "full"), mix)[0]
    if mode == "direct":
        return answer
    shown = list(results) if mode == "full" else list(results[1::2])
    if mode == "short" and len(results) % 2:
        shown.append(results[-1])
    return ",".join(str(result) for result in shown) + answer
