"""Which settings to change together so that a phase fits: the search over single remedies.

Step by step the one change that helps most, until every moment has room, the high estimates included. What
changes the task itself (a shorter response) comes only for a phase that does not fit and for which nothing
else helps at all. Not here: single
changes (remedies.py), what a search has learnt (search_memory.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmzero_ray.memory.remedies import setting_changes
from llmzero_ray.memory.setup import Setup
from llmzero_ray.memory.shapes import ModelShape
from llmzero_ray.memory.sizes import GIB
from llmzero_ray.memory.verdict import Learned, Status, judged, limited
from llmzero_ray.records import HyperparameterValue

_WORTH = 0.05 * GIB
_MOST_STEPS = 24


@dataclass(frozen=True, kw_only=True)
class Relief:
    """Settings changed together."""

    changes: tuple[str, ...]
    """In the words of search.yaml, each with the values before and after it."""
    values: Mapping[str, HyperparameterValue]
    """VeRL's key -> new value."""
    status: Status
    """Of the estimate with all of them."""


def relief(shape: ModelShape, setup: Setup, learned: Learned, *, spare: float = 0.0) -> Relief:
    """The changes after which every moment has `spare` bytes left, or as near to that as any get.

    Changes nothing where there is that much room already.
    """
    texts, values, setup = _steps(shape, setup, learned, spare, shrinks_task=False)
    status, _ = judged(limited(shape, setup, learned))
    if not texts and status == "does not fit":
        texts, values, setup = _steps(shape, setup, learned, 0.0, shrinks_task=True)
        status, _ = judged(limited(shape, setup, learned))
    return Relief(changes=tuple(texts), values=values, status=status)


def _steps(
    shape: ModelShape, setup: Setup, learned: Learned, spare: float, *, shrinks_task: bool
) -> tuple[list[str], dict[str, HyperparameterValue], Setup]:
    """Changes of one kind, each the best one after the one before; the set-up with all of them."""
    texts: list[str] = []
    values: dict[str, HyperparameterValue] = {}
    for _ in range(_MOST_STEPS):
        lacking = _lacking(shape, setup, learned, spare)
        usable = [
            change
            for change in setting_changes(shape, setup)
            if change.values and change.shrinks_task is shrinks_task
        ]
        left = [_lacking(shape, change.setup, learned, spare) for change in usable]
        if lacking <= 0 or not left or lacking - min(left) < min(_WORTH, lacking):
            break
        best = usable[left.index(min(left))]
        setup = best.setup
        texts.append(best.text)
        values |= best.values
    return texts, values, setup


def _lacking(shape: ModelShape, setup: Setup, learned: Learned, spare: float) -> float:
    """Bytes by which the high estimates of all moments together exceed their limits less `spare`."""
    found = limited(shape, setup, learned)
    return sum(max(0.0, moment.total.high + spare - moment.limit) for moment in found)
