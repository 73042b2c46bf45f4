"""Population-based training (Jaderberg et al. 2017): members train in turn, and the worst copy the best.

A member's run is one standard phase. If, at its next turn, its last score is missing or in the lower quantile
of the population's last scores, it copies the adapter and settings of a random member of the upper quantile
and explores from there. Otherwise it continues unchanged. A member that trains now counts with its run
before. Quantiles are those of Ray Tune's PopulationBasedTraining. Not here: how settings are explored
(values.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from llmzero_ray.methods.planned_search import PlannedNode, PlannedSearch
from llmzero_ray.methods.run_plan import RunPlan
from llmzero_ray.methods.values import PlannedStart, explored
from llmzero_ray.records import HyperparameterValue


class PopulationTraining(PlannedSearch):
    """`rules.population` members. The first starts with the default recipe, the others with random ones."""

    def next_run(self) -> RunPlan | None:
        """The next phase of the member with the fewest phases. None if that member is still training."""
        last = self._last()
        member = min(range(self.rules.population), key=lambda one: (self._trained(one), one))
        before = last.get(member)
        if before is None:
            source = "draw" if member else "default"
            why = f"member {member} begins with {'a random' if member else 'the default'} recipe"
            return RunPlan(source=source, number=member, why=why)
        if before.is_running:
            return None
        ended = self._last(ended=True)
        scores = {
            one: node.score
            for one, node in ended.items()
            if node.score is not None and node.status != "failed"
        }
        lower, upper = quantiles(scores, self.rules.quantile)
        ranked = upper or sorted(scores, key=lambda one: -scores[one])[:1]
        if (member in lower or member not in scores) and ranked:
            donor = self.random().choice(ranked)
            on = ended[donor].id
            why = f"member {member} is among the worst: it explores from member {donor}, node {on}"
            return RunPlan(on=on, source="explore", start="last", number=member, why=why)
        why = f"member {member} continues unchanged from node {before.id}"
        return RunPlan(on=before.id, source="unchanged", start="last", number=member, why=why)

    def values(self, plan: RunPlan, at: PlannedStart) -> Mapping[str, HyperparameterValue]:
        """Random values for a new member, or values explored from the better member's settings."""
        if plan.source != "explore":
            return super().values(plan, at)
        return explored(at.base.hyperparameters, self.ranges, at.root, at.rng, self.rules.resample)

    def _last(self, *, ended: bool = False) -> dict[int, PlannedNode]:
        """Member -> its latest run, or, if `ended`, the latest of its runs that have ended."""
        return {
            node.plan.number: node
            for node in self.runs
            if node.plan.number >= 0 and not (ended and node.is_running)
        }

    def _trained(self, member: int) -> int:
        return sum(node.plan.number == member for node in self.nodes.values())


def quantiles(scores: Mapping[int, float], share: float) -> tuple[Sequence[int], Sequence[int]]:
    """(members in the lower quantile, members in the upper one). Both are empty for fewer than two scores.

    Source: `PopulationBasedTraining._quantiles` of Ray Tune 2.60.
    """
    ranked = sorted(scores, key=lambda member: scores[member])
    if len(ranked) <= 1:
        return (), ()
    size = math.ceil(len(ranked) * share)
    if size > len(ranked) / 2:
        size = len(ranked) // 2
    return ranked[:size], ranked[-size:]
