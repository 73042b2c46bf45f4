"""The verdict whether a phase fits on its GPUs: its tightest stage, and the gain of each remedy.

Judged by the likely sizes; `tight` where only the high ones exceed a limit. A remedy is a set-up with one
setting changed (remedies.py), estimated anew. Not here: the estimate (moments.py), what a search has learnt
of it (search_memory.py), tables (cli/).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from llmzero_ray.memory.moments import cache_bytes, cache_per_token, moments
from llmzero_ray.memory.remedies import SettingChange, least_tokens, setting_changes
from llmzero_ray.memory.setup import Setup
from llmzero_ray.memory.shapes import ModelShape
from llmzero_ray.memory.sizes import GIB, Moment

Learned: TypeAlias = Mapping[str, float]
"""Moment -> bytes that it takes beyond its estimate, as phases of a search have shown; may be negative."""

Status: TypeAlias = Literal["fits", "tight", "does not fit"]
_LEARNED = "corrected by what phases of this search took"
_WORTH = 0.1 * GIB
_MOST = 4


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One setting changed."""

    setting: SettingChange
    saved: float
    """Bytes of the likely size, at the moment that is tightest now."""
    status: Status
    """Of the whole, with that change."""

    @property
    def change(self) -> str:
        """In the words of search.yaml."""
        return self.setting.text


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """One phase on one kind of GPU."""

    shape: ModelShape
    setup: Setup
    moments: tuple[Moment, ...]
    status: Status
    worst: Moment
    """Nearest to its limit, or furthest beyond it."""
    remedies: tuple[Remedy, ...]
    """Those that help most first; none where it fits."""
    refused: str = ""
    """Why VeRL would refuse a full-length sequence, whatever the memory; empty: it would not."""

    @property
    def cache_tokens(self) -> float:
        """Tokens in vLLM's KV cache, of all GPUs of one server."""
        room = cache_bytes(self.shape, self.setup).likely
        return room / cache_per_token(self.shape, self.setup)

    @property
    def reason(self) -> str:
        """The verdict in one sentence."""
        if self.refused:
            return f"{self.status}: {self.refused}"
        worst, total = self.worst, self.worst.total
        largest = worst.largest
        return (
            f"{self.status}: tightest is {worst.name} with about {total.likely / GIB:.1f} GiB (up to "
            f"{total.high / GIB:.1f}) of {worst.limit / GIB:.1f} GiB ({worst.limit_name}); largest there: "
            f"{largest.name}, {largest.size.likely / GIB:.1f} GiB"
        )


def assess(shape: ModelShape, setup: Setup, learned: Learned | None = None) -> Assessment:
    """The verdict on a phase, with remedies where it is not `fits`; `learned` lowers the limits."""
    learned = learned or {}
    found = limited(shape, setup, learned)
    status, worst = judged(found)
    remedies = () if status == "fits" else tuple(_remedies(shape, setup, worst, learned))
    refused = _refused(setup)
    return Assessment(
        shape=shape,
        setup=setup,
        moments=found,
        status="does not fit" if refused else status,
        worst=worst,
        remedies=() if refused else remedies[:_MOST],
        refused=refused,
    )


def limited(shape: ModelShape, setup: Setup, learned: Learned) -> tuple[Moment, ...]:
    """Every moment of a step, with the room that is left of its limit after what was learnt."""
    return tuple(
        replace(moment, limit=moment.limit - beyond, limit_name=f"{moment.limit_name}, {_LEARNED}")
        if (beyond := learned.get(moment.name, 0.0))
        else moment
        for moment in moments(shape, setup)
    )


def _refused(setup: Setup) -> str:
    """`rearrange_micro_batches` asserts that the budget holds the longest sequence of a batch."""
    budget = min(setup.max_tokens, setup.log_prob_max_tokens) * setup.ulysses
    if not setup.dynamic_bsz or budget >= setup.sequence:
        return ""
    return (
        f"a sequence may have {setup.sequence} tokens (prompt and response), a packed micro batch "
        f"{budget}; set max_token_len_per_gpu to at least {least_tokens(setup)}"
    )


def judged(found: tuple[Moment, ...]) -> tuple[Status, Moment]:
    """Whether these moments are within their limits, and the tightest one."""
    worst = max(found, key=lambda moment: moment.total.likely - moment.limit)
    if worst.total.likely > worst.limit:
        return "does not fit", worst
    worst = max(found, key=lambda moment: moment.total.high - moment.limit)
    return ("tight" if worst.total.high > worst.limit else "fits"), worst


def _remedies(shape: ModelShape, setup: Setup, worst: Moment, learned: Learned) -> list[Remedy]:
    helpful = []
    for change in setting_changes(shape, setup):
        after = limited(shape, change.setup, learned)
        there = next(moment for moment in after if moment.name == worst.name)
        # vLLM's share is a setting itself: what counts is the room that is left.
        saved = (worst.total.likely - worst.limit) - (there.total.likely - there.limit)
        if saved >= _WORTH:
            helpful.append(Remedy(setting=change, saved=saved, status=judged(after)[0]))
    order = ("fits", "tight", "does not fit")
    return sorted(helpful, key=lambda remedy: (order.index(remedy.status), -remedy.saved))
