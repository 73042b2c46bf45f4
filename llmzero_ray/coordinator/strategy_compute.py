"""What a strategy computed, and what a token counts where policies are compared at equal compute.

Pure. Not here: what a search may compute (`budget.compute`, state.py), the comparison itself (report/).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from llmzero_ray.config import SearchConfig, TokenCostConfig
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.hyperparameters.compute import amount, mean_cost, token_cost
from llmzero_ray.hyperparameters.verl_keys import LR_SCHEDULER, WARMUP_RATIO
from llmzero_ray.records import ComputeLimit, TokenCost


def compared_cost(config: SearchConfig, runs: Mapping[int, PhaseRun], node: int) -> TokenCost:
    """What a token counts in a comparison with the strategy that ends at `node`: as in the search's budget
    where that was given, else the seconds that were measured in the strategy's phases. Where an engine times
    nothing, every token counts 1."""
    budget = config.budget
    if budget.compute is not None or budget.token_cost != TokenCostConfig():
        return token_cost(config)
    return mean_cost(run.outcome for run in _phases(runs, node)) or TokenCost()


def compute_of(runs: Mapping[int, PhaseRun], node: int, step: int | None, cost: TokenCost) -> float | None:
    """What the phases of a strategy computed, each up to its cut, the last one at `step` of `node`; None: not
    all were counted."""
    total = 0.0
    for run in _phases(runs, node):
        kept = () if run.outcome is None else run.outcome.checkpoints
        found = next((one.tokens for one in kept if one.step == step), None)
        if found is None:
            return None
        total += amount(found, cost)
        source = None if run.spec is None else run.spec.resume_from
        step = None if source is None else source.step
    return total


def steps_within(limit: ComputeLimit, root: PhaseRun | None) -> int | None:
    """Steps of the default recipe that are expected within `limit`, as its learning rate depends on how many
    there will be; None where it does not, or where the root's run does not tell."""
    if root is None or root.spec is None or root.outcome is None or not root.outcome.steps_done:
        return None
    recipe = root.spec.hyperparameters
    if recipe.get(LR_SCHEDULER, "constant") == "constant" and not recipe.get(WARMUP_RATIO):
        return None
    one = amount(root.outcome.tokens, limit.cost) / root.outcome.steps_done
    return max(1, math.ceil(limit.amount / one)) if one > 0 else None


def _phases(runs: Mapping[int, PhaseRun], node: int) -> Iterator[PhaseRun]:
    """The phases that lead to a node, the last one first."""
    at: int | None = node
    while at is not None:
        run = runs[at]
        yield run
        source = None if run.spec is None else run.spec.resume_from
        at = None if source is None else source.node
