"""The base class of search methods: nodes are read, runs end, and checkpoint sources are recorded.

A method creates the nodes and decides which run begins next (tree_search.py, and the planned methods outside
the core). The resume chain of a node follows checkpoint sources, not tree edges: a fix that moved next to its
failure still starts from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar, get_args

from llmzero_ray.errors import SearchError
from llmzero_ray.records import NodeKind, PhaseStatus
from llmzero_ray.search.base import Cut
from llmzero_ray.search.tree import NodeStatus
from llmzero_ray.utils.text import is_number

MAX_SCORE = 1e100
"""Maximum absolute score. Beyond it, differences of scores could overflow."""


class MutableNode(Protocol):
    """Attributes of a node that this module reads and writes."""

    id: int
    kind: NodeKind
    status: NodeStatus
    best_step: int | None
    resume_from: tuple[int, int] | None
    """(node, step) of the checkpoint it starts from, or None for the base model."""

    @property
    def is_running(self) -> bool:
        """Whether it has begun but not finished."""
        ...


N = TypeVar("N", bound=MutableNode)


class MethodBase(ABC, Generic[N]):
    """Part of `SearchMethod` that is the same for every method; `N` is the class of its nodes."""

    @property
    @abstractmethod
    def nodes(self) -> Mapping[int, N]:
        """All nodes by id in order of creation, read-only."""

    @abstractmethod
    def offered_checkpoint_nodes(self, node_id: int) -> tuple[int, ...]:
        """Nodes whose checkpoints a begun node may resume from, first phase first. Empty if it starts from
        scratch.

        Raises:
            SearchError: the node is unknown.
        """

    @abstractmethod
    def _finish(self, node: N, status: PhaseStatus, score: float | None) -> None:
        """Give a running node its checked outcome."""

    @abstractmethod
    def _prune(self, node: N) -> list[int]:
        """Prune a node with its subtree. Returns its running nodes."""

    def node(self, node_id: int) -> N:
        """The node of that id, read-only.

        Raises:
            SearchError: there is none.
        """
        nodes = self.nodes
        if node_id not in nodes:
            raise SearchError(f"node {node_id!r} is unknown; the search has {len(nodes)} nodes.")
        return nodes[node_id]

    def tell(
        self, node_id: int, status: PhaseStatus, score: float | None = None, best_step: int | None = None
    ) -> None:
        """Finish a running node. `score` is its best validation score, reached at `best_step` of its phase.

        Raises:
            SearchError: the node is unknown or not running, or status or score is not allowed.
        """
        node = self.node(node_id)
        if not node.is_running:
            raise SearchError(f"node {node_id} is already {node.status}; only a running node can finish.")
        if status not in get_args(PhaseStatus):
            raise SearchError(
                f"node {node_id}: status is {status!r}; must be {', '.join(get_args(PhaseStatus))}."
            )
        self._finish(node, status, _checked_score(score))
        node.best_step = best_step

    def veto(self, node_id: int) -> tuple[int, ...]:
        """Prune a subtree at the user's request. Returns its running nodes, which the caller must stop and
        then tell.

        Raises:
            SearchError: the node is unknown or the root.
        """
        node = self.node(node_id)
        if node.kind == "root":
            raise SearchError(f"node {node_id} is the root; stop the search instead of vetoing it.")
        return tuple(self._prune(node))

    def set_resume_from(self, node_id: int, source: int | None, step: int | None) -> None:
        """Record the checkpoint that a running node starts from: `step` of node `source`, or the base model
        if None.

        Raises:
            SearchError: the node is unknown or not running, or the source is not among those offered to it.
        """
        node = self.node(node_id)
        if not node.is_running:
            raise SearchError(f"node {node_id} is {node.status}; its checkpoint source is settled.")
        if source is None or step is None:
            node.resume_from = None
            return
        if not self._may_resume(node, source):
            offered = self.offered_checkpoint_nodes(node_id)
            allowed = (
                f"nodes {', '.join(map(str, offered))}" if offered else "none, it starts from the base model"
            )
            raise SearchError(f"node {node_id}: resume source {source} is not offered; allowed: {allowed}.")
        node.resume_from = (source, step)

    def _may_resume(self, node: N, source: int) -> bool:
        """Whether a running node may start from a checkpoint of `source`."""
        return source in self.offered_checkpoint_nodes(node.id)

    def resume_chain(self, node_id: int) -> tuple[int, ...]:
        """Nodes whose training this node's weights contain, from-scratch run first, itself last.

        Raises:
            SearchError: the node is unknown.
        """
        return tuple(cut.node for cut in self.cuts(node_id))

    def cuts(self, node_id: int) -> tuple[Cut, ...]:
        """Resume chain of a node, each phase cut where the next one resumed, the last at its best step.

        Raises:
            SearchError: the node is unknown.
        """
        node = self.node(node_id)
        path = [Cut(node.id, node.best_step)]
        while node.resume_from is not None:
            path.append(Cut(*node.resume_from))
            node = self.nodes[node.resume_from[0]]
        return tuple(reversed(path))


def _checked_score(score: object) -> float | None:
    """The score as a float, or None.

    Raises:
        SearchError: it is not a number, not finite, or too large for differences of scores to stay finite.
    """
    if score is None:
        return None
    if not is_number(score) or not abs(score) <= MAX_SCORE:
        raise SearchError(f"score is {score!r}; must be a finite number (at most {MAX_SCORE:g}) or null.")
    return float(score)
