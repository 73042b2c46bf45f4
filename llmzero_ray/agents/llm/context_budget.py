"""Budget of a search as text: which limit binds first, how many steps it leaves, and the cost of a step.

Not here: counting and charging compute (compute.py), dollars of single calls (budget.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from statistics import fmean, median

from llmzero_ray.hyperparameters.compute import (
    amount,
    seconds_per_token,
    step_lengths,
    step_tokens,
    steps_that_fit,
    tokens_of,
    tokens_so_far,
    validations,
)
from llmzero_ray.hyperparameters.verl_keys import PPO_EPOCHS, ROLLOUT_N, TRAIN_BATCH
from llmzero_ray.records import Hyperparameters, TokenCost, TokenCounts
from llmzero_ray.records.agents import Budget, NodeView, TaskView
from llmzero_ray.records.metrics import LENGTH, PROMPT_LENGTH, STEP_TIME, TESTING_TIME, VAL_TOKENS, series
from llmzero_ray.utils.text import number, number_ranges, plural, short_duration


def budget_lines(
    budget: Budget,
    shown: NodeView,
    phase_steps: int,
    n_gpus: int,
    *,
    test_freq: int | None = None,
    others: Iterable[NodeView] = (),
    plans: bool = True,
) -> list[str]:
    """One line per limit, beginning with the one that binds first. For an agent that `plans` a phase, also
    the cost of a step with the `shown` node's configuration, what happens to a phase that does not fit, and
    which of the `others` draw on the same budget. A phase is validated every `test_freq` steps and at its
    last step."""
    found = [
        *_compute(budget, shown, phase_steps, test_freq),
        *_hours(budget, shown, phase_steps, n_gpus, test_freq),
    ]
    if budget.runs is not None:
        # The remaining runs include the one that is being planned.
        n = budget.runs
        left = f"{n + 1} left with the one you plan" if plans else f"{n} left after this one"
        found.append((n + 1.0, "training runs", left))
    found += _dollars(budget)
    if not found:
        return []
    lines = [f"{name}: {text}" for _, name, text in sorted(found, key=lambda limit: limit[0])]
    lines[0] += " (this limit binds first)"
    if not plans:
        return lines
    costs = _step_costs(budget, shown, phase_steps, test_freq)
    times = _step_times(budget, shown, phase_steps, test_freq, priced=bool(costs))
    lines += costs + times
    busy = sorted({node.node for node in others if node.status in ("running", "pending")})
    if busy:
        these = f"node {busy[0]}, which has" if len(busy) == 1 else f"nodes {number_ranges(busy)}, which have"
        lines.append(f"not counted yet: {these} not ended and will take a share")
    after = budget.fresh_start_in
    # 0 phases means that the number is not known.
    ends = min((n for n, *_ in found if n > 0), default=math.inf)
    if after is not None and after + 1 < ends:
        when = f"after {after} more run{'' if after == 1 else 's'}" if after else "right after this run"
        lines.append(f"a fresh start from the base model is forced {when}, and draws on the same limits")
    return lines


def fitting_steps(budget: Budget, shown: NodeView, task: TaskView, n_gpus: int) -> int | None:
    """Number of steps of one phase, with its validations, that the limits pay for. None if the task's longest
    phase fits. Steps cost as much as the root's or, if that is unknown, as the `shown` node's."""
    found, freq = [task.max_phase_steps], task.test_freq
    step = budget.root_step or _step(shown)
    if budget.compute is not None and (cost := amount(step, budget.compute.cost)) > 0:
        found.append(_fit(budget, shown, cost, freq))
    for hours, gpus in ((budget.gpu_hours, n_gpus), (budget.wall_clock_hours, 1)):
        if hours is not None and _median(shown, STEP_TIME) > 0:
            found.append(_timed_steps(budget, shown, hours / max(1, gpus), freq))
    return min(found) if min(found) < task.max_phase_steps else None


def without_own_steps(budget: Budget, running: NodeView) -> Budget:
    """The budget minus the compute that a running phase has used so far."""
    if budget.compute is None:
        return budget
    used = amount(tokens_so_far(running.hyperparameters, running.curves), budget.compute.cost)
    left = max(0.0, budget.compute.amount - used)
    return dataclasses.replace(budget, compute=dataclasses.replace(budget.compute, amount=left))


def phase_cost(budget: Budget, node: NodeView) -> str:
    """`cost 21.3%` of the search's compute, or `cost 1.2 GPU hours` if compute is not limited. Empty if the
    cost is not known."""
    if budget.compute is not None and budget.whole_compute:
        known = node.tokens is not None
        return f"cost {_share(budget, amount(node.tokens, budget.compute.cost))}" if known else ""
    return f"cost {number(node.gpu_hours)} GPU hours" if node.gpu_hours is not None else ""


_Limit = tuple[float, str, str]
"""(remaining phases of the usual length, name, remaining amount)."""
_WALL_CLOCK = "hours of wall clock"


def _compute(budget: Budget, shown: NodeView, phase_steps: int, test_freq: int | None) -> list[_Limit]:
    limit = budget.compute
    if limit is None or not budget.whole_compute:
        return []
    text = f"{_share(budget, limit.amount)} of the search's whole is left"
    prices = [(f"node {shown.node}'s configuration", _step(shown)), ("the root's", budget.root_step)]
    costs = [(name, amount(tokens, limit.cost)) for name, tokens in prices[: 2 if shown.node else 1]]
    costs = [(name, cost) for name, cost in costs if cost > 0]
    if not costs:
        return [(0.0, "compute", text)]
    steps = [
        f"{_steps(_fit(budget, shown, cost, test_freq))} of {name} ({_share(budget, cost)} each)"
        for name, cost in costs
    ]
    validation = _validation(shown, limit.cost)
    each = f"({_share(budget, validation)} each) " if validation else "not "
    usual = _phase(budget, shown, costs[0][1], phase_steps, test_freq)
    return [(limit.amount / usual, "compute", f"{text}: {' or '.join(steps)}, validations {each}counted")]


def _hours(
    budget: Budget, shown: NodeView, phase_steps: int, n_gpus: int, test_freq: int | None
) -> list[_Limit]:
    seconds, validation = _median(shown, STEP_TIME), _median(shown, TESTING_TIME)
    usual = phase_steps * seconds + _n_validations(budget, phase_steps, test_freq) * validation
    found = []
    for name, hours, whole, gpus, slots in (
        ("GPU hours", budget.gpu_hours, budget.whole_gpu_hours, n_gpus, 1),
        (_WALL_CLOCK, budget.wall_clock_hours, budget.whole_wall_clock_hours, 1, budget.n_slots),
    ):
        if hours is None:
            continue
        text, phases = f"{number(max(0.0, hours))} left", math.inf
        text += f" ({number(100 * max(0.0, hours) / whole)}% of the search's whole)" if whole else ""
        if seconds > 0:
            left = hours * 3600 / max(1, gpus)
            at = f" on {n_gpus} GPUs" if n_gpus > 1 else ""
            steps = _steps(_timed_steps(budget, shown, hours / max(1, gpus), test_freq))
            counted = f", validations of {number(validation)} s counted" if validation else ""
            text += f": {steps} like node {shown.node}'s ({number(seconds)} s{at} each{counted})"
            phases = slots * left / usual
        found.append((phases, name, text))
    return found


def _dollars(budget: Budget) -> list[_Limit]:
    left, each = budget.dollars, budget.dollars_per_run
    if left is None:
        return []
    text = f"{left:.4g} left" + (f", {number(each)} a run so far" if each else "")
    text += "" if budget.dollars_end_it else "; without them rules decide"
    return [(left / each if each and budget.dollars_end_it else math.inf, "dollars for agent calls", text)]


def _step_costs(budget: Budget, shown: NodeView, phase_steps: int, test_freq: int | None) -> list[str]:
    """Price of a step and of a whole phase, with each factor, and what happens if a phase does not fit."""
    if budget.compute is None or not budget.whole_compute:
        return []
    step = amount(_step(shown), budget.compute.cost)
    fit = _fit(budget, shown, step, test_freq) if step > 0 else phase_steps
    last = f"a phase of {phase_steps} steps as it is does not fit any more: this may be the last one"
    return [
        *_step_price(budget, shown, phase_steps, test_freq),
        *([last] if fit < phase_steps else []),
        "a phase that does not fit is not refused: it is cut at the step nearest to what is left, which is "
        "saved and validated",
    ]


def _step_price(budget: Budget, shown: NodeView, phase_steps: int, test_freq: int | None) -> list[str]:
    assert budget.compute is not None
    cost, full, step = budget.compute.cost, shown.hyperparameters, _step(shown)
    lengths = {} if step is None else step_lengths(full, step)
    one = amount(tokens_of(full, lengths), cost)
    if one <= 0:
        return []
    answer, prompt = (number(lengths[name]) for name in (LENGTH, PROMPT_LENGTH))
    sampling, training = (_share(budget, each) for each in (cost.rollout, cost.trained))
    batch, n, epochs = (_count(full.get(key)) for key in (TRAIN_BATCH, ROLLOUT_N, PPO_EPOCHS))
    prices = [
        f"{name} {_share(budget, each)} a step ({_fit(budget, shown, each, test_freq)} fit)"
        for name, each in ((name, amount(tokens, cost)) for name, tokens in _planned_steps(full, lengths))
    ]
    validation, usual = _validation(shown, cost), _phase(budget, shown, one, phase_steps, test_freq)
    n_validations = plural(_n_validations(budget, phase_steps, test_freq), "validation")
    beside = f" with {n_validations} of {number(validation / one)} steps each" if validation else ""
    if beside:
        also = "one more where the start has no score or a memory key changes"
        beside += f", {'that of its start too' if budget.validates_start else also}"
    return [
        f"price of a step = batch_size {batch} x n {n} x (answer {answer} x {sampling} for sampling + "
        f"ppo_epochs {epochs} x (answer {answer} + prompt {prompt}) x {training} for training), with node "
        f"{shown.node}'s mean tokens; the cap itself costs nothing",
        f"{', '.join(prices)}; {phase_steps} steps as it is cost {_share(budget, usual)}{beside}",
    ]


def _step_times(
    budget: Budget, shown: NodeView, phase_steps: int, test_freq: int | None, *, priced: bool
) -> list[str]:
    """Seconds of a planned step, unless it is `priced` in compute, and what ends a phase that takes too long.
    Seconds are counted as in price.py, from the measured seconds per token."""
    limited = budget.gpu_hours is not None or budget.wall_clock_hours is not None
    if limited:
        found = ["when hours run out, phases end at their next step, saved but not validated"]
    else:
        found = [] if priced else ["no limit ends a long phase, and somebody waits for it"]
    full, step = shown.hyperparameters, _step(shown)
    cost = None if step is None else seconds_per_token(full, shown.curves, step)
    if priced or cost is None or step is None:
        return found
    planned = _planned_steps(full, step_lengths(full, step))
    times = ", ".join(f"{name} {number(amount(tokens, cost))} s" for name, tokens in planned)
    if not limited:
        validations = _n_validations(budget, phase_steps, test_freq) * _median(shown, TESTING_TIME)
        usual = phase_steps * amount(planned[0][1], cost) + validations
        beside = " with validations" if validations else ""
        times += f"; {phase_steps} steps as it is take {short_duration(usual)}{beside}"
    return [f"a step takes {times}", *found]


def _planned_steps(full: Hyperparameters, lengths: Mapping[str, float]) -> list[tuple[str, TokenCounts]]:
    """Tokens of a step as configured, and with each factor of its price doubled."""
    n, epochs = _count(full.get(ROLLOUT_N)), _count(full.get(PPO_EPOCHS))
    return [
        ("as it is", tokens_of(full, lengths)),
        ("batch_size or n doubled", tokens_of({**full, ROLLOUT_N: 2 * n}, lengths)),
        (f"ppo_epochs {2 * epochs}", tokens_of({**full, PPO_EPOCHS: 2 * epochs}, lengths)),
        ("answers twice as long", tokens_of(full, {**lengths, LENGTH: 2 * lengths[LENGTH]})),
    ]


def _fit(budget: Budget, shown: NodeView, step: float, test_freq: int | None) -> int:
    """Number of steps of cost `step`, with their validations, that the remaining compute pays for."""
    assert budget.compute is not None
    validation = _validation(shown, budget.compute.cost)
    left = budget.compute.amount - budget.validates_start * validation
    return steps_that_fit(left, step, validation, every=test_freq)


def _timed_steps(budget: Budget, shown: NodeView, hours: float, test_freq: int | None) -> int:
    """Number of steps as long as the shown node's, with their validations, that fit into the hours."""
    seconds, validation = _median(shown, STEP_TIME), _median(shown, TESTING_TIME)
    left = hours * 3600 - budget.validates_start * validation
    return steps_that_fit(left, seconds, validation, every=test_freq)


def _phase(budget: Budget, shown: NodeView, step: float, n_steps: int, test_freq: int | None) -> float:
    """Compute of a phase of `n_steps` steps of cost `step`, with its validations."""
    assert budget.compute is not None
    n = _n_validations(budget, n_steps, test_freq)
    return n_steps * step + n * _validation(shown, budget.compute.cost)


def _n_validations(budget: Budget, n_steps: int, test_freq: int | None) -> int:
    return validations(n_steps, test_freq or n_steps, at_start=budget.validates_start)


def _median(shown: NodeView, metric: str) -> float:
    """Median of a metric over the phase, or 0 if it was not logged."""
    values = series(shown.curves, metric).values
    return median(values) if values else 0.0


def _count(value: object) -> int:
    return value if isinstance(value, int) else 1


def _validation(shown: NodeView, cost: TokenCost) -> float:
    sampled = shown.val_tokens
    if sampled is None:
        counted = series(shown.curves, VAL_TOKENS).values
        sampled = fmean(counted) if counted else 0.0
    return amount(TokenCounts(rollout=sampled), cost)


def _step(node: NodeView) -> TokenCounts | None:
    """Mean tokens of one step: as charged or, for a phase that still trains, as measured so far."""
    return node.step_tokens or step_tokens(node.hyperparameters, node.curves)


def _steps(n: float) -> str:
    """`about 18 steps`, `less than one step`."""
    whole = math.floor(max(0.0, n))
    return "less than one step" if whole < 1 else f"about {whole} step{'' if whole == 1 else 's'}"


def _share(budget: Budget, cost: float) -> str:
    """Share of the search's whole compute: `24.1%`."""
    assert budget.whole_compute
    return f"{number(100 * max(0.0, cost) / budget.whole_compute)}%"
