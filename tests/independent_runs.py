"""A search method of one's own: runs from scratch that know nothing of each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from llmzero_ray.errors import SearchError
from llmzero_ray.records import NodeKind, PhaseStatus
from llmzero_ray.search import Cut, Decision, NodeStatus, SearchRules


@dataclass(kw_only=True)
class Run:
    """One run; all but the first hang on the first, so that a tree can be drawn."""

    id: int
    kind: NodeKind
    parent: int | None
    status: NodeStatus = "running"
    score: float | None = None
    best_step: int | None = None
    children: list[int] = field(default_factory=list)
    pruned: bool = False

    @property
    def created_on(self) -> int | None:
        return self.parent

    @property
    def is_running(self) -> bool:
        return self.status == "running"

    @property
    def terminal(self) -> bool:
        return not self.is_running


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a decision rests on: nothing but how many runs there are."""

    begun: int
    budget: int | None

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class IndependentRuns:
    """Runs from scratch until the budget is spent; no checkpoint is ever offered."""

    def __init__(self, rules: SearchRules | None = None, budget: int | None = None) -> None:
        self.budget = budget
        self._runs: dict[int, Run] = {}

    @property
    def nodes(self) -> Mapping[int, Run]:
        return MappingProxyType(self._runs)

    @property
    def best(self) -> Run | None:
        scored = [run for run in self._runs.values() if run.score is not None]
        return max(scored, key=lambda run: (run.score, -run.id), default=None)

    def node(self, node_id: int) -> Run:
        try:
            return self._runs[node_id]
        except KeyError:
            raise SearchError(f"node {node_id!r} is unknown.") from None

    def ask(self) -> Decision:
        seen = Counts(begun=len(self._runs), budget=self.budget)
        if self.budget is not None and len(self._runs) >= self.budget:
            return Decision(action="stop", stop_reason="budget", seen=seen)
        return (
            Decision(action="scratch", on=0, seen=seen) if self._runs else Decision(action="root", seen=seen)
        )

    def explain(self, decision: Mapping[str, Any]) -> str:
        seen = decision["seen"]
        return f"{seen['begun']} of {seen['budget']} runs begun"

    def create(self, kind: NodeKind, on: int | None, node_id: int | None = None) -> int:
        new = len(self._runs) if node_id is None else node_id
        if new in self._runs or (kind == "root") != (not self._runs):
            raise SearchError(f"node {new} does not fit: ids are unique, and the root comes first, once.")
        self._runs[new] = Run(id=new, kind=kind, parent=None if kind == "root" else 0)
        if kind != "root":
            self._runs[0].children.append(new)
        return new

    def clone(self, parent: int, node_id: int | None = None) -> int:
        raise SearchError("independent runs have nothing to go on from; begin a search of its own.")

    def tell(
        self, node_id: int, status: PhaseStatus, score: float | None = None, best_step: int | None = None
    ) -> None:
        run = self.node(node_id)
        if not run.is_running:
            raise SearchError(f"node {node_id} is already {run.status}.")
        run.status, run.score, run.best_step = status, score, best_step

    def veto(self, node_id: int) -> tuple[int, ...]:
        run = self.node(node_id)
        if run.kind == "root":
            raise SearchError("the root cannot be vetoed.")
        run.pruned = True
        return (node_id,) if run.is_running else ()

    def offered_checkpoint_nodes(self, node_id: int) -> tuple[int, ...]:
        self.node(node_id)
        return ()

    def set_resume_from(self, node_id: int, source: int | None, step: int | None) -> None:
        if source is not None:
            raise SearchError(f"node {node_id}: no checkpoint is offered.")

    def resume_chain(self, node_id: int) -> tuple[int, ...]:
        return (self.node(node_id).id,)

    def cuts(self, node_id: int) -> tuple[Cut, ...]:
        return (Cut(node_id, self.node(node_id).best_step),)
