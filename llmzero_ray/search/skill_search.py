"""The search of the skill-based agent (App. B.7): the agent itself decides where each phase starts.

The method counts runs and offers every saved checkpoint; it has no tree, forces no fresh start and debugs
nothing. A run hangs on the best one so far, which the agent is shown. Not here: the agent itself
(agents/llm/skills).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llmzero_ray.config.search_rules import MethodRules, SearchRules
from llmzero_ray.search.base import Decision
from llmzero_ray.search.planned_search import Next, PlannedNode, PlannedSearch
from llmzero_ray.search.run_plan import RunPlan

_ROOT = RunPlan(recipe="default", why="the default recipe first")


class SkillSearch(PlannedSearch):
    """One search. `budget` counts runs, the root being the first; None: no limit."""

    def __init__(self, rules: SearchRules, budget: int | None = None) -> None:
        own = rules if isinstance(rules, MethodRules) else MethodRules(**rules.model_dump())
        super().__init__(own, budget)

    def _next(self) -> Next | None:
        if not self._nodes:
            return Next(None, _ROOT)
        ended = [node for node in self._open if not node.is_running]
        if not ended:
            return None
        scored = [node for node in ended if node.score is not None]
        best = max(scored, key=lambda node: (node.score, -node.id), default=ended[0])
        return Next(
            best.id, RunPlan(recipe="unchanged", why=f"the agent decides; node {best.id} is the best")
        )

    def _decide(
        self, action: Any, *, on: int | None = None, plan: RunPlan | None = None, reason: Any = None
    ) -> Decision:
        """A decision without a plan: recipe, start and length are the agent's."""
        del plan
        return super()._decide(action, on=on, reason=reason)

    def explain(self, decision: Mapping[str, Any]) -> str:
        """Why that was decided, in words."""
        seen = decision["seen"]
        if decision["action"] == "root":
            return "first run of the search: the default recipe"
        if decision["action"] == "evolve":
            limit = "no limit" if seen["budget"] is None else str(seen["budget"])
            shown = f"it is shown node {decision['on']}"
            return f"the agent decides; {shown} ({seen['begun']} of {limit} runs begun)"
        return super().explain(decision)

    def offered_checkpoint_nodes(self, node_id: int) -> tuple[int, ...]:
        """Every run that has ended and was not vetoed; none for the root and without stages."""
        node = self.node(node_id)
        if node.kind == "root" or not self.rules.multi_stage:
            return ()
        return tuple(one.id for one in self._open if not one.is_running and one.id != node_id)

    def _trained_from(self, node: PlannedNode) -> Iterable[PlannedNode]:
        """Runs that resumed one of its checkpoints, whatever they hang on."""
        resumed = self._nodes.values()
        return [one for one in resumed if one.resume_from is not None and one.resume_from[0] == node.id]
