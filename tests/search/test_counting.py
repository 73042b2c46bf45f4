"""Visits, results, scores and the best node."""

from __future__ import annotations

import pytest

from llmzero_ray.errors import SearchError
from tests.search.builders import add, chosen, counters, grow


def test_a_finished_run_is_one_visit_of_its_node_and_of_every_ancestor() -> None:
    search = grow(("root", None, "ok", 0.1), ("evolve", 0, "ok", 0.2), ("evolve", 1, "ok", 0.3))
    assert [search.node(n).visits for n in (0, 1, 2)] == [3, 2, 1]


def test_each_result_has_its_class_and_an_early_stop_counts_beside_it() -> None:
    search = grow(
        ("root", None, "ok", 0.1),
        ("evolve", 0, "failed", 0.9),
        ("evolve", 0, "early", 0.2),
        ("evolve", 2, "early", None),
        ("evolve", 2, "ok", None),
    )
    assert counters(search, 0) == {"visits": 5, "v_val": 2, "v_fail": 1, "v_early": 2, "v_unval": 2}
    assert counters(search, 2) == {"visits": 3, "v_val": 1, "v_fail": 0, "v_early": 2, "v_unval": 2}


def test_a_running_run_is_in_flight_and_no_visit_yet() -> None:
    search = grow(("root", None, "ok", 0.1), ("evolve", 0, "ok", 0.2), ("evolve", 1, "running", None))
    assert [(n.visits, n.in_flight) for n in search.nodes.values()] == [(2, 1), (1, 1), (0, 1)]


def test_a_failed_runs_score_enters_the_range_and_can_be_best_but_is_in_no_mean() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "failed", 0.9), rho_min=0)
    assert (search.ask().seen.s_min, search.ask().seen.s_max) == (0.5, 0.9)
    assert search.best is not None
    assert search.best.id == 1
    level = search.ask().seen.descent[0]
    assert level.q_prior == 0.0
    assert level.children[0].q == 0.0


def test_a_failed_runs_score_is_its_own_prior() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "failed", 0.9), max_evolve_children=1)
    assert chosen(search) == ("debug", 1)
    assert search.ask().seen.descent[1].q_prior == 1.0


def test_a_node_without_score_has_prior_zero() -> None:
    search = grow(("root", None, "ok", None), ("evolve", 0, "ok", 0.5))
    assert search.ask().seen.descent[0].q_prior == 0.0


def test_the_best_node_is_the_earliest_of_equals() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "running", None), ("evolve", 0, "ok", 0.7))
    assert search.best is not None
    assert search.best.id == 2
    search.tell(1, "completed", 0.7)
    assert search.best.id == 1


def test_the_earliest_is_the_first_created_whatever_its_id() -> None:
    search = grow(("root", None, "ok", 0.5))
    for node_id in (9, 4):
        search.create("evolve", 0, node_id)
        search.tell(node_id, "completed", 0.8)
    assert search.best is not None
    assert search.best.id == 9


def test_without_scores_there_is_no_best_and_no_range() -> None:
    search = grow(("root", None, "ok", None))
    assert search.best is None
    assert (search.ask().seen.s_min, search.ask().seen.s_max) == (None, None)
    assert search.ask().on == 0


def test_the_mean_is_taken_over_validated_runs_of_the_subtree_and_shaped_afterwards() -> None:
    # Subtree of 1 holds 0.2, 0.8 (validated), one failed with 1.0, one without score; scale 0 to 1.
    search = grow(
        ("root", None, "ok", 0.0),
        ("evolve", 0, "ok", 0.2),
        ("evolve", 1, "ok", 0.8),
        ("evolve", 1, "failed", 1.0),
        ("evolve", 2, "ok", None),
        rho_min=0,
    )
    f_half = 4.29449 / 27.03162
    assert search.ask().seen.descent[0].children[0].q == pytest.approx(2 / 4 * f_half, rel=1e-5)


def test_the_mean_of_shaped_scores_is_an_option() -> None:
    runs = (("root", None, "ok", 0.0), ("evolve", 0, "ok", 0.5), ("evolve", 1, "ok", 1.0))
    f_half = 4.29449 / 27.03162
    search = grow(*runs, q_aggregate="mean_of_f")
    assert search.ask().seen.descent[0].children[0].q == pytest.approx((f_half + 1) / 2, rel=1e-5)


def test_shaped_means_follow_the_scale_and_additions_without_a_new_extreme() -> None:
    search = grow(("root", None, "ok", 0.0), ("evolve", 0, "ok", 0.5), q_aggregate="mean_of_f", rho_min=0)
    assert search.ask().seen.descent[0].children[0].q == 1.0
    add(search, "evolve", 1, "ok", 1.0)
    search.ask()
    add(search, "evolve", 1, "ok", 0.5)
    f_half = 4.29449 / 27.03162
    assert search.ask().seen.descent[0].children[0].q == pytest.approx((2 * f_half + 1) / 3, rel=1e-5)
    add(search, "evolve", 1, "failed", 0.5)
    assert search.ask().seen.descent[0].children[0].q == pytest.approx((2 * f_half + 1) / 4, rel=1e-5)
    add(search, "evolve", 1, "failed", 1.5)  # a new scale: 0.5 is a third of it, 1.0 two thirds
    f_third, f_two_thirds = 2.037732 / 27.03162, 8.227781 / 27.03162
    assert search.ask().seen.descent[0].children[0].q == pytest.approx(
        (2 * f_third + f_two_thirds) / 5, rel=1e-5
    )


def test_large_scores_with_a_small_spread_keep_their_digits() -> None:
    big = 1e9
    search = grow(("root", None, "ok", big), ("evolve", 0, "ok", big + 1e-3), ("evolve", 1, "ok", big + 5e-4))
    spread = (big + 1e-3) - big
    middle = ((big + 5e-4) - big) / spread
    (child,) = search.ask().seen.descent[0].children
    x = (1 + middle) / 2
    shaped = (2.718281828459045 ** (x / 0.3) - 1) / (2.718281828459045 ** (1 / 0.3) - 1)
    assert child.q == pytest.approx(shaped, rel=1e-12)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), 1e101, True, "0.5", 10**400])
def test_a_score_that_is_no_finite_number_is_refused_and_changes_nothing(score: object) -> None:
    search = grow(("root", None, "running", None))
    with pytest.raises(SearchError, match="score is"):
        search.tell(0, "completed", score)  # type: ignore[arg-type]
    assert search.running == (0,)
    search.tell(0, "completed", 1)
    assert search.node(0).score == 1.0


def test_only_a_running_node_can_finish_and_only_with_a_known_status() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "running", None))
    with pytest.raises(SearchError, match="node 0 is already completed"):
        search.tell(0, "failed")
    with pytest.raises(SearchError, match="status is 'running'"):
        search.tell(1, "running")  # type: ignore[arg-type]
    with pytest.raises(SearchError, match="node 7 is unknown"):
        search.tell(7, "failed")


def test_the_published_scores_and_best_step_stay_with_the_node() -> None:
    search = grow(("root", None, "running", None))
    search.tell(0, "completed", 0.7, best_step=30)
    assert (search.node(0).score, search.node(0).best_step) == (0.7, 30)
