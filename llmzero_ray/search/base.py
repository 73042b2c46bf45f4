"""Base class of search methods: ask for the next run, tell its outcome. No clock, no files, no randomness.

The coordinator uses only this interface. `TreeSearch` is the main method; `search.method` may name another.
The same calls in the same order must always give the same decisions, because journals are replayed through
them. The resume chain of a node follows checkpoint sources, not tree edges: a successful fix becomes a
sibling of the failure, but still starts from the checkpoint that it resumed.
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
"""Reason why a search ends. A method gives only the first two; the coordinator gives the others."""
NodeStatus: TypeAlias = Literal["running"] | PhaseStatus
"""Status of a node, `running` from its creation: methods do not distinguish pending and training runs."""
MAX_SCORE = 1e100
"""Maximum absolute score. Beyond it, differences of scores could overflow."""


class DecisionFacts(Protocol):
    """Numbers on which a decision was based. The journal records them, and a replay compares them."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        ...


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Next action: begin a run of kind `action` on node `on`, stop, or wait for a run to finish."""

    action: Action
    on: int | None = None
    """Node from which the run is created. None for root, stop and wait."""
    stop_reason: StopReason | None = None
    seen: DecisionFacts

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {**vars(self), "seen": self.seen.to_dict()}


def plans_its_runs(method: object) -> bool:
    """Whether a method (or its class) plans every run itself, without an agent, and divides the compute
    budget among its runs."""
    return bool(getattr(method, "plans_its_runs", False))


def needs_model(method: object) -> bool:
    """Whether a method needs a language model, so that rules cannot replace it."""
    return bool(getattr(method, "needs_model", False))


class Cut(NamedTuple):
    """One phase of a strategy: train `node`'s configuration up to `step`, counted inside the phase."""

    node: int
    step: int | None
    """Last step that counts. None only for a last phase that was never validated and has no best step."""


@dataclass(kw_only=True, slots=True)
class SearchNode:
    """One run of a search. Only the search method writes to it."""

    id: int
    """Number of the run, from 0."""
    kind: NodeKind
    """Kind with which it began."""
    status: NodeStatus = "running"
    score: float | None = None
    """Best validation score of its own steps."""
    best_step: int | None = None
    """Step of `score`, counted inside the phase."""
    parent: int | None
    """Current parent in the tree. A successful debug run gets another parent."""
    created_on: int | None
    """Node from which it was created, before any move."""
    resume_from: tuple[int, int] | None = None
    """(node, step) of the checkpoint from which it starts, not necessarily on its tree path. None for the
    base model."""
    children: list[int] = field(default_factory=list)
    """Attached children in order of creation, including pruned ones."""
    pruned: bool = False
    """Whether it is excluded from the search with its whole subtree."""
    terminal: bool = False
    """Whether no run will be created on it or below it any more, so that its last adapter is not needed."""

    @property
    def is_running(self) -> bool:
        """Whether it has begun but not finished."""
        return self.status == "running"


N = TypeVar("N", bound=SearchNode)
N_co = TypeVar("N_co", bound=SearchNode, covariant=True)


def best_scored(nodes: Iterable[N]) -> N | None:
    """Best-scored node (the first on ties), or None if no node has a score."""
    scored = [node for node in nodes if node.score is not None]
    return max(scored, key=lambda node: node.score or 0.0, default=None)


class SearchMethod(ABC, Generic[N_co]):
    """One search with an ask-and-tell interface. `N_co` is the class of its nodes."""

    budget: int | None
    """Maximum runs, including the root. None if there is no limit. The user may change it at any time."""

    # --- what a method decides ------------------------------------------------------------------------------

    @property
    @abstractmethod
    def nodes(self) -> Mapping[int, N_co]:
        """All nodes by id in order of creation, read-only."""

    @abstractmethod
    def ask(self) -> Decision:
        """Next action, with all facts on which it is based. Does not change the search."""

    @abstractmethod
    def explain(self, decision: Mapping[str, Any]) -> str:
        """Explanation of a decision of this method, given as written by `Decision.to_dict`."""

    @abstractmethod
    def create(self, kind: NodeKind, on: int | None, node_id: int | None = None) -> int:
        """Begin a run as recorded in the journal, even if this version would decide differently. Returns its
        node id.

        Raises:
            SearchError: the run does not fit this search.
        """

    @abstractmethod
    def clone(self, parent: int, node_id: int | None = None) -> int:
        """Begin a run on `parent` that the user requested, as recorded in the journal. Returns its node id.

        Raises:
            SearchError: the parent is unknown, running or pruned.
        """

    @abstractmethod
    def offered_checkpoint_nodes(self, node_id: int) -> tuple[int, ...]:
        """Nodes whose checkpoints a node may resume, first phase first. Empty if it starts from scratch.

        Raises:
            SearchError: the node is unknown.
        """

    @abstractmethod
    def _finish(self, node_id: int, status: PhaseStatus, score: float | None) -> None:
        """Set the outcome of a running node. The arguments are already checked."""

    @abstractmethod
    def _prune(self, node_id: int) -> list[int]:
        """Prune a node with its subtree. Returns the running nodes in it."""

    def clone_problem(self) -> str | None:
        """Reason why the user can clone no node now, or None. It is asked before the journal records a clone,
        so a method whose `clone` may raise or whose budget is not in runs overrides it."""
        if self.budget is not None and len(self.nodes) >= self.budget:
            return f"all {self.budget} runs of the budget are begun; raise budget.runs first."
        return None

    def _may_resume(self, node_id: int, source: int) -> bool:
        """Whether a running node may start from a checkpoint of `source`."""
        return source in self.offered_checkpoint_nodes(node_id)

    # --- common to all methods ------------------------------------------------------------------------------

    @property
    def best(self) -> N_co | None:
        """Best-scored node, including failed and pruned ones (the earliest on ties), or None if no node has a
        score."""
        return best_scored(self.nodes.values())

    def node(self, node_id: int) -> N_co:
        """Node with this id, read-only.

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
        """Prune a subtree at the user's request. Returns the running nodes in it; the caller must stop them
        and `tell` their outcomes.

        Raises:
            SearchError: the node is unknown or the root.
        """
        if self.node(node_id).kind == "root":
            raise SearchError(f"node {node_id} is the root; stop the search instead of vetoing it.")
        return tuple(self._prune(node_id))

    def set_resume_from(self, node_id: int, source: int | None, step: int | None) -> None:
        """Record the checkpoint from which a running node starts: `step` of node `source`, or the base model
        if either is None.

        Raises:
            SearchError: the node is unknown or not running, or the source is not offered to it.
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
        """Nodes whose training is contained in this node's weights: a run from scratch first, itself last.

        Raises:
            SearchError: the node is unknown.
        """
        return tuple(cut.node for cut in self.cuts(node_id))

    def cuts(self, node_id: int) -> tuple[Cut, ...]:
        """Resume chain of a node. Each phase is cut where the next one resumes, the last at its best step.

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
        SearchError: it is not a number, not finite, or so large that differences of scores could overflow.
    """
    if score is None:
        return None
    if not is_number(score) or not abs(score) <= MAX_SCORE:
        raise SearchError(f"score is {score!r}; must be a finite number (at most {MAX_SCORE:g}) or null.")
    return float(score)
