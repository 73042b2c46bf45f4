"""Budget of a search as text: which limit binds first, how many steps it leaves, and the cost of a step.
compute.py counts and charges compute.

 Not here: dollars of single calls (budget.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from statistics import fmean, median

from llmzero_ray.hyperparameters.compute import amount, step_tokens, tokens_so_far
from llmzero_ray.records import TokenCounts
from llmzero_ray.records.agents import Budget, NodeView
from llmzero_ray.records.metrics import LENGTH, PROMPT_LENGTH, STEP_TIME, VAL_TOKENS, series
from llmzero_ray.utils.text import number, number_ranges


def budget_lines(
    budget: Budget,
    shown: NodeView,
    phase_steps: int,
    n_gpus: int,
    *,
    others: Iterable[NodeView] = (),
    plans: bool = True,
) -> list[str]:
    """One line for each limit, beginning with the one that binds first. For an agent that `plans` a phase,
    also the cost of a step of the `shown` node's configuration, what ends a phase that does not fit, and
    which of the `others` use the same budget."""
    found = [*_compute(budget, shown, phase_steps), *_hours(budget, shown, phase_steps, n_gpus)]
    if budget.runs is not None:
        # The run that is being planned is one of those that are left.
        found.append((budget.runs + 1.0, "training runs", f"{budget.runs} left after this one"))
    found += _dollars(budget)
    if not found:
        return []
    lines = [f"{name}: {text}" for _, name, text in sorted(found, key=lambda limit: limit[0])]
    lines[0] += " (this limit binds first)"
    if not plans:
        return lines
    lines += _step_costs(budget, shown)
    busy = sorted({node.node for node in others if node.status in ("running", "pending")})
    if busy:
        these = f"node {busy[0]}, which has" if len(busy) == 1 else f"nodes {number_ranges(busy)}, which have"
        lines.append(f"not counted yet: {these} not ended, and will take a share of what is left")
    return lines


def without_own_steps(budget: Budget, running: NodeView) -> Budget:
    """The budget minus the compute of a running phase so far."""
    if budget.compute is None:
        return budget
    used = amount(tokens_so_far(running.hyperparameters, running.curves), budget.compute.cost)
    left = max(0.0, budget.compute.amount - used)
    return dataclasses.replace(budget, compute=dataclasses.replace(budget.compute, amount=left))


def phase_cost(budget: Budget, node: NodeView) -> str:
    """`cost 21.3%` of the search's compute, or `cost 1.2 GPU hours` if hours are limited. Empty if neither is
    limited, or the cost is not known."""
    if budget.compute is not None and budget.whole_compute:
        known = node.tokens is not None
        return f"cost {_share(budget, amount(node.tokens, budget.compute.cost))}" if known else ""
    limited = budget.gpu_hours is not None or budget.wall_clock_hours is not None
    return f"cost {number(node.gpu_hours)} GPU hours" if limited and node.gpu_hours is not None else ""


_Limit = tuple[float, str, str]
"""(remaining phases of the usual length, name, remaining amount)."""


def _compute(budget: Budget, shown: NodeView, phase_steps: int) -> list[_Limit]:
    limit = budget.compute
    if limit is None or not budget.whole_compute:
        return []
    text = f"{_share(budget, limit.amount)} of the search's whole is left"
    prices = [(f"node {shown.node}'s configuration", _step(shown)), ("the root's", budget.root_step)]
    costs = [(name, amount(tokens, limit.cost)) for name, tokens in prices[: 2 if shown.node else 1]]
    costs = [(name, cost) for name, cost in costs if cost > 0]
    steps = [f"{_steps(limit.amount / cost)} of {name} ({_share(budget, cost)} each)" for name, cost in costs]
    text += f": {' or '.join(steps)}" if steps else ""
    return [(limit.amount / costs[0][1] / phase_steps if costs else 0.0, "compute", text)]


def _hours(budget: Budget, shown: NodeView, phase_steps: int, n_gpus: int) -> list[_Limit]:
    times = series(shown.curves, STEP_TIME).values
    seconds = median(times) if times else math.nan
    found = []
    for name, hours, gpus, slots in (
        ("GPU hours", budget.gpu_hours, n_gpus, 1),
        ("hours of wall clock", budget.wall_clock_hours, 1, budget.n_slots),
    ):
        if hours is None:
            continue
        text, phases = f"{number(max(0.0, hours))} left", math.inf
        if math.isfinite(seconds) and seconds > 0:
            steps = hours * 3600 / seconds / max(1, gpus)
            at = f" on {n_gpus} GPUs" if n_gpus > 1 else ""
            text += f": {_steps(steps)} like node {shown.node}'s ({number(seconds)} s{at} each)"
            phases = slots * steps / phase_steps
        text += "; when they are used up, phases end at their next step, saved but not validated"
        found.append((phases, name, text))
    return found


def _dollars(budget: Budget) -> list[_Limit]:
    left, each = budget.dollars, budget.dollars_per_run
    if left is None:
        return []
    text = f"{left:.4g} left" + (f", {number(each)} a run so far" if each else "")
    text += "" if budget.dollars_end_it else "; without them rules decide"
    return [(left / each if each and budget.dollars_end_it else math.inf, "dollars for agent calls", text)]


def _step_costs(budget: Budget, shown: NodeView) -> list[str]:
    """Parts of a step's compute, and the effect on steps that do not fit."""
    if budget.compute is None or not budget.whole_compute:
        return []
    cost, tokens = budget.compute.cost, _step(shown)
    lines = []
    if tokens is not None and (whole := amount(tokens, cost)) > 0:
        sampling = amount(TokenCounts(rollout=tokens.rollout), cost) / whole
        lines.append(
            f"a step costs in proportion to batch_size x n x tokens: with node {shown.node}'s configuration "
            f"{sampling:.0%} of it for sampling answers and {1 - sampling:.0%} for training on answers and "
            f"prompts, which ppo_epochs multiplies{_lengths(shown)}{_validation(budget, shown, whole)}"
        )
    return [
        *lines,
        "a phase that does not fit is not refused: it is cut at the step nearest to what is left, which is "
        "saved and validated (with less than two steps left it may end without a validation)",
    ]


def _lengths(shown: NodeView) -> str:
    answers, prompts = (series(shown.curves, name).values for name in (LENGTH, PROMPT_LENGTH))
    if not answers:
        return ""
    beside = f" and prompts {number(fmean(prompts))}" if prompts else ""
    return f"; on average answers had {number(fmean(answers))} tokens{beside}; the cap itself costs nothing"


def _validation(budget: Budget, shown: NodeView, step: float) -> str:
    sampled = shown.val_tokens
    if sampled is None:
        counted = series(shown.curves, VAL_TOKENS).values
        sampled = fmean(counted) if counted else 0.0
    assert budget.compute is not None
    cost = amount(TokenCounts(rollout=sampled), budget.compute.cost)
    return f"; a validation costs as much as {number(cost / step)} of these steps" if cost > 0 else ""


def _step(node: NodeView) -> TokenCounts | None:
    """Mean tokens of one step: as charged, or measured so far for a phase that still trains."""
    return node.step_tokens or step_tokens(node.hyperparameters, node.curves)


def _steps(n: float) -> str:
    """`about 18 steps`, `less than one step`."""
    whole = math.floor(max(0.0, n))
    return "less than one step" if whole < 1 else f"about {whole} step{'' if whole == 1 else 's'}"


def _share(budget: Budget, cost: float) -> str:
    """`24.1%` of the search's whole compute."""
    assert budget.whole_compute
    return f"{number(100 * max(0.0, cost) / budget.whole_compute)}%"
