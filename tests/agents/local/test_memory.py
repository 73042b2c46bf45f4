"""Steps that grow after success, and turn round with half their size after failure."""

from __future__ import annotations

import math

import pytest

from llmzero_ray import hyperparameters as hp
from llmzero_ray.agents.evidence import Attempt, ScoreGain
from llmzero_ray.agents.lessons import Lesson
from llmzero_ray.agents.local.levers import LEVERS, Lever, live_levers
from llmzero_ray.agents.local.memory import Step, steps, transitions
from llmzero_ray.hyperparameters.table import CLIP_HIGH, KL_LOSS_COEF, LR, TEMPERATURE, WARMUP_RATIO
from llmzero_ray.records import ResumeFrom
from tests.agents import curves as c

RATE: Lever = next(lever for lever in LEVERS if lever.key == LR)
FIRST = math.log(2.0)


def attempt(node: int, gain: float | None, *, at: int = 0, failed: bool = False, **changes: float) -> Attempt:
    return Attempt(
        node=node,
        source=ResumeFrom(node=at, step=10),
        base=c.TINY,
        full=hp.complete(c.TINY, changes),
        gain=None if gain is None else ScoreGain(value=gain, rows_error=0.03, runs_error=0.04),
        failed=failed,
    )


def after(*attempts: Attempt, lessons: tuple[Lesson, ...] = ()) -> dict[str, Step]:
    levers = live_levers(c.TINY)
    return steps(levers, transitions(levers, attempts, lessons))


def test_levers_without_effect_or_without_a_value_are_left_out() -> None:
    def live(**changes: object) -> set[str]:
        return {lever.key for lever in live_levers(hp.complete(c.TINY, changes))}

    assert CLIP_HIGH not in live()  # one update per step clips nothing
    assert CLIP_HIGH in live(mini_batch_size=8)
    assert KL_LOSS_COEF in live()
    assert KL_LOSS_COEF not in live(use_kl_loss=False)
    assert LR not in live(lr=0)
    assert WARMUP_RATIO not in live(lr_warmup_steps=4)


def test_a_step_grows_after_a_gain_in_its_direction() -> None:
    rate = after(attempt(1, 0.1, lr=5e-4))[LR]
    assert (rate.direction, rate.size) == (-1, pytest.approx(FIRST * 1.5))
    assert rate.last == "node 1 moved it down and gained"


def test_a_step_turns_round_with_half_its_size_after_a_loss() -> None:
    rate = after(attempt(1, -0.1, lr=2e-3))[LR]
    assert (rate.direction, rate.size) == (-1, pytest.approx(FIRST / 2))


def test_what_does_not_stand_out_from_its_error_teaches_nothing() -> None:
    assert after(attempt(1, 0.02, lr=5e-4))[LR] == Step(size=FIRST)
    assert after(attempt(1, None, lr=5e-4))[LR] == Step(size=FIRST)


def test_a_training_that_broke_is_a_loss() -> None:
    assert after(attempt(1, None, failed=True, lr=4e-3))[LR].direction == -1


def test_a_gain_counts_over_what_else_was_tried_from_the_same_checkpoint() -> None:
    unchanged = attempt(1, 0.2)
    assert after(unchanged, attempt(2, 0.1, lr=2e-3))[LR].direction == -1
    assert after(attempt(1, 0.2, at=5), attempt(2, 0.1, lr=2e-3))[LR].direction == 1


def test_several_changes_share_the_credit_by_their_distance() -> None:
    found = after(attempt(1, 0.1, lr=5e-4, temperature=0.85))
    # Both moved by one first step: half of the growth each.
    assert found[LR].size == pytest.approx(FIRST * 1.5**0.5)
    assert found[TEMPERATURE].size == pytest.approx(0.15 * 1.5**0.5)
    assert (found[LR].direction, found[TEMPERATURE].direction) == (-1, -1)


def test_steps_stay_between_a_quarter_and_three_times_the_first_one() -> None:
    gains = [attempt(i, 0.3, at=i, lr=5e-4) for i in range(1, 9)]
    losses = [attempt(i, -0.3, at=i, lr=5e-4) for i in range(1, 9)]
    assert after(*gains)[LR].size == pytest.approx(3 * FIRST)
    assert after(*losses)[LR].size == pytest.approx(FIRST / 4)


def test_lessons_of_earlier_searches_come_first_and_own_nodes_correct_them() -> None:
    lesson = Lesson(
        search="before", node=4, changes={LR: (1e-3, 2e-3)}, start_step=10, n_steps=10, start=0.5, gain=0.1,
        error=0.03,
    )  # fmt: skip
    assert after(lessons=(lesson,))[LR].direction == 1
    assert after(attempt(1, -0.1, lr=2e-3), lessons=(lesson,))[LR].direction == -1
    assert (
        lesson.line()
        == "node 4 of before, from step 10 at 0.500: lr 0.001 -> 0.002, 10 steps: +0.100 ± 0.030"
    )
