"""Compute in one unit: tokens worked out by hand, limits to the nearest step, costs from timings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmzero_ray.hyperparameters.compute import (
    ComputeClock,
    Next,
    amount,
    mean_cost,
    measured_cost,
    plus,
    seconds_per_token,
    spent,
    tokens_of,
)
from llmzero_ray.hyperparameters.verl_keys import PPO_EPOCHS, ROLLOUT_N, TRAIN_BATCH
from llmzero_ray.records import ComputeLimit, PhaseFailure, TokenCost, TokenCounts
from llmzero_ray.records.metrics import LENGTH, PROMPT_LENGTH, VAL_TOKENS, Curves

RECIPE = {TRAIN_BATCH: 4, ROLLOUT_N: 2}
STEP = {LENGTH: 10.0, PROMPT_LENGTH: 5.0}


def test_sampled_tokens_are_answers_and_trained_ones_have_prompts_and_epochs() -> None:
    assert tokens_of(RECIPE, STEP) == TokenCounts(rollout=80.0, trained=120.0)
    assert tokens_of({**RECIPE, PPO_EPOCHS: 2}, STEP).trained == 240.0
    assert tokens_of(RECIPE, {VAL_TOKENS: 33.0}) == TokenCounts(rollout=33.0, trained=0.0)
    assert tokens_of(RECIPE, {LENGTH: float("nan")}) == TokenCounts()


def test_amounts_are_tokens_at_their_cost_and_failed_phases_count() -> None:
    cost = TokenCost(rollout=0.5, trained=0.25)
    counts = plus(TokenCounts(rollout=80.0), TokenCounts(trained=120.0))
    assert amount(counts, cost) == 70.0
    failed = PhaseFailure(node=1, failure_class="nan", cause="", log_tail="", tokens=counts)
    old = PhaseFailure(node=2, failure_class="nan", cause="", log_tail="")
    assert spent([failed, None, old], cost) == 70.0


def steps_taken(limit: float, *, validation: float = 0.0, each: Any = STEP) -> tuple[int, Next]:
    """How many steps a phase takes, and what it was told last; its step 0 validates."""
    clock = ComputeClock(ComputeLimit(amount=limit), RECIPE)
    told = clock.take(0, {VAL_TOKENS: validation})
    for step in range(1, 100):
        if told == "last step":
            return step, told
        told = clock.take(step, each)
        if told == "end":
            return step, told
    raise AssertionError("it goes on for ever")


@pytest.mark.parametrize(("limit", "steps"), [(1000.0, 5), (1099.0, 5), (1101.0, 6), (899.0, 4)])
def test_a_phase_takes_the_steps_that_bring_it_nearest_to_its_limit(limit: float, steps: int) -> None:
    """A step costs 200 tokens."""
    assert steps_taken(limit) == (steps, "last step")


def test_the_validations_at_the_begin_and_the_end_are_part_of_the_limit() -> None:
    assert steps_taken(1000.0, validation=200.0) == (3, "last step")


def test_a_phase_that_did_not_validate_its_start_reserves_what_other_phases_validations_sampled() -> None:
    clock = ComputeClock(ComputeLimit(amount=1000.0), RECIPE, validation_tokens=200.0)
    told = [clock.take(0, {}), *(clock.take(step, STEP) for step in (1, 2, 3))]
    assert told == ["go on", "go on", "go on", "last step"]


def test_a_validation_that_was_reported_counts_instead_of_those_of_other_phases() -> None:
    clock = ComputeClock(ComputeLimit(amount=1000.0), RECIPE, validation_tokens=700.0)
    told = [clock.take(0, {VAL_TOKENS: 200.0}), *(clock.take(step, STEP) for step in (1, 2))]
    assert told == ["go on", "go on", "last step"]


def test_a_phase_whose_limit_one_step_passes_ends_after_it() -> None:
    assert steps_taken(100.0) == (1, "end")


def test_a_phase_that_goes_on_from_a_full_checkpoint_counts_what_was_used() -> None:
    clock = ComputeClock(ComputeLimit(amount=1000.0), RECIPE, used=600.0)
    assert clock.take(4, STEP) == "last step"
    assert clock.used == 800.0


def test_costs_are_seconds_of_generation_and_of_the_rest_of_timed_steps() -> None:
    timed = {**STEP, "timing_s/gen": 4.0, "timing_s/step": 7.0, VAL_TOKENS: 999.0}
    cost = measured_cost([(RECIPE, timed), (RECIPE, STEP), (RECIPE, timed)])
    assert cost == TokenCost(rollout=8 / 160, trained=6 / 240)
    assert measured_cost([(RECIPE, STEP)]) is None


def test_a_planned_step_takes_the_median_seconds_of_the_shown_phases_steps() -> None:
    """3 s of a step sample its 80 tokens, 4 s train on its 120; a validation slowed one step down."""
    held: dict[str, tuple[float | None, ...]] = {LENGTH: (10.0,) * 3, PROMPT_LENGTH: (5.0,) * 3}
    untimed = Curves(steps=(1, 2, 3), metrics=held)
    whole = Curves(steps=(1, 2, 3), metrics={**held, "timing_s/step": (7.0, 7.0, 19.0)})
    both = replace(whole, metrics={**whole.metrics, "timing_s/gen": (3.0, 3.0, None)})
    as_it_is, two_epochs = tokens_of(RECIPE, STEP), tokens_of({**RECIPE, PPO_EPOCHS: 2}, STEP)
    assert seconds_per_token(RECIPE, untimed, as_it_is) is None
    for curves, longer in ((whole, 7.0 * 320 / 200), (both, 11.0)):
        cost = seconds_per_token(RECIPE, curves, as_it_is)
        assert cost is not None
        assert amount(as_it_is, cost) == pytest.approx(7.0)
        assert amount(two_epochs, cost) == pytest.approx(longer)


def test_the_cost_of_several_phases_is_weighted_with_the_tokens_of_those_that_were_timed() -> None:
    def phase(cost: TokenCost | None, rollout: float, trained: float) -> PhaseFailure:
        tokens = TokenCounts(rollout=rollout, trained=trained)
        return PhaseFailure(node=0, failure_class="nan", cause="", log_tail="", tokens=tokens, cost=cost)

    timed = [
        phase(TokenCost(rollout=1.0, trained=4.0), 30.0, 10.0),
        phase(TokenCost(rollout=2.0, trained=8.0), 10.0, 30.0),
    ]
    untimed = phase(None, 1e6, 1e6)
    assert mean_cost([*timed, untimed, None]) == TokenCost(rollout=1.25, trained=7.0)
    assert mean_cost([untimed]) is None
    assert mean_cost([phase(TokenCost(), 0.0, 0.0)]) is None
