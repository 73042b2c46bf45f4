"""Moves made concrete: bounds around the root, numbers people would write, couplings kept."""

from __future__ import annotations

from typing import Any

import pytest

from llmzero_ray import hyperparameters as hp
from llmzero_ray.agents.expert.apply_moves import ProposalBase, apply_moves, bounds, rounded_value, signature
from llmzero_ray.agents.expert.moves import CATALOGUE, UNCHANGED, Move, MoveSet, suited
from llmzero_ray.hyperparameters.verl_keys import (
    ADV_NORM,
    CLIP_HIGH,
    CLIP_LOW,
    GRAD_CLIP,
    KL_LOSS_COEF,
    LR,
    MAX_RESPONSE,
    MINI_BATCH,
    ROLLOUT_N,
    TEMPERATURE,
    TRAIN_BATCH,
    WARMUP_RATIO,
    WEIGHT_DECAY,
)
from tests.agents import curves as c

ROOT = c.PRACTITIONER
LIMITS = hp.Limits(max_model_len=9216, n_train=5000)


def base(**changes: Any) -> ProposalBase:
    return ProposalBase(hyperparameters=hp.complete(ROOT, changes), default=ROOT, limits=LIMITS)


def moved(on: ProposalBase, *moves: Move, strength: float = 1.0) -> dict[str, Any]:
    """What becomes of moves."""
    found = apply_moves(on, MoveSet(name="t", why="w", moves=moves), strength=strength)
    return {change.key: change.new for change in found.changes}


def move(key: str, factor: float = 1.0, shift: float = 0.0) -> Move:
    return Move(key=key, factor=factor, shift=shift, reason="because")


@pytest.mark.parametrize(
    ("key", "low", "high"),
    [
        (LR, 5e-5 / 30, 2.5e-4),
        (KL_LOSS_COEF, 5e-5, 0.05),
        (TEMPERATURE, 0.6, 1.3),
        (CLIP_HIGH, 0.15, 0.5),
        (CLIP_LOW, 0.1, 0.3),
        (GRAD_CLIP, 0.1, 4.0),
        (WEIGHT_DECAY, 0.0, 0.2),
        (ROLLOUT_N, 2, 16),
        (TRAIN_BATCH, 96, 512),
        (MAX_RESPONSE, 1, 9216 - 1024),
    ],
)
def test_the_experts_bounds_lie_around_the_root(key: str, low: float, high: float) -> None:
    assert bounds(base(), key) == (pytest.approx(low), pytest.approx(high))
    assert moved(base(), move(key, factor=1e6)).get(key, high) == pytest.approx(high, rel=0.02)


def test_bounds_follow_what_the_root_trains_with_and_what_the_task_has() -> None:
    small = ProposalBase(
        hyperparameters=c.TINY, default=c.TINY, limits=hp.Limits(max_response_length=40, n_train=20)
    )
    assert bounds(small, LR)[1] == pytest.approx(5e-3)
    assert bounds(small, TRAIN_BATCH) == (12, 20)
    assert bounds(small, MAX_RESPONSE)[1] == 40
    few = hp.complete(c.TINY, {"n": 2})
    assert bounds(ProposalBase(hyperparameters=few, default=few, limits=hp.Limits()), ROLLOUT_N)[1] == 8
    strong = hp.complete(c.TINY, {"kl": 0.01})
    assert bounds(ProposalBase(hyperparameters=strong, default=strong, limits=hp.Limits()), KL_LOSS_COEF)[
        1
    ] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("key", "value", "up", "down"),
    [
        (ROLLOUT_N, 6.5, 8, 6),
        (ROLLOUT_N, 8.0, 8, 8),
        (ROLLOUT_N, 8.5, 12, 8),
        (TRAIN_BATCH, 7.5, 8, 7),
        (TRAIN_BATCH, 8.0, 8, 8),
        (TRAIN_BATCH, 10.0, 12, 8),
        (TRAIN_BATCH, 64.0, 64, 64),
        (TRAIN_BATCH, 65.0, 72, 64),
        (MAX_RESPONSE, 20.0, 24, 16),
        (MAX_RESPONSE, 256.0, 256, 256),
        (MAX_RESPONSE, 257.0, 320, 256),
        (MAX_RESPONSE, 2048.0, 2048, 2048),
        (MAX_RESPONSE, 2049.0, 2304, 2048),
        (TEMPERATURE, 0.8499, 0.85, 0.85),
        (CLIP_HIGH, 0.2549, 0.25, 0.25),
        (LR, 1.6666e-5, 1.7e-5, 1.7e-5),
        (WEIGHT_DECAY, 0.0, 0.0, 0.0),
    ],
)
def test_values_are_rounded_to_what_people_would_write(
    key: str, value: float, up: float, down: float
) -> None:
    assert rounded_value(key, value, upwards=True) == up
    assert rounded_value(key, value, upwards=False) == down


def test_factors_and_shifts_apply_to_what_was_trained_with_and_scale_with_strength() -> None:
    assert moved(base(lr=1e-5), move(LR, 2.0)) == {LR: 2e-5}
    assert moved(base(lr=1e-5), move(LR, 2.0), strength=2.0) == {LR: 4e-5}
    assert moved(base(temperature=0.9), move(TEMPERATURE, shift=-0.1)) == {TEMPERATURE: 0.8}
    assert moved(base(), move(TEMPERATURE, shift=-0.1), strength=1.5) == {TEMPERATURE: 0.85}


def test_a_value_outside_the_bounds_may_come_back_but_goes_no_further() -> None:
    hot = base(temperature=1.8)
    assert moved(hot, move(TEMPERATURE, shift=0.1)) == {}
    assert moved(hot, move(TEMPERATURE, shift=-0.1)) == {TEMPERATURE: 1.7}


def test_capacity_never_shrinks_whatever_a_move_says() -> None:
    shrink = MoveSet(name="t", why="w", moves=(move(ROLLOUT_N, 0.5), move(MAX_RESPONSE, 0.5)))
    full = apply_moves(base(), shrink).full
    assert int(str(full[ROLLOUT_N])) >= 8
    assert full[MAX_RESPONSE] == 6144


def test_a_value_of_zero_starts_from_the_roots_when_it_is_to_grow() -> None:
    assert moved(base(lr=0), move(LR, 2.0)) == {LR: 5e-5}
    assert moved(base(lr=0), move(LR, 0.5)) == {}
    still = hp.complete(ROOT, {"lr": 0})
    assert moved(ProposalBase(hyperparameters=still, default=still, limits=LIMITS), move(LR, 2.0)) == {
        LR: 5e-5
    }


def test_switches_are_set_once() -> None:
    switch = Move(key=ADV_NORM, to=True, reason="because")
    assert moved(base(), switch) == {ADV_NORM: True}
    assert moved(base(adv_norm=True), switch) == {}


def test_a_plan_holds_the_moves_of_its_set_and_no_others() -> None:
    one = MoveSet(name="t", why="w", moves=(move(LR, 2.0),))
    assert [change.key for change in apply_moves(base(), one).changes] == [LR]
    assert apply_moves(base(), one, without=[LR]).changes == ()
    assert apply_moves(base(), UNCHANGED).full == ROOT
    full = moved(
        base(), move(LR, 2), move(KL_LOSS_COEF, 2), move(TEMPERATURE, shift=0.1), move(GRAD_CLIP, 0.5),
        move(WEIGHT_DECAY, 2), move(ROLLOUT_N, 1.5),
    )  # fmt: skip
    assert list(full) == [LR, KL_LOSS_COEF, TEMPERATURE, GRAD_CLIP, WEIGHT_DECAY, ROLLOUT_N]


def test_a_warm_up_by_ratio_is_left_out_where_steps_decide() -> None:
    warm = Move(key=WARMUP_RATIO, to=0.3, reason="because")
    assert moved(base(), warm) == {WARMUP_RATIO: 0.3}
    assert moved(base(lr_warmup_steps=4), warm) == {}


def test_more_updates_per_step_halve_the_mini_batch() -> None:
    assert moved(base(), move(MINI_BATCH, 0.5)) == {MINI_BATCH: 32}
    assert signature(ROOT, hp.complete(ROOT, {MINI_BATCH: 32})) == {(MINI_BATCH, "-")}


def test_a_move_that_breaks_a_coupling_is_left_out() -> None:
    # Two prompts per update and eight GPUs: eight rollouts divide, twelve with one prompt would not.
    base = hp.complete(ROOT, {"batch": 2, "mini_batch_size": 2, "n": 8}, n_gpus=16)
    on = ProposalBase(hyperparameters=base, default=ROOT, limits=LIMITS, n_gpus=16)
    assert ROLLOUT_N not in moved(on, move(ROLLOUT_N, 1.5))
    assert moved(on, move(LR, 2.0)) == {LR: 1e-4}


def test_a_signature_holds_directions_and_leaves_out_what_only_follows() -> None:
    new = hp.complete(ROOT, {"lr": 1e-4, "batch": 96, "adv_norm": True})
    assert new[MINI_BATCH] != ROOT[MINI_BATCH]
    assert signature(ROOT, new) == {(LR, "+"), (TRAIN_BATCH, "-"), (ADV_NORM, "True")}


@pytest.mark.parametrize("kind", CATALOGUE)
def test_the_readings_of_a_finding_differ_from_each_other(kind: Any) -> None:
    found = [signature(ROOT, apply_moves(base(), one).full) for one in CATALOGUE[kind]]
    assert len(found) >= 2
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    "move_set", {one.name: one for sets in CATALOGUE.values() for one in sets}.values(), ids=lambda t: t.name
)
def test_every_move_of_a_set_changes_something_and_says_why(move_set: MoveSet) -> None:
    found = apply_moves(base(), move_set)
    assert {change.key for change in found.changes} == {one.key for one in move_set.moves}
    assert move_set.why.endswith(".")
    assert all(change.reason for change in found.changes)


@pytest.mark.parametrize(
    ("sampled", "shifts"),
    [(0.3, {-0.2}), (0.7, {-0.1, 0.1}), (0.78, {0.1})],
)
def test_the_temperature_follows_the_gap_between_greedy_and_sampled_answers(
    sampled: float, shifts: set[float]
) -> None:
    both = MoveSet(name="t", why="w", moves=(move(TEMPERATURE, shift=0.1), move(TEMPERATURE, shift=-0.1)))
    assert {one.shift for one in suited(both, 0.8, sampled).moves} == shifts
    assert suited(both, None, sampled) == both
