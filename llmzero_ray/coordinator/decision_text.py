"""Decisions of a search as text: reason, outcome of the run, agreement of the replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmzero_ray.search import SearchNode

if TYPE_CHECKING:
    from llmzero_ray.coordinator import DecisionCheck


@dataclass(frozen=True, kw_only=True)
class DecisionRow:
    """One decision as text."""

    node: int | None
    """The run it began; None for the end of the search."""
    action: str
    on: int | None
    reason: str
    """The reason of the choice, with its numbers."""
    outcome: str = ""
    """Outcome of the run; empty when there is none."""
    differences: tuple[str, ...] = ()
    """Differences between replay and record."""


def decision_row(check: DecisionCheck, nodes: Mapping[int, SearchNode]) -> DecisionRow:
    """A checked decision of a journal as text, with `nodes` at the journal's end."""
    recorded = check.recorded
    return DecisionRow(
        node=recorded.node,
        action=recorded.action,
        on=recorded.on,
        reason=check.reason,
        outcome="" if recorded.node is None else _outcome_in_words(nodes[recorded.node]),
        differences=check.differences,
    )


def _outcome_in_words(node: SearchNode) -> str:
    if node.is_running:
        return "no result"
    scored = "" if node.score is None else f" {node.score:.4f}"
    moved = "" if node.parent == node.created_on else f", moved to {node.parent}"
    return f"{node.status.replace('_', ' ')}{scored}{moved}{', pruned' if node.pruned else ''}"
