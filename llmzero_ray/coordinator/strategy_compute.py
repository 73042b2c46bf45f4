"""Compute of a strategy, and token costs for comparisons at equal compute.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from llmzero_ray.config import SearchConfig, TokenCostConfig
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.hyperparameters import rate_depends_on_length
from llmzero_ray.hyperparameters.compute import amount, mean_cost, token_cost
from llmzero_ray.records import ComputeLimit, TokenCost


def compared_cost(config: SearchConfig, runs: Mapping[int, PhaseRun], node: int) -> TokenCost:
    """Cost of a token in a comparison with the strategy that ends at `node`: the cost in the search's budget
    if given, otherwise the seconds measured in the strategy's phases. If the engine measures no times, every
    token costs 1."""
    budget = config.budget
    if budget.compute is not None or budget.token_cost != TokenCostConfig():
        return token_cost(config)
    return mean_cost(run.outcome for run in _phases(runs, node)) or TokenCost()


def compute_of(runs: Mapping[int, PhaseRun], node: int, step: int | None, cost: TokenCost) -> float | None:
    """Compute of a strategy: of each phase up to where the next one resumes, of the last up to `step` of
    `node`. None if the tokens of a phase were not counted."""
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
    """Expected number of steps of the default recipe within `limit`. None if its learning rate does not
    depend on that number, or if the root's run gives no estimate."""
    if root is None or root.spec is None or root.outcome is None or not root.outcome.steps_done:
        return None
    recipe = root.spec.hyperparameters
    if not rate_depends_on_length(recipe):
        return None
    one = amount(root.outcome.tokens, limit.cost) / root.outcome.steps_done
    return max(1, math.ceil(limit.amount / one)) if one > 0 else None


def _phases(runs: Mapping[int, PhaseRun], node: int) -> Iterator[PhaseRun]:
    """Phases of the resume chain of a node, the last one first."""
    at: int | None = node
    while at is not None:
        run = runs[at]
        yield run
        source = None if run.spec is None else run.spec.resume_from
        at = None if source is None else source.node
