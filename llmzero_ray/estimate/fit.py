"""Whether a phase fits on its GPUs: its tightest stage, what each remedy saves, and which ones make it fit.

A phase does not fit if a likely size exceeds its limit; it is `tight` if only a high one does. A remedy
changes one setting (remedies.py), and the phase is estimated again. `relief` combines changes: it adds the
most helpful one, step by step, until every stage has headroom at its high estimate. A change of the task
itself (a shorter response) is only used if the phase does not fit and nothing else helps. Not here: the
stages (stages.py), what a search has learned about them (learned.py), tables (cli/).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

from llmzero_ray.estimate.model_shape import ModelShape
from llmzero_ray.estimate.remedies import least_tokens, setting_changes
from llmzero_ray.estimate.setup import Setup
from llmzero_ray.estimate.sizes import StageMemory
from llmzero_ray.estimate.stages import cache_bytes, cache_per_token, stages
from llmzero_ray.records import HyperparameterValue
from llmzero_ray.utils.text import GIB

Learned: TypeAlias = Mapping[str, float]
"""Stage -> bytes that it takes beyond its estimate, as phases of a search have shown. May be negative."""

Status: TypeAlias = Literal["fits", "tight", "does not fit"]
_LEARNED = "corrected by what phases of this search took"
_REMEDY_WORTH = 0.1 * GIB
_MOST_REMEDIES = 4
_STEP_WORTH = 0.05 * GIB
_MOST_STEPS = 24


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """Change of one setting that saves memory."""

    change: str
    """Setting as named in search.yaml, with its old and new value."""
    saved: float
    """Likely bytes that it saves at the currently tightest stage."""
    status: Status
    """Status of the whole phase with that change."""

    def __str__(self) -> str:
        return f"{self.change}: {self.saved / GIB:.1f} GiB less there, then {self.status}"


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """Memory estimate of one phase on one kind of GPU."""

    shape: ModelShape
    setup: Setup
    learned: Learned
    stages: tuple[StageMemory, ...]
    status: Status
    worst: StageMemory
    """Stage nearest to its limit, or furthest beyond it."""
    refused: str = ""
    """Reason why VeRL would refuse a full-length sequence regardless of memory. Empty if it would not."""

    @cached_property
    def remedies(self) -> tuple[Remedy, ...]:
        """Single changes that help, most helpful first. Empty if the phase fits or VeRL would refuse it."""
        if self.refused or self.status == "fits":
            return ()
        return tuple(_remedies(self.shape, self.setup, self.worst, self.learned)[:_MOST_REMEDIES])

    @property
    def excess(self) -> float:
        """Likely bytes beyond the limit at the worst stage. Negative if there is headroom."""
        return self.worst.total.likely - self.worst.limit

    @property
    def cache_tokens(self) -> float:
        """Number of tokens that fit in the KV cache of one vLLM server."""
        return cache_bytes(self.shape, self.setup).likely / cache_per_token(self.shape, self.setup)

    @property
    def reason(self) -> str:
        """One sentence: whether the phase fits, and its tightest stage."""
        if self.refused:
            return f"{self.status}: {self.refused}"
        worst, total = self.worst, self.worst.total
        largest = worst.largest
        return (
            f"{self.status}: tightest is {worst.name} with about {total.likely / GIB:.1f} GiB (up to "
            f"{total.high / GIB:.1f}) of {worst.limit / GIB:.1f} GiB ({worst.limit_name}); largest there: "
            f"{largest.name}, {largest.size.likely / GIB:.1f} GiB"
        )


@dataclass(frozen=True, kw_only=True)
class Relief:
    """Combination of setting changes that saves memory."""

    changes: tuple[str, ...]
    """Settings as named in search.yaml, each with its old and new value."""
    values: Mapping[str, HyperparameterValue]
    """VeRL's key -> new value."""
    status: Status
    """Status of the phase with all changes."""


def assess(shape: ModelShape, setup: Setup, learned: Learned | None = None) -> Assessment:
    """Estimate whether a phase fits. What was `learned` lowers (or raises) the stages' limits."""
    learned = dict(learned or {})
    found, refused = limited(shape, setup, learned), _refused(setup)
    status, worst = judged(found)
    return Assessment(
        shape=shape,
        setup=setup,
        learned=learned,
        stages=found,
        status="does not fit" if refused else status,
        worst=worst,
        refused=refused,
    )


def limited(shape: ModelShape, setup: Setup, learned: Learned) -> tuple[StageMemory, ...]:
    """All stages of a step, with their limits corrected by what was `learned`."""
    return tuple(
        replace(stage, limit=stage.limit - beyond, limit_name=f"{stage.limit_name}, {_LEARNED}")
        if (beyond := learned.get(stage.name, 0.0))
        else stage
        for stage in stages(shape, setup)
    )


def _refused(setup: Setup) -> str:
    """Reason why VeRL would refuse a full-length sequence, or empty: `rearrange_micro_batches` asserts that
    the token budget holds the longest sequence of a batch."""
    budget = min(setup.max_tokens, setup.log_prob_max_tokens) * setup.ulysses
    if not setup.dynamic_bsz or budget >= setup.sequence:
        return ""
    return (
        f"a sequence may have {setup.sequence} tokens (prompt and response), a packed micro batch "
        f"{budget}; set max_token_len_per_gpu to at least {least_tokens(setup)}"
    )


def judged(found: tuple[StageMemory, ...]) -> tuple[Status, StageMemory]:
    """(status of a phase with these stages, tightest stage)."""
    worst = max(found, key=lambda stage: stage.total.likely - stage.limit)
    if worst.total.likely > worst.limit:
        return "does not fit", worst
    worst = max(found, key=lambda stage: stage.total.high - stage.limit)
    return ("tight" if worst.total.high > worst.limit else "fits"), worst


def _remedies(shape: ModelShape, setup: Setup, worst: StageMemory, learned: Learned) -> list[Remedy]:
    helpful = []
    for change in setting_changes(shape, setup):
        after = limited(shape, change.setup, learned)
        there = next(stage for stage in after if stage.name == worst.name)
        # Compare headroom, not sizes, because vLLM's share, a limit, is itself a setting.
        saved = (worst.total.likely - worst.limit) - (there.total.likely - there.limit)
        if saved >= _REMEDY_WORTH:
            helpful.append(Remedy(change=change.text, saved=saved, status=judged(after)[0]))
    order = ("fits", "tight", "does not fit")
    return sorted(helpful, key=lambda remedy: (order.index(remedy.status), -remedy.saved))


def relief(shape: ModelShape, setup: Setup, learned: Learned, *, spare: float = 0.0) -> Relief:
    """Changes with which every stage has `spare` bytes left at its high estimate, or as close to that as
    possible. Empty if that much is already left."""
    texts, values, setup = _steps(shape, setup, learned, spare, shrinks_task=False)
    status, _ = judged(limited(shape, setup, learned))
    if not texts and status == "does not fit":
        texts, values, setup = _steps(shape, setup, learned, 0.0, shrinks_task=True)
        status, _ = judged(limited(shape, setup, learned))
    return Relief(changes=tuple(texts), values=values, status=status)


def _steps(
    shape: ModelShape, setup: Setup, learned: Learned, spare: float, *, shrinks_task: bool
) -> tuple[list[str], dict[str, HyperparameterValue], Setup]:
    """Add the most helpful change step by step. Returns (descriptions, values, setup with all changes).
    `shrinks_task` selects the kind of changes (`SettingChange.shrinks_task`)."""
    texts: list[str] = []
    values: dict[str, HyperparameterValue] = {}
    for _ in range(_MOST_STEPS):
        lacking = _lacking(shape, setup, learned, spare)
        changes = setting_changes(shape, setup)
        usable = [change for change in changes if change.shrinks_task is shrinks_task]
        left = [_lacking(shape, change.setup, learned, spare) for change in usable]
        if lacking <= 0 or not left or lacking - min(left) < min(_STEP_WORTH, lacking):
            break
        best = usable[left.index(min(left))]
        setup = best.setup
        texts.append(best.text)
        values |= best.values
    return texts, values, setup


def _lacking(shape: ModelShape, setup: Setup, learned: Learned, spare: float) -> float:
    """Bytes by which high estimates exceed the limits minus `spare`, summed over all stages."""
    found = limited(shape, setup, learned)
    return sum(max(0.0, stage.total.high + spare - stage.limit) for stage in found)
