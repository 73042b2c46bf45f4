"""Resume chains: the phases, with their cuts, that lead to a node's adapter.

The chain follows checkpoint sources, not tree edges: a fix that moved next to its failure still starts from
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from llmzero_ray.errors import SearchError
from llmzero_ray.search.base import Cut


class Resumed(Protocol):
    """Attributes of a node that this module reads."""

    id: int
    best_step: int | None
    resume_from: tuple[int, int] | None
    """(node, step) of the checkpoint it starts from, or None for the base model."""


N = TypeVar("N", bound=Resumed)


def node_of(nodes: Mapping[int, N], node_id: int) -> N:
    """The node of that id.

    Raises:
        SearchError: there is none.
    """
    if node_id not in nodes:
        raise SearchError(f"node {node_id!r} is unknown; the search has {len(nodes)} nodes.")
    return nodes[node_id]


def resume_chain(nodes: Mapping[int, N], node: N) -> tuple[int, ...]:
    """Ids from the run that started from the base model to `node`, along checkpoint sources."""
    chain = [node.id]
    while node.resume_from is not None:
        node = nodes[node.resume_from[0]]
        chain.append(node.id)
    return tuple(reversed(chain))


def cuts(nodes: Mapping[int, N], node: N) -> tuple[Cut, ...]:
    """Resume chain of `node`, each phase cut where the next one resumed, the last at its best step."""
    path = [Cut(node.id, node.best_step)]
    while node.resume_from is not None:
        path.append(Cut(*node.resume_from))
        node = nodes[node.resume_from[0]]
    return tuple(reversed(path))


def nearest_saved_step(saved: Iterable[int], wanted: int) -> int | None:
    """Latest saved step up to `wanted`. None if there is none, so the phase starts from scratch."""
    return max((step for step in saved if step <= wanted), default=None)
