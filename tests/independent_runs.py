"""A search method of one's own: runs from scratch that know nothing of each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from llmzero_ray.errors import SearchError
from llmzero_ray.records import NodeKind, PhaseStatus
from llmzero_ray.search import Decision, SearchMethod, SearchNode, SearchRules


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a decision rests on: nothing but how many runs there are."""

    begun: int
    budget: int | None

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class IndependentRuns(SearchMethod[SearchNode]):
    """Runs from scratch until the budget is spent; no checkpoint is ever offered. All but the first hang on
    the first, so that a tree can be drawn."""

    def __init__(self, rules: SearchRules | None = None, budget: int | None = None) -> None:
        self.budget = budget
        self._runs: dict[int, SearchNode] = {}

    @property
    def nodes(self) -> Mapping[int, SearchNode]:
        return MappingProxyType(self._runs)

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
        parent = None if kind == "root" else 0
        self._runs[new] = SearchNode(id=new, kind=kind, parent=parent, created_on=parent)
        if parent is not None:
            self._runs[parent].children.append(new)
        return new

    def clone(self, parent: int, node_id: int | None = None) -> int:
        raise SearchError("independent runs have nothing to go on from; begin a search of its own.")

    def clone_problem(self) -> str | None:
        return "independent runs have nothing to go on from; begin a search of its own."

    def offered_checkpoint_nodes(self, node_id: int) -> tuple[int, ...]:
        self.node(node_id)
        return ()

    def _finish(self, node_id: int, status: PhaseStatus, score: float | None) -> None:
        run = self._runs[node_id]
        run.status, run.score, run.terminal = status, score, True

    def _prune(self, node_id: int) -> list[int]:
        run = self._runs[node_id]
        run.pruned = True
        return [node_id] if run.is_running else []
