"""Number of steps of a planned configuration that the limits of a search still allow. Pure.

The price of a step is the one that requests to a language model show: tokens as compute.py charges them, with
the answers and prompts of a phase that has been trained.
"""

from __future__ import annotations

from statistics import fmean, median

from llmzero_ray.hyperparameters.compute import amount, planned_tokens, step_tokens
from llmzero_ray.records import Hyperparameters, TokenCost, TokenCounts
from llmzero_ray.records.agents import NodeView, ProposalRequest
from llmzero_ray.records.metrics import STEP_TIME, VAL_TOKENS, series


def affordable(
    request: ProposalRequest, full: Hyperparameters, shown: NodeView, n_steps: int, *, n_gpus: int
) -> int:
    """Length of a phase of configuration `full`: `n_steps`, or as many as the compute and the hours leave,
    but at least one. `shown` is the phase whose answers and prompts are assumed."""
    step = shown.step_tokens or step_tokens(shown.hyperparameters, shown.curves)
    if step is None:
        return n_steps
    planned = planned_tokens(full, 1, like=shown.hyperparameters, step=step)
    fit, budget = [float(n_steps)], request.budget
    if budget.compute is not None:
        counted = series(shown.curves, VAL_TOKENS).values
        sampled = shown.val_tokens if shown.val_tokens is not None else fmean(counted) if counted else 0.0
        validation = TokenCounts(rollout=sampled / (request.task.test_freq or n_steps), trained=0.0)
        each = amount(planned, budget.compute.cost) + amount(validation, budget.compute.cost)
        fit += [budget.compute.amount / each] if each > 0 else []
    times, unit = series(shown.curves, STEP_TIME).values, TokenCost(rollout=1.0, trained=1.0)
    whole = amount(step, unit)
    seconds = median(times) * amount(planned, unit) / whole if times and whole > 0 else 0.0
    for hours, gpus in ((budget.wall_clock_hours, 1), (budget.gpu_hours, n_gpus)):
        if hours is not None and seconds > 0:
            fit.append(3600 * hours / gpus / seconds)
    return max(1, round(min(fit)))
