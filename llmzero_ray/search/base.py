"""The protocol of a search method: ask for the next run, tell its outcome; no clock, no file, no randomness.

The coordinator talks to this protocol alone; `TreeSearch` is its first implementation, and a configuration
may name another one (`search.method`). The same calls in the same order must always give the same decisions:
a journal is replayed through them. Not here: which method a search has (registry.py).
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
    """All numbers that a decision was based on. The journal records them, and a replay compares them."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        ...


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The next thing to do: begin a run of kind `action` on node `on`, stop, or wait for a run to finish."""

    action: Action
    on: int | None = None
    """Node to create the run from; None for root, stop and wait."""
    stop_reason: StopReason | None = None
    seen: DecisionFacts

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {**vars(self), "seen": self.seen.to_dict()}


def plans_its_runs(method: object) -> bool:
    """Whether a method, or its class, decides on every run itself instead of an agent, and shares the budget
    of compute out among its runs."""
    return bool(getattr(method, "plans_its_runs", False))


def needs_model(method: object) -> bool:
    """Whether a language model carries the method out, so that rules cannot take its place."""
    return bool(getattr(method, "needs_model", False))


class Cut(NamedTuple):
    """One phase of a recipe: train `node`'s configuration up to `step`, counted inside the phase."""

    node: int
    step: int | None
    """None only for a last phase that never validated: it has no best step."""


class SearchNode(Protocol):
    """One run of a search as others may read it."""

    @property
    def id(self) -> int:
        """Number of the run, from 0."""
        ...

    @property
    def kind(self) -> NodeKind:
        """What it was begun as."""
        ...

    @property
    def status(self) -> Literal["running"] | PhaseStatus:
        """`running` from the moment it is begun."""
        ...

    @property
    def is_running(self) -> bool:
        """Begun, and not finished."""
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
        """The node it hangs on now; None: on none."""
        ...

    @property
    def created_on(self) -> int | None:
        """The node it was created from."""
        ...

    @property
    def children(self) -> Sequence[int]:
        """Nodes that hang on it, the earliest first."""
        ...

    @property
    def pruned(self) -> bool:
        """Out of the search, with all below it."""
        ...

    @property
    def terminal(self) -> bool:
        """No further run will be created on it or below it: its last adapter is needed no more."""
        ...


class SearchMethod(Protocol):
    """One search with an ask-and-tell interface."""

    budget: int | None
    """Runs that may begin, the root being the first; None: no limit. The user may change it at any time."""

    @property
    def nodes(self) -> Mapping[int, SearchNode]:
        """All nodes by id in the order of creation; read only."""
        ...

    @property
    def best(self) -> SearchNode | None:
        """Best-scored node, the earliest of equals; None without scores."""
        ...

    def node(self, node_id: int) -> SearchNode:
        """The node of that id.

        Raises:
            SearchError: there is none.
        """
        ...

    def ask(self) -> Decision:
        """The next thing to do, with all that the decision was based on. Changes nothing."""
        ...

    def explain(self, decision: Mapping[str, Any]) -> str:
        """Why that was decided, in words; `decision` is one of its own, as `Decision.to_dict` wrote it."""
        ...

    def create(self, kind: NodeKind, on: int | None, node_id: int | None = None) -> int:
        """Begin a run as the journal recorded it, whatever this version would decide; the id of its node.

        Raises:
            SearchError: the run does not fit this search.
        """
        ...

    def clone(self, parent: int, node_id: int | None = None) -> int:
        """Begin a run on `parent` that the user requested; the id of its node.

        Raises:
            SearchError: the parent is unknown, running or pruned, or the budget is spent.
        """
        ...

    def tell(
        self, node_id: int, status: PhaseStatus, score: float | None = None, best_step: int | None = None
    ) -> None:
        """Finish a running node; `score` is its best validation score, reached at `best_step` of its phase.

        Raises:
            SearchError: the node is unknown or not running, or status or score is not allowed.
        """
        ...

    def veto(self, node_id: int) -> tuple[int, ...]:
        """Prune a subtree at the user's request; its running nodes, which must be stopped and then told.

        Raises:
            SearchError: the node is unknown or may not be pruned.
        """
        ...

    def offered_checkpoint_nodes(self, node_id: int) -> tuple[int, ...]:
        """Nodes whose checkpoints a begun node may resume from, first phase first; none: from scratch.

        Raises:
            SearchError: the node is unknown.
        """
        ...

    def set_resume_from(self, node_id: int, source: int | None, step: int | None) -> None:
        """Note the checkpoint that a running node starts from: `step` of node `source`; None: the base model.

        Raises:
            SearchError: the node is unknown or not running, or the source is not among those offered to it.
        """
        ...

    def resume_chain(self, node_id: int) -> tuple[int, ...]:
        """The nodes whose training is in this node's weights, from-scratch run first, itself last.

        Raises:
            SearchError: the node is unknown.
        """
        ...

    def recipe(self, node_id: int) -> tuple[Cut, ...]:
        """The resume chain of a node, each phase cut where the next one resumed, the last at its best step.

        Raises:
            SearchError: the node is unknown.
        """
        ...
