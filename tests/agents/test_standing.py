"""A running phase against the incumbent: item by item where both are known, at equal global step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest

from llmzero_ray.dynamics.incumbent import scores_along, standings
from llmzero_ray.records import ItemOutcome
from llmzero_ray.records.metrics import Curves
from tests.agents import curves as c

ROOT = c.node(Curves(steps=(5, 10), val_steps=(5, 10), val_scores=(0.25, 0.5), start_score=0.0), node=0)
BEST = c.node(Curves(steps=(5,), base_step=10, val_steps=(5,), val_scores=(0.75,), start_score=0.5), node=1)
CHAIN = (ROOT, BEST)


def right(n: int, of: int = 4) -> tuple[ItemOutcome, ...]:
    """The first n of some items answered rightly."""
    return tuple(
        ItemOutcome(index=i, data_source="toy", score=float(i < n), acc=float(i < n)) for i in range(of)
    )


ITEMS: dict[int, Mapping[int, Sequence[ItemOutcome]]] = {
    0: {0: right(0), 5: right(1), 10: right(2)},
    1: {0: right(2), 5: right(3)},
    2: {0: right(2), 5: right(1)},
}


def running(*scores: float, base: int = 10, start: float | None = 0.5) -> Curves:
    steps = tuple(5 * (i + 1) for i in range(len(scores)))
    return Curves(steps=steps, base_step=base, val_steps=steps, val_scores=scores, start_score=start)


def test_a_path_begins_at_the_start_of_its_first_phase_and_is_by_global_step() -> None:
    assert scores_along(CHAIN) == ((0, 0.0), (5, 0.25), (10, 0.5), (15, 0.75))
    assert scores_along(()) == ()


def test_differences_are_item_by_item_at_the_start_and_at_each_validation() -> None:
    start, now = standings(c.node(running(0.25), node=2), CHAIN, ITEMS.__getitem__, n_val=4)
    assert start.at_same_step is not None and now.at_same_step is not None and now.to_best is not None
    assert (start.global_step, start.score, start.at_same_step.gain) == (10, 0.5, 0.0)
    assert start.at_same_step.standard_error == 0.0
    assert now.at_same_step == now.to_best
    assert (now.to_best.paired, now.to_best.gain) == (True, -0.5)
    # Differences 0, -1, -1, 0: deviation sqrt(1/3), over the root of 4.
    assert now.to_best.standard_error == pytest.approx(math.sqrt(1 / 3) / 2)


def test_beyond_the_incumbents_path_there_is_no_score_at_the_same_step() -> None:
    found = standings(c.node(running(0.25, 0.5), node=2), CHAIN, lambda n: ITEMS.get(n, {}), n_val=4)
    assert [one.global_step for one in found] == [10, 15, 20]
    assert found[-1].at_same_step is None
    assert found[-1].to_best is not None and not found[-1].to_best.paired  # no outcomes at step 10


def test_between_two_validations_of_the_incumbent_the_earlier_one_counts() -> None:
    shown = Curves(steps=(3,), base_step=10, val_steps=(3,), val_scores=(0.5,))
    (found,) = standings(c.node(shown, node=3), CHAIN, lambda n: ITEMS.get(n, {}), n_val=4)
    assert found.at_same_step is not None
    assert found.at_same_step.gain == 0.0


def test_a_score_that_is_no_accuracy_is_not_replaced_by_one() -> None:
    weighted = c.node(running(0.3), node=2)  # its items give .25
    found = standings(weighted, CHAIN, ITEMS.__getitem__, n_val=4)[-1]
    assert found.to_best is not None
    assert not found.to_best.paired
    assert found.to_best.gain == pytest.approx(-0.45)


def test_without_outcomes_both_count_as_samples_of_their_own() -> None:
    now = standings(c.node(running(0.25), node=2), CHAIN, lambda _: {}, n_val=4)[-1]
    assert now.to_best is not None
    assert not now.to_best.paired
    assert now.to_best.standard_error == pytest.approx(math.sqrt(2 * 0.1875 / 4))


def test_without_an_incumbent_that_has_a_score_there_is_nothing_to_compare_with() -> None:
    (start, now) = standings(c.node(running(0.25), node=2), (), lambda _: {}, n_val=4)
    assert (start.to_best, now.to_best, now.at_same_step) == (None, None, None)
