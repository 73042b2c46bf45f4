"""Decisions of a search in words: why each was taken, how its run went, whether a replay agrees.

Not here: taking decisions again (coordinator/replay.py), showing them (cli/explain.py, report/).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmzero_ray.search import SearchNode

if TYPE_CHECKING:
    from llmzero_ray.coordinator import DecisionCheck


@dataclass(frozen=True, kw_only=True)
class DecisionRow:
    """One decision, in words."""

    node: int | None
    """The run it began; None for the end of the search."""
    action: str
    on: int | None
    reason: str
    """What the choice rests on, with its numbers."""
    outcome: str = ""
    """How the run went; empty when there is none."""
    differences: tuple[str, ...] = ()
    """Where a replay disagrees with the record; empty when it agrees in everything."""


def decision_row(check: DecisionCheck, nodes: Mapping[int, SearchNode]) -> DecisionRow:
    """A checked decision of a journal in words; `nodes` as they are at its end."""
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
