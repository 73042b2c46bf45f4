"""The base class of search methods: ask for the next run, tell its outcome. No clock, no file, no randomness.

The coordinator uses only what is here. `TreeSearch` is the main method, and `search.method` may name another
one. The same calls in the same order must always give the same decisions, because journals are replayed
through them. The resume chain of a node follows checkpoint sources, not tree edges: a fix that moved next to
its failure still starts from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, get_args

from llmzero_ray.errors import SearchError
from llmzero_ray.records import NodeKind, PhaseStatus
from llmzero_ray.utils.text import is_number

Action: TypeAlias = Literal["root", "evolve", "debug", "scratch", "stop", "wait"]
StopReason: TypeAlias = Literal[
    "budget", "exhausted", "target", "gpu_hours", "compute", "dollars", "wall_clock", "user"
]
"""Reason why a search ends. A method gives only the first two; the others come from the coordinator."""
NodeStatus: TypeAlias = Literal["running"] | PhaseStatus
"""`running` from the moment the node is begun: the rules do not distinguish pending and training runs."""
MAX_SCORE = 1e100
"""Maximum absolute score. Beyond it, differences of scores could overflow."""


class DecisionFacts(Protocol):
    """Numbers that a decision was based on. The journal records them, and a replay compares them."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        ...


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Next action: begin a run of kind `action` on node `on`, stop, or wait for a run to finish."""

    action: Action
    on: int | None = None
    """Node to create the run from; None for root, stop and wait."""
    stop_reason: StopReason | None = None
    seen: DecisionFacts

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {**vars(self), "seen": self.seen.to_dict()}


def plans_its_runs(method: object) -> bool:
    """Whether a method, or its class, decides on every run itself instead of an agent, and shares the budget
    of compute out among its runs."""
    return bool(getattr(method, "plans_its_runs", False))


def needs_model(method: object) -> bool:
    """Whether a language model carries the method out, so that rules cannot take its place."""
    return bool(getattr(method, "needs_model", False))


class Cut(NamedTuple):
    """One phase of a strategy: train `node`'s configuration up to `step`, counted inside the phase."""

    node: int
    step: int | None
    """Step of the cut. None only for a last phase that never validated and so has no best step."""


@dataclass(kw_only=True, slots=True)
class SearchNode:
    """One run of a search. Only its method writes to it."""

    id: int
    """Number of the run, from 0."""
    kind: NodeKind
    """Kind with which it began."""
    status: NodeStatus = "running"
    score: float | None = None
    """Best validation score of the steps trained in it."""
    best_step: int | None = None
    """Step of `score`, counted inside the phase."""
    parent: int | None
    """Current parent in the tree. A debug run that succeeds moves."""
    created_on: int | None
    """Node it was created from, before any move."""
    resume_from: tuple[int, int] | None = None
    """(node, step) of the checkpoint it starts from, possibly off the tree path. None for the base model."""
    children: list[int] = field(default_factory=list)
    """Attached children in order of creation, pruned ones included."""
    pruned: bool = False
    """Whether it is excluded from the search, with its whole subtree."""
    terminal: bool = False
    """Whether no further run will be created on it or below it, so that its last adapter is no longer
    needed."""

    @property
    def is_running(self) -> bool:
        """Whether it has begun but not finished."""
        return self.status == "running"


N = TypeVar("N", bound=SearchNode)
N_co = TypeVar("N_co", bound=SearchNode, covariant=True)


def best_scored(nodes: Iterable[N]) -> N | None:
    """Best-scored one of these nodes (the first one in a tie), or None without scores."""
    scored = [node for node in nodes if node.score is not None]
    return max(scored, key=lambda node: node.score or 0.0, default=None)


class SearchMethod(ABC, Generic[N_co]):
    """One search with an ask-and-tell interface; `N_co` is the class of its nodes."""

    budget: int | None
    """Runs that may begin, the root being the first. None if there is no limit. The user may change it at any
    time."""

    # --- what a method decides ------------------------------------------------------------------------------

    @property
    @abstractmethod
    def nodes(self) -> Mapping[int, N_co]:
        """All nodes by id in order of creation, read-only."""

    @abstractmethod
    def ask(self) -> Decision:
        """Next action, with all facts that the decision was based on. Does not change the search."""

    @abstractmethod
    def explain(self, decision: Mapping[str, Any]) -> str:
        """Explanation of a decision of this method, as `Decision.to_dict` wrote it."""

    @abstractmethod
    def create(self, kind: NodeKind, on: int | None, node_id: int | None = None) -> int:
        """Begin a run as the journal recorded it, whatever this version would decide, and return its node id.

        Raises:
            SearchError: the run does not fit this search.
        """

    @abstractmethod
    def clone(self, parent: int, node_id: int | None = None) -> int:
        """Begin a run on `parent` that the user requested, and return its node id.

        Raises:
            SearchError: the parent is unknown, running or pruned, or the budget is spent.
        """

    @abstractmethod
    def offered_checkpoint_nodes(self, node_id: int) -> tuple[int, ...]:
        """Nodes whose checkpoints a begun node may resume from, first phase first. Empty if it starts from
        scratch.

        Raises:
            SearchError: the node is unknown.
        """

    @abstractmethod
    def _finish(self, node_id: int, status: PhaseStatus, score: float | None) -> None:
        """Give a running node its checked outcome."""

    @abstractmethod
    def _prune(self, node_id: int) -> list[int]:
        """Prune a node with its subtree. Returns its running nodes."""

    def _may_resume(self, node_id: int, source: int) -> bool:
        """Whether a running node may start from a checkpoint of `source`."""
        return source in self.offered_checkpoint_nodes(node_id)

    # --- the same for every method --------------------------------------------------------------------------

    @property
    def best(self) -> N_co | None:
        """Best-scored node, failed and pruned ones included (the earliest one in a tie), or None without
        scores."""
        return best_scored(self.nodes.values())

    def node(self, node_id: int) -> N_co:
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
        self._finish(node_id, status, _checked_score(score))
        node.best_step = best_step

    def veto(self, node_id: int) -> tuple[int, ...]:
        """Prune a subtree at the user's request. Returns its running nodes, which the caller must stop and
        then tell.

        Raises:
            SearchError: the node is unknown or the root.
        """
        if self.node(node_id).kind == "root":
            raise SearchError(f"node {node_id} is the root; stop the search instead of vetoing it.")
        return tuple(self._prune(node_id))

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
        if not self._may_resume(node_id, source):
            offered = self.offered_checkpoint_nodes(node_id)
            allowed = (
                f"nodes {', '.join(map(str, offered))}" if offered else "none, it starts from the base model"
            )
            raise SearchError(f"node {node_id}: resume source {source} is not offered; allowed: {allowed}.")
        node.resume_from = (source, step)

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
