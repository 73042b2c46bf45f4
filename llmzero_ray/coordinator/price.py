"""Price of a phase before it is trained, as a share of the remaining budget.

Tokens are counted as in compute.py, with answer and prompt lengths of a phase that has ended. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llmzero_ray.config import SearchConfig
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.coordinator.state import SearchState
from llmzero_ray.hyperparameters import diff
from llmzero_ray.hyperparameters.compute import amount, planned_tokens, token_cost, validations
from llmzero_ray.records import Hyperparameters, PhaseFailure, PhaseResult, PhaseSpec, TokenCost, TokenCounts
from llmzero_ray.search import plans_its_runs
from llmzero_ray.utils.text import short_duration

_Limit = tuple[str, float, TokenCost]
"""(name, amount left, cost of a token in the same unit)."""


@dataclass(frozen=True, kw_only=True)
class PhasePrice:
    """Share of the limit of which a phase uses the most."""

    limit: str
    """Name of that limit."""
    share: float
    """Share of what is left. Above 1, the phase does not fit."""


def phase_price(state: SearchState, run: PhaseRun, spec: PhaseSpec) -> PhasePrice | None:
    """Price of a planned phase. None if no phase has been counted yet, or neither compute nor hours are
    limited."""
    for like in _similar(state, run, spec):
        planned = _planned(state, like, run, spec)
        if planned is None:
            continue
        prices = [
            PhasePrice(limit=name, share=amount(planned, cost) / left)
            for name, left, cost in _limits(state, like, run.node)
            if left > 0
        ]
        return max(prices, key=lambda price: price.share, default=None)
    return None


def price_text(state: SearchState, run: PhaseRun, spec: PhaseSpec) -> str:
    """Price of a phase, as far as it is known: `about 1.2 h, 23% of the GPU time that is left`."""
    price = phase_price(state, run, spec)
    parts = [_duration(state, run, spec)]
    if price is not None:
        parts.append(f"{price.share:.0%} of the {price.limit} that is left")
    return ", ".join(filter(None, parts))


def _duration(state: SearchState, run: PhaseRun, spec: PhaseSpec) -> str:
    """`about 1.2 h`. Empty if no similar phase was timed."""
    for like in _similar(state, run, spec):
        tokens = _planned(state, like, run, spec)
        if tokens is not None and like.outcome is not None and like.outcome.cost is not None:
            return f"about {short_duration(amount(tokens, like.outcome.cost))}"
    return ""


def a_step_fits(state: SearchState, on: int | None, config: SearchConfig) -> bool:
    """Whether the compute left under `config` pays for one step like those of node `on`, with its validation.
    True if the price is unknown, and for a method that divides the compute among its runs itself."""
    whole, run = config.budget.compute, None if on is None else state.runs[on]
    if whole is None or run is None or run.spec is None or plans_its_runs(state.search):
        return True
    tokens = _tokens(state, run, run.spec.hyperparameters, 1)
    return amount(tokens, token_cost(config)) <= whole - state.compute


def fresh_start_fits(state: SearchState) -> bool:
    """Whether the budget left pays for a run from the base model as long as the best strategy, at the price
    of the root's steps. True if the price is unknown."""
    best, root = state.best, state.runs.get(0)
    if best is None or best.outcome is None or best.outcome.best_step is None or root is None:
        return True
    tokens = _tokens(state, root, state.planner.root, best.base_step + best.outcome.best_step)
    return tokens is None or all(amount(tokens, cost) <= left for _, left, cost in _limits(state, root, 0))


def _validates_start(state: SearchState, run: PhaseRun, spec: PhaseSpec) -> bool:
    """Whether a planned phase is validated before its first step: because no score of its start is stored, or
    because its slot has to start an engine for it."""
    if state.planner.known_start(spec) is None:
        return True
    earlier = [one for one in state.runs.values() if one.slot == run.slot and one.started and one is not run]
    before = earlier[-1].spec if earlier else None
    if before is None:
        return True
    return not all(map(state.planner.space.is_hot, diff(before.hyperparameters, spec.hyperparameters)))


def _similar(state: SearchState, run: PhaseRun, spec: PhaseSpec) -> Iterator[PhaseRun]:
    """Runs from which the tokens of a phase can be estimated, the most similar first."""
    nodes = (None if spec.resume_from is None else spec.resume_from.node, run.on, 0)
    return (state.runs[node] for node in nodes if node in state.runs)


def _limits(state: SearchState, like: PhaseRun, node: int) -> Iterator[_Limit]:
    budget, compute = state.config.budget, state.planner.compute_limit(node)
    if compute is not None:
        yield "compute", compute.amount, compute.cost
    timed = None if like.outcome is None else like.outcome.cost
    if timed is None:
        return
    if budget.wall_clock_hours is not None:
        left = budget.wall_clock_hours - state.active_time.seconds() / 3600
        yield "wall-clock time", left, _hourly(timed, 1)
    if budget.gpu_hours is not None:
        left = budget.gpu_hours - state.meter.gpu_hours(state.now)
        yield "GPU time", left, _hourly(timed, state.config.slots.n_gpus)


def _hourly(seconds: TokenCost, n_gpus: int) -> TokenCost:
    return TokenCost(rollout=seconds.rollout * n_gpus / 3600, trained=seconds.trained * n_gpus / 3600)


def _planned(state: SearchState, like: PhaseRun, run: PhaseRun, spec: PhaseSpec) -> TokenCounts | None:
    """Tokens of a planned phase, with the answer and prompt lengths of `like`."""
    at_start = _validates_start(state, run, spec)
    return _tokens(state, like, spec.hyperparameters, spec.n_steps, at_start=at_start)


def _tokens(
    state: SearchState,
    like: PhaseRun,
    hyperparameters: Hyperparameters,
    n_steps: int,
    *,
    at_start: bool | None = None,
) -> TokenCounts | None:
    """Tokens of a phase of `n_steps`, with the answer and prompt lengths of `like`. `at_start` is whether it
    is validated before its first step (default: whether every phase is). None if `like` was not counted."""
    spec, outcome = like.spec, like.outcome
    if spec is None or outcome is None:
        return None
    # A phase that is stopped saves its last step, but does not validate it.
    at = {*range(spec.test_freq, outcome.steps_done + 1, spec.test_freq)}
    at |= {one.step for one in outcome.checkpoints if one.val_score is not None}
    one = step_tokens(outcome, len(at))
    if one is None:
        return None
    at_start = state.planner.validates_every_start if at_start is None else at_start
    n_validations = validations(n_steps, state.config.phase.test_freq, at_start=at_start)
    found = planned_tokens(hyperparameters, n_steps, like=spec.hyperparameters, step=one)
    validated = n_validations * (outcome.val_tokens or 0.0)
    return TokenCounts(rollout=found.rollout + validated, trained=found.trained)


def step_tokens(outcome: PhaseResult | PhaseFailure, n_validated: int) -> TokenCounts | None:
    """Mean tokens of one step of a phase, without those of validating `n_validated` steps and the start."""
    if outcome.tokens is None or not outcome.steps_done:
        return None
    at_start = outcome.start_score is not None and outcome.start_from is None
    validated = (n_validated + at_start) * (outcome.val_tokens or 0.0)
    return TokenCounts(
        rollout=max(0.0, outcome.tokens.rollout - validated) / outcome.steps_done,
        trained=outcome.tokens.trained / outcome.steps_done,
    )
