"""Two real steps of each algorithm that `root.overrides` may choose, warm after the first where it is hot."""

from __future__ import annotations

import math
from typing import Any

import pytest

from llmzero_ray import hyperparameters as hp
from llmzero_ray.records import PhaseResult
from tests.engines.test_algorithms import ALGORITHMS
from tests.engines.verl.conftest import Lab

pytestmark = [pytest.mark.verl, pytest.mark.slow, pytest.mark.long]


def spelt(given: dict[str, Any]) -> dict[str, Any]:
    return {hp.canonical(key).replace(".", "__"): value for key, value in given.items()}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_steps_are_trained(lab: Lab, name: str) -> None:
    given, _ = ALGORITHMS[name]
    spec = lab.spec(n_steps=2, **spelt(given))
    outcome, points = lab.run(spec)
    assert isinstance(outcome, PhaseResult), outcome
    assert [point.step for point in points] == [0, 1, 2]
    assert all(math.isfinite(point.metrics["actor/pg_loss"]) for point in points[1:])
    assert points[-1].metrics["actor/grad_norm"] > 0
    if name == "RLOO":  # hot: the engine that trained Dr. GRPO goes on
        assert outcome.warm


def test_the_estimator_that_acts_is_the_one_that_was_asked_for(lab: Lab) -> None:
    def largest(name: str) -> float:
        asked = spelt({"adv_estimator": name, "adv_norm": False})
        _, points = lab.run(lab.spec(n_steps=1, seed=3, **asked))
        return float(points[-1].metrics["critic/advantages/max"])

    # Of the same 4 rollouts of each prompt: the mean of the others in place of the mean of all.
    assert largest("rloo") == pytest.approx(largest("grpo") * 4 / 3, rel=1e-4)
