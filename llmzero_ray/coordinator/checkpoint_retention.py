"""Checkpoint retention: which adapters a search may still need, and the order in which the others are
deleted. Pure.

These adapters are pinned: all of running phases and of the reference, the resume source of every run (even if
its proposal still waits for a person), every run's best step, and the last step of every node that may still
be expanded. All others may be deleted, those of the oldest run first. Not here: measuring sizes and deleting
(actors/checkpoint_retention.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from llmzero_ray.coordinator.state import SearchState
from llmzero_ray.records import ResumeFrom
from llmzero_ray.records.events import REFERENCE

Place: TypeAlias = tuple[int, int]
"""(node, step) of an adapter."""


@dataclass(frozen=True, kw_only=True)
class Thinning:
    """Adapters to delete, and whether the remaining ones fit the limit."""

    items: tuple[ResumeFrom, ...]
    freed_bytes: int
    used_bytes: int
    """Bytes of all adapters before the deletion."""
    fits: bool
    """Whether the remaining adapters are within the limit."""


def pinned(state: SearchState) -> set[Place]:
    """Adapters of ended runs that must not be deleted. Adapters of running phases are never deleted."""
    found: set[Place] = set()
    for run in state.runs.values():
        spec = run.shown.spec
        if spec is not None and spec.resume_from is not None:
            found.add((spec.resume_from.node, spec.resume_from.step))
        outcome = run.outcome
        if outcome is None:
            continue
        saved = [kept.step for kept in run.checkpoints]
        if outcome.best_step is not None:
            found.add((run.node, outcome.best_step))
        if saved and run.node != REFERENCE and not state.search.node(run.node).terminal:
            found.add((run.node, max(saved)))
    found.update((clone.of, clone.step) for clone in state.clones if clone.step is not None)
    return found


def thin(state: SearchState, sizes: Mapping[Place, int], limit_bytes: int) -> Thinning:
    """Adapters to delete so that the adapters in `sizes` (bytes on disk) fit into `limit_bytes`."""
    going = {(item.node, item.step) for deletion in state.deletions for item in deletion.items}
    sizes = {place: size for place, size in sizes.items() if place not in going}
    used, keep = sum(sizes.values()), pinned(state)
    over, items, freed = used - limit_bytes, list[ResumeFrom](), 0
    for node, step in sorted(sizes):
        if freed >= over:
            break
        run = state.runs.get(node)
        if node == REFERENCE or run is None or run.outcome is None or (node, step) in keep:
            continue
        items.append(ResumeFrom(node=node, step=step))
        freed += sizes[node, step]
    return Thinning(items=tuple(items), freed_bytes=freed, used_bytes=used, fits=freed >= over)


def nearest_good(state: SearchState, place: Place) -> ResumeFrom | None:
    """Replacement for a corrupt resume source: the nearest earlier adapter of the same node."""
    node, step = place
    earlier = [kept.step for kept in state.runs[node].checkpoints if kept.step < step]
    return ResumeFrom(node=node, step=max(earlier)) if earlier else None
