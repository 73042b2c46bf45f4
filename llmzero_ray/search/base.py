"""The protocol of a search method: ask for the next run, tell its outcome. No clock, no file, no randomness.

The coordinator uses only this protocol. `TreeSearch` is its main implementation, and `search.method` may name
another one. The same calls in the same order must always give the same decisions, because journals are
replayed through them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from llmzero_ray.records import NodeKind, PhaseStatus

Action: TypeAlias = Literal["root", "evolve", "debug", "scratch", "stop", "wait"]
StopReason: TypeAlias = Literal[
    "budget", "exhausted", "target", "gpu_hours", "compute", "dollars", "wall_clock", "user"
]
"""Why a search ends. A method gives only the first two; the others come from the coordinator."""


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


class SearchNode(Protocol):
    """Read-only view of one run of a search."""

    @property
    def id(self) -> int:
        """Number of the run, from 0."""
        ...

    @property
    def kind(self) -> NodeKind:
        """Kind with which it began."""
        ...

    @property
    def status(self) -> Literal["running"] | PhaseStatus:
        """`running` from the moment it is begun."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether it has begun but not finished."""
        ...

    @property
    def score(self) -> float | None:
        """Best validation score of the steps trained in it."""
        ...

    @property
    def best_step(self) -> int | None:
        """Step of `score`, counted inside the phase."""
        ...

    @property
    def parent(self) -> int | None:
        """Current parent in the tree, or None."""
        ...

    @property
    def created_on(self) -> int | None:
        """The node it was created from."""
        ...

    @property
    def children(self) -> Sequence[int]:
        """Children in the tree, earliest first."""
        ...

    @property
    def pruned(self) -> bool:
        """Whether it is excluded from the search, with its whole subtree."""
        ...

    @property
    def terminal(self) -> bool:
        """Whether no further run will be created on it or below it, so that its last adapter is no longer
        needed."""
        ...


class SearchMethod(Protocol):
    """One search with an ask-and-tell interface."""

    budget: int | None
    """Runs that may begin, the root being the first. None if there is no limit. The user may change it at any
    time."""

    @property
    def nodes(self) -> Mapping[int, SearchNode]:
        """All nodes by id in order of creation, read-only."""
        ...

    @property
    def best(self) -> SearchNode | None:
        """Best-scored node (the earliest one in a tie), or None without scores."""
        ...

    def node(self, node_id: int) -> SearchNode:
        """The node of that id.

        Raises:
            SearchError: there is none.
        """
        ...

    def ask(self) -> Decision:
        """Next action, with all facts that the decision was based on. Does not change the search."""
        ...

    def explain(self, decision: Mapping[str, Any]) -> str:
        """Explanation of a decision of this method, as `Decision.to_dict` wrote it."""
        ...

    def create(self, kind: NodeKind, on: int | None, node_id: int | None = None) -> int:
        """Begin a run as the journal recorded it, whatever this version would decide, and return its node id.

        Raises:
            SearchError: the run does not fit this search.
        """
        ...

    def clone(self, parent: int, node_id: int | None = None) -> int:
        """Begin a run on `parent` that the user requested, and return its node id.

        Raises:
            SearchError: the parent is unknown, running or pruned, or the budget is spent.
        """
        ...

    def tell(
        self, node_id: int, status: PhaseStatus, score: float | None = None, best_step: int | None = None
    ) -> None:
        """Finish a running node. `score` is its best validation score, reached at `best_step` of its phase.

        Raises:
            SearchError: the node is unknown or not running, or status or score is not allowed.
        """
        ...

    def veto(self, node_id: int) -> tuple[int, ...]:
        """Prune a subtree at the user's request. Returns its running nodes, which the caller must stop and
        then tell.

        Raises:
            SearchError: the node is unknown or may not be pruned.
        """
        ...

    def offered_checkpoint_nodes(self, node_id: int) -> tuple[int, ...]:
        """Nodes whose checkpoints a begun node may resume from, first phase first. Empty if it starts from
        scratch.

        Raises:
            SearchError: the node is unknown.
        """
        ...

    def set_resume_from(self, node_id: int, source: int | None, step: int | None) -> None:
        """Record the checkpoint that a running node starts from: `step` of node `source`, or the base model
        if None.

        Raises:
            SearchError: the node is unknown or not running, or the source is not among those offered to it.
        """
        ...

    def resume_chain(self, node_id: int) -> tuple[int, ...]:
        """Nodes whose training this node's weights contain, from-scratch run first, itself last.

        Raises:
            SearchError: the node is unknown.
        """
        ...

    def cuts(self, node_id: int) -> tuple[Cut, ...]:
        """Resume chain of a node, each phase cut where the next one resumed, the last at its best step.

        Raises:
            SearchError: the node is unknown.
        """
        ...
