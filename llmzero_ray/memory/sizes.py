"""Ranges of bytes, and what one moment of a training step holds. Plain values.

Not here: where the figures come from (moments.py), what they mean (verdict.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Range:
    """A figure that is known within bounds; 0 <= low <= likely <= high."""

    low: float
    likely: float
    high: float

    @staticmethod
    def exactly(value: float) -> Range:
        """A figure without doubt."""
        return Range(value, value, value)

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.likely + other.likely, self.high + other.high)

    def __mul__(self, by: Range | float) -> Range:
        other = by if isinstance(by, Range) else Range.exactly(by)
        return Range(self.low * other.low, self.likely * other.likely, self.high * other.high)

    def at_least(self, other: Range) -> Range:
        """The larger of the two, bound by bound."""
        return Range(max(self.low, other.low), max(self.likely, other.likely), max(self.high, other.high))


def together(ranges: Sequence[Range]) -> Range:
    """Their sum; all highs may come together."""
    total = Range.exactly(0)
    for found in ranges:
        total = total + found
    return total


@dataclass(frozen=True, kw_only=True)
class Item:
    """One item in a GPU's memory at one stage of a step."""

    name: str
    size: Range
    """Bytes."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What a GPU holds at one point of a training step, and what it may hold."""

    name: str
    items: tuple[Item, ...]
    limit: float
    """Bytes: the card, or vLLM's share of it."""
    limit_name: str

    @property
    def total(self) -> Range:
        """Bytes of all items."""
        return together([item.size for item in self.items])

    @property
    def largest(self) -> Item:
        """The item with the largest likely size."""
        return max(self.items, key=lambda item: item.size.likely)

    def size_of(self, name: str) -> Range | None:
        """Of the item of that name; None: there is none."""
        return next((item.size for item in self.items if item.name == name), None)
