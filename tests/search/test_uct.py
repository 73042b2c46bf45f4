"""The formulas, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from llmzero_ray.search import SearchRules
from llmzero_ray.search.uct import exploration, fair_visits, normalise, q_value, shape


def test_scores_are_placed_between_the_worst_and_the_best_seen() -> None:
    assert [normalise(s, 0.2, 0.6) for s in (0.2, 0.3, 0.6)] == pytest.approx([0, 0.25, 1])


def test_every_score_is_best_while_all_are_equal() -> None:
    assert normalise(0.4, 0.4, 0.4) == 1.0


def test_shaping_keeps_the_ends_and_lowers_the_middle() -> None:
    # (e^(0.5/0.3) - 1) / (e^(1/0.3) - 1) = (5.29449 - 1) / (28.03162 - 1)
    assert shape(0.0, 0.3) == 0.0
    assert shape(1.0, 0.3) == 1.0
    assert shape(0.5, 0.3) == pytest.approx(4.29449 / 27.03162, rel=1e-5)


@pytest.mark.parametrize("temperature", [1e-300, 1e-5, 1e300])
def test_no_temperature_overflows(temperature: float) -> None:
    values = [shape(x, temperature) for x in (0.0, 0.5, 1.0)]
    assert values == sorted(values)
    assert (values[0], values[2]) == (0.0, 1.0)


def test_a_hot_shaping_is_linear() -> None:
    assert shape(0.25, 1e6) == pytest.approx(0.25, abs=1e-6)


def test_q_is_the_validated_share_of_the_value() -> None:
    assert q_value(0.8, v_val=1, v_fail=0, v_early=0, v_total=2, rules=SearchRules()) == pytest.approx(0.4)


def test_without_validated_runs_the_value_counts_nothing() -> None:
    assert q_value(0.8, v_val=0, v_fail=2, v_early=0, v_total=3, rules=SearchRules()) == 0.0


def test_failures_cost_only_beyond_the_forgiven_ones() -> None:
    # 4 failures, 2 forgiven: 0.5 * 2 / 4
    assert q_value(0, v_val=0, v_fail=2, v_early=0, v_total=2, rules=SearchRules()) == 0.0
    assert q_value(0, v_val=0, v_fail=4, v_early=0, v_total=4, rules=SearchRules()) == pytest.approx(-0.25)


def test_early_stopped_runs_cost_their_share() -> None:
    # 2/3 * 0.9 - 0.3 * 1/3
    assert q_value(0.9, v_val=2, v_fail=1, v_early=1, v_total=3, rules=SearchRules()) == pytest.approx(0.5)


def test_q_is_never_clipped() -> None:
    rules = SearchRules(w_f=5, w_e=5, o_f=0)
    assert q_value(0.1, v_val=1, v_fail=1, v_early=1, v_total=2, rules=rules) == pytest.approx(
        0.05 - 2.5 - 2.5
    )


def test_exploration_grows_with_the_parents_visits_and_falls_with_the_childs() -> None:
    assert exploration(8, 2, 1.414) == pytest.approx(1.414 * math.sqrt(math.log(8) / 2))


def test_inside_the_logarithm_visits_count_as_at_least_one() -> None:
    assert exploration(0, 0.5, 1.414) == 0.0


def test_a_new_child_gets_its_fair_share_of_the_parents_visits() -> None:
    assert fair_visits(6, 2) == 2.0
    assert fair_visits(6, 0) == 6.0
