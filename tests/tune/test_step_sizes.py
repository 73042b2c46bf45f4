"""Steps that grow after success, and turn round with half their size after failure."""

from __future__ import annotations

import math

import pytest

from llmzero_ray.agents.expert.levers import Lever
from llmzero_ray.tune.any_space import Step, Transition, steps

FIRST = math.log(2.0)
LEVERS = (Lever(key="lr", step=FIRST), Lever(key="temperature", step=0.15, log=False))


def phase(node: int, z: float, **moved: float) -> Transition:
    """A phase that moved these numbers and gained `z` errors more than others from its start."""
    return Transition(name=f"node {node}", moved=moved, z=z)


def after(*history: Transition) -> dict[str, Step]:
    return steps(LEVERS, history)


def test_a_step_grows_after_a_gain_in_its_direction() -> None:
    rate = after(phase(1, 2.0, lr=-FIRST))["lr"]
    assert (rate.direction, rate.size) == (-1, pytest.approx(FIRST * 1.5))
    assert rate.last == "node 1 moved it down and gained"


def test_a_step_turns_round_with_half_its_size_after_a_loss() -> None:
    rate = after(phase(1, -2.0, lr=FIRST))["lr"]
    assert (rate.direction, rate.size) == (-1, pytest.approx(FIRST / 2))


def test_what_does_not_stand_out_from_its_error_teaches_nothing() -> None:
    assert after(phase(1, 0.4, lr=-FIRST))["lr"] == Step(size=FIRST)


def test_several_changes_share_the_credit_by_their_distance() -> None:
    found = after(phase(1, 2.0, lr=-FIRST, temperature=-0.15))
    # Both moved by one first step: half of the growth each.
    assert found["lr"].size == pytest.approx(FIRST * 1.5**0.5)
    assert found["temperature"].size == pytest.approx(0.15 * 1.5**0.5)
    assert (found["lr"].direction, found["temperature"].direction) == (-1, -1)


def test_steps_stay_between_a_quarter_and_three_times_the_first_one() -> None:
    gains = [phase(i, 3.0, lr=-FIRST) for i in range(1, 9)]
    losses = [phase(i, -3.0, lr=-FIRST) for i in range(1, 9)]
    assert after(*gains)["lr"].size == pytest.approx(3 * FIRST)
    assert after(*losses)["lr"].size == pytest.approx(FIRST / 4)
