"""Compute of training, in the same unit for all methods: tokens sampled and trained on, each at its cost.

With the seconds that an engine takes per token as costs, amounts are seconds of that engine; with costs of 1
they are tokens. It is counted from the phases' reports, so equal phases always give equal amounts, however
busy the machine was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean, median
from typing import Literal, TypeAlias

from llmzero_ray.config import SearchConfig
from llmzero_ray.hyperparameters.verl_keys import PPO_EPOCHS, ROLLOUT_N, TRAIN_BATCH
from llmzero_ray.records import (
    ComputeLimit,
    Hyperparameters,
    PhaseFailure,
    PhaseResult,
    TokenCost,
    TokenCounts,
)
from llmzero_ray.records.metrics import LENGTH, PROMPT_LENGTH, STEP_TIME, VAL_TOKENS, Curves, series
from llmzero_ray.utils.text import is_number

GENERATION_TIME = "timing_s/gen"

Next: TypeAlias = Literal["go on", "last step", "end"]


def tokens_of(hyperparameters: Hyperparameters, metrics: Mapping[str, float | None]) -> TokenCounts:
    """The tokens of one step as it was reported; of a step without the metrics none.

    Sampled are the answers of rollouts and of a validation of that step. Trained on are prompts and answers,
    once for each pass of the update.
    """
    n, epochs = 1.0, _number(hyperparameters.get(PPO_EPOCHS, 1))
    for key in (TRAIN_BATCH, ROLLOUT_N):
        n *= _number(hyperparameters.get(key, 1))
    sampled, prompts = n * _number(metrics.get(LENGTH)), n * _number(metrics.get(PROMPT_LENGTH))
    return TokenCounts(
        rollout=sampled + _number(metrics.get(VAL_TOKENS)), trained=(sampled + prompts) * max(1.0, epochs)
    )


def tokens_so_far(hyperparameters: Hyperparameters, curves: Curves) -> TokenCounts:
    """The tokens of all steps of a phase so far, validations included but for the one at step 0."""
    names = (LENGTH, PROMPT_LENGTH, VAL_TOKENS)
    total = TokenCounts()
    for row in zip(*(curves.metrics.get(name, (None,) * len(curves.steps)) for name in names), strict=True):
        total = plus(total, tokens_of(hyperparameters, dict(zip(names, row, strict=True))))
    return total


def step_tokens(hyperparameters: Hyperparameters, curves: Curves) -> TokenCounts | None:
    """Mean tokens of one training step of a phase, validations excluded. None if lengths were not logged."""
    lengths, prompts = series(curves, LENGTH).values, series(curves, PROMPT_LENGTH).values
    if not lengths:
        return None
    means = {LENGTH: fmean(lengths), PROMPT_LENGTH: fmean(prompts) if prompts else 0.0}
    return tokens_of(hyperparameters, means)


def step_lengths(hyperparameters: Hyperparameters, step: TokenCounts) -> dict[str, float]:
    """Mean tokens of an answer (LENGTH) and of a prompt (PROMPT_LENGTH) in a step of that many tokens: what
    `tokens_of` needs to price another configuration."""
    unit = tokens_of(hyperparameters, {LENGTH: 1.0})
    if unit.rollout <= 0:
        return {}
    answer = step.rollout / unit.rollout
    return {LENGTH: answer, PROMPT_LENGTH: max(0.0, step.trained / unit.trained - answer)}


def planned_tokens(
    hyperparameters: Hyperparameters, n_steps: float, *, like: Hyperparameters, step: TokenCounts
) -> TokenCounts:
    """Tokens of `n_steps` steps that are not trained yet, validations excluded, with the answers and prompts
    of a `step` of configuration `like`."""
    one = tokens_of(hyperparameters, step_lengths(like, step))
    return TokenCounts(rollout=n_steps * one.rollout, trained=n_steps * one.trained)


def steps_that_fit(left: float, step: float, validation: float = 0.0, every: int | None = None) -> int:
    """Whole steps that `left` pays for, with a `validation` after each `every` of them and after the last."""
    if step <= 0:
        return 0
    if every is None:
        return int(max(0.0, left - validation) // step)
    whole, rest = divmod(max(0.0, left), every * step + validation)
    return int(whole) * every + min(every - 1, int(max(0.0, rest - validation) // step))


def validations(n_steps: int, test_freq: int, *, at_start: bool = True) -> int:
    """Validations of a phase: before its first step, every `test_freq` steps, and after its last."""
    return at_start + math.ceil(n_steps / min(test_freq, n_steps))


def validates_every_start(config: SearchConfig, *, on_gpus: bool) -> bool:
    """Whether every phase validates before its first step, and not an engine's first one alone."""
    asked = config.phase.validate_start
    return asked == "always" or (asked == "auto" and not on_gpus)


def token_cost(config: SearchConfig) -> TokenCost:
    """Cost of a token in `budget.compute`."""
    return TokenCost(rollout=config.budget.token_cost.rollout, trained=config.budget.token_cost.trained)


def plus(a: TokenCounts, b: TokenCounts) -> TokenCounts:
    """Both together."""
    return TokenCounts(rollout=a.rollout + b.rollout, trained=a.trained + b.trained)


def amount(tokens: TokenCounts | None, cost: TokenCost) -> float:
    """Cost of tokens; 0 for a phase whose engine did not count them."""
    return 0.0 if tokens is None else tokens.rollout * cost.rollout + tokens.trained * cost.trained


def spent(outcomes: Iterable[PhaseResult | PhaseFailure | None], cost: TokenCost) -> float:
    """Total cost of all finished phases, whatever their outcome."""
    return sum(amount(outcome.tokens, cost) for outcome in outcomes if outcome is not None)


def mean_cost(outcomes: Iterable[PhaseResult | PhaseFailure | None]) -> TokenCost | None:
    """Seconds per token over several phases, weighted by their tokens. None if none of them was timed."""
    timed = [(one.cost, one.tokens) for one in outcomes if one is not None and one.cost and one.tokens]
    sampled, trained = (sum(getattr(tokens, kind) for _, tokens in timed) for kind in ("rollout", "trained"))
    if sampled <= 0 or trained <= 0:
        return None
    return TokenCost(
        rollout=sum(cost.rollout * tokens.rollout for cost, tokens in timed) / sampled,
        trained=sum(cost.trained * tokens.trained for cost, tokens in timed) / trained,
    )


class ComputeClock:
    """Counts the compute of one phase, and reports when its limit is reached, to the nearest step.

    `used` is the compute of the earlier attempt whose full checkpoint this one continues from. A validation
    counts `validation_tokens` until one was reported.
    """

    def __init__(
        self,
        limit: ComputeLimit,
        hyperparameters: Hyperparameters,
        used: float = 0.0,
        validation_tokens: float = 0.0,
    ) -> None:
        self._limit, self._hyperparameters = limit, hyperparameters
        self.used = used
        self._validation = amount(TokenCounts(rollout=validation_tokens), limit.cost)

    def take(self, step: int, metrics: Mapping[str, float | None]) -> Next:
        """Count a step that was reported; whether another one follows, and whether that is the last.

        The next step is taken to cost as much as this one, and the last one a validation as well. A step is
        taken if at least half of it fits, so that on average a phase costs its limit.
        """
        cost = self._limit.cost
        validation = amount(TokenCounts(rollout=_number(metrics.get(VAL_TOKENS))), cost)
        own = amount(tokens_of(self._hyperparameters, metrics), cost)
        self.used += own
        self._validation = validation or self._validation
        one = own - validation
        left = self._limit.amount - self.used
        if step and left < one / 2:
            return "end"
        return "last step" if step and left - self._validation < 1.5 * one else "go on"


def measured_cost(steps: Iterable[tuple[Hyperparameters, Mapping[str, float | None]]]) -> TokenCost | None:
    """Seconds per token from the timings of training steps: of generation for tokens sampled, of the rest of
    the step for tokens trained on. None if no step was timed.

    Validations are left out, because their answers cost as much as rollouts.
    """
    sampled = trained = generating = updating = 0.0
    for hyperparameters, metrics in steps:
        whole, generation = metrics.get(STEP_TIME), metrics.get(GENERATION_TIME)
        if whole is None or generation is None or not math.isfinite(whole + generation):
            continue
        found = tokens_of(hyperparameters, {**metrics, VAL_TOKENS: 0.0})
        sampled, trained = sampled + found.rollout, trained + found.trained
        generating, updating = generating + generation, updating + max(0.0, whole - generation)
    if sampled <= 0 or trained <= 0:
        return None
    return TokenCost(rollout=generating / sampled, trained=updating / trained)


def seconds_per_token(
    hyperparameters: Hyperparameters, curves: Curves, step: TokenCounts
) -> TokenCost | None:
    """Seconds per token at which `step` takes as long as the median step of the phase with these curves.
    Tokens sampled and trained on count alike where generation was not timed. None if no step was timed."""
    names = (STEP_TIME, GENERATION_TIME, LENGTH, PROMPT_LENGTH)
    columns = (curves.metrics.get(name, (None,) * len(curves.steps)) for name in names)
    rows = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
    cost = measured_cost((hyperparameters, row) for row in rows) or TokenCost(rollout=1.0, trained=1.0)
    times, whole = series(curves, STEP_TIME).values, amount(step, cost)
    if not times or whole <= 0:
        return None
    each = median(times) / whole
    return TokenCost(rollout=each * cost.rollout, trained=each * cost.trained)


def _number(value: object) -> float:
    """The value if it is a finite number, otherwise 0."""
    if not is_number(value) or not math.isfinite(value):
        return 0.0
    return float(value)
