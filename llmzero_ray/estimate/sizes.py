"""Ranges of bytes, and the memory in use on a GPU or a machine at one stage of a training step. Plain values.

Not here: where the figures come from (stages.py), what they mean (fit.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """A figure known within bounds: 0 <= low <= likely <= high."""

    low: float
    likely: float
    high: float

    @staticmethod
    def exactly(value: float) -> Range:
        """Range of an exact figure."""
        return Range(value, value, value)

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.likely + other.likely, self.high + other.high)

    def __mul__(self, by: Range | float) -> Range:
        other = by if isinstance(by, Range) else Range.exactly(by)
        return Range(self.low * other.low, self.likely * other.likely, self.high * other.high)

    def at_least(self, other: Range) -> Range:
        """Larger of the two, bound by bound."""
        return Range(max(self.low, other.low), max(self.likely, other.likely), max(self.high, other.high))


@dataclass(frozen=True, kw_only=True)
class Item:
    """One item in the memory of a GPU or a machine at one stage of a step."""

    name: str
    size: Range
    """Bytes."""


def total_of(items: Iterable[Item]) -> Range:
    """Total bytes of these items. Bounds are summed, because all items may be at their high bound."""
    return sum((item.size for item in items), Range.exactly(0))


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """Memory in use on a GPU or a machine at one stage of a training step, and its limit."""

    name: str
    items: tuple[Item, ...]
    limit: float = math.inf
    """Limit in bytes: the GPU's memory, or vLLM's share of it. Infinite for a machine."""
    limit_name: str = ""

    @property
    def total(self) -> Range:
        """Bytes of all items."""
        return total_of(self.items)

    @property
    def largest(self) -> Item:
        """Item with the largest likely size."""
        return max(self.items, key=lambda item: item.size.likely)

    def size_of(self, name: str) -> Range | None:
        """Bytes of the item of that name. None if there is none."""
        return next((item.size for item in self.items if item.name == name), None)
