"""Asynchronous successive halving (ASHA, Li et al. 2020): the best recipes of each rung continue training.

A recipe in rung k has trained for eta^k standard phases. Whenever a run can begin, rungs are searched from
the highest one down for a recipe that is among the best 1/eta of those that have ended there and has not been
promoted yet. It continues from its last adapter, with a fresh optimizer. If there is none, a new recipe
begins. Runs that the user requested are in no rung.
"""

from __future__ import annotations

from llmzero_ray.methods.planned_search import PlannedNode, PlannedSearch, by_user
from llmzero_ray.methods.run_plan import RunPlan


class AsynchronousHalving(PlannedSearch):
    """ASHA on phases, with random recipes in the lowest rung. No rung is longer than `budget`."""

    def next_run(self) -> RunPlan | None:
        """The next run of a promoted recipe, or else a new recipe."""
        rungs: dict[int, list[PlannedNode]] = {}
        for node in self.runs:
            if by_user(node):
                continue
            rungs.setdefault(self._rung(node), []).append(node)
        for rung in sorted(rungs, reverse=True):
            promoted = self._promotable(rungs[rung], rung)
            if promoted is not None:
                units = float(self.rules.eta ** (rung + 1) - self.rules.eta**rung)
                why = f"node {promoted.id} is among the best 1/{self.rules.eta} of rung {rung}: it trains on"
                return RunPlan(on=promoted.id, source="unchanged", start="last", units=units, why=why)
        number = sum(node.plan.source == "draw" for node in self.nodes.values())
        why = f"random recipe {number + 1}: none can be promoted"
        return RunPlan(source="draw", number=number, why=why)

    def _rung(self, node: PlannedNode) -> int:
        rung = 0
        while node.plan.source != "draw" and node.parent is not None:
            node, rung = self.nodes[node.parent], rung + 1
        return rung

    def _promotable(self, nodes: list[PlannedNode], rung: int) -> PlannedNode | None:
        """Best recipe of a rung that may be promoted (the earliest in a tie), or None."""
        if self.budget is not None and self.rules.eta ** (rung + 1) > self.budget:
            return None
        ended = [node for node in nodes if not node.is_running]
        scored = sorted(
            (node for node in ended if node.score is not None and node.status != "failed"),
            key=lambda node: (-(node.score or 0.0), node.id),
        )
        best = scored[: len(ended) // self.rules.eta]
        return next((node for node in best if not self._is_promoted(node)), None)

    def _is_promoted(self, node: PlannedNode) -> bool:
        return any(not by_user(self.nodes[child]) for child in node.children)
