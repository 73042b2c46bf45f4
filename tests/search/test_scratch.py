"""Forced runs from scratch: when, where, and what they count for."""

from __future__ import annotations

import pytest

from tests.search.builders import add, chosen, grow


def five_evolved(**rules: float) -> list[tuple[object, int | None, str, float | None]]:
    return [("root", None, "ok", 0.1), *[("evolve", k, "ok", 0.1 * (k + 2)) for k in range(5)]]


def test_a_scratch_run_is_forced_as_soon_as_the_share_is_below_the_minimum() -> None:
    # The root alone among five: 1/5 is not below 0.2. Among six: 1/6 is.
    runs = five_evolved()
    assert chosen(grow(*runs[:5]))[0] == "evolve"
    search = grow(*runs)
    assert chosen(search) == ("scratch", 5)
    seen = search.ask().seen
    assert (seen.n_scratch, seen.n_evolve, seen.rho_min, seen.descent) == (1, 6, 0.2, ())


def test_a_scratch_run_raises_the_share_again() -> None:
    search = grow(*five_evolved(), ("scratch", 5, "ok", 0.2))
    assert (search.ask().seen.n_scratch, search.ask().seen.n_evolve) == (2, 7)
    assert chosen(search)[0] == "evolve"


def test_no_scratch_run_is_forced_where_none_can_become_as_long_as_the_best() -> None:
    search = grow(*five_evolved())
    search.fresh_start_fits = False
    assert chosen(search)[0] == "evolve"


def test_debug_runs_do_not_enter_the_share() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "failed", None), ("debug", 1, "failed", None))
    assert (search.ask().seen.n_scratch, search.ask().seen.n_evolve) == (1, 2)


def test_running_runs_enter_the_share() -> None:
    search = grow(*five_evolved()[:-1], ("evolve", 4, "running", None))
    assert chosen(search) == ("scratch", 4)


def test_a_run_that_chose_to_start_from_scratch_is_an_ordinary_evolve_run() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "ok", 0.6))
    assert search.node(1).resume_from is None
    assert (search.ask().seen.n_scratch, search.node(1).exempt) == (1, False)


def test_the_scratch_run_hangs_on_the_best_unpruned_node_a_failed_one_included() -> None:
    search = grow(
        ("root", None, "ok", 0.5),
        ("evolve", 0, "failed", 0.95),
        ("debug", 1, "ok", 0.6),
        ("evolve", 2, "failed", 0.9),
        rho_min=0.5,
    )
    assert search.best is not None
    assert search.best.id == 1
    assert chosen(search) == ("scratch", 3)


def test_the_scratch_run_hangs_on_the_earliest_of_equals() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "ok", 0.7), ("evolve", 0, "ok", 0.7), rho_min=1)
    assert chosen(search) == ("scratch", 1)


def test_without_any_score_it_hangs_on_the_root() -> None:
    search = grow(("root", None, "ok", None), ("evolve", 0, "ok", None), rho_min=1)
    assert chosen(search) == ("scratch", 0)


def test_a_scratch_child_fills_no_slot_but_counts_for_fairness_and_visits() -> None:
    search = grow(("root", None, "ok", 0.9), ("evolve", 0, "ok", 0.5), ("scratch", 0, "ok", 0.1), rho_min=0)
    top = search.ask().seen.descent[0]
    assert (top.visits, top.k_fair, top.k_cap, top.full) == (3, 2, 1, False)


def test_a_scratch_child_reopens_a_terminal_node_and_an_exhausted_search() -> None:
    search = grow(
        ("root", None, "ok", 0.5),
        ("evolve", 0, "failed", 0.6),
        max_evolve_children=1,
        max_debug_children=0,
        rho_min=0.6,
    )
    assert search.node(0).terminal
    search.fresh_start_fits = False  # nothing else could begin
    assert chosen(search) == ("scratch", 1)
    search.begin(search.ask())
    assert not search.node(1).terminal
    assert not search.node(0).terminal
    search.tell(2, "completed", 0.1)
    assert chosen(search) == ("evolve", 2)


@pytest.mark.parametrize("rho_min", [0.0, 0.2, 0.5, 1.0])
def test_after_a_forced_run_the_share_is_never_below_the_minimum_by_more_than_one_run(rho_min: float) -> None:
    search = grow(("root", None, "ok", 0.5), rho_min=rho_min)
    for k in range(40):
        decision = search.ask()
        seen = decision.seen
        assert (decision.action == "scratch") == (seen.n_scratch / seen.n_evolve < rho_min)
        # One run before, the share was still kept, or that run was a scratch one on its way back to it.
        assert seen.n_scratch + 1 >= rho_min * seen.n_evolve
        search.tell(search.begin(decision), "completed", k % 7 / 7)


def test_a_share_of_zero_never_forces_a_run() -> None:
    search = grow(*five_evolved(), rho_min=0)
    assert chosen(search)[0] == "evolve"
    add(search, "evolve", 5, "ok", 0.9)
    assert chosen(search)[0] == "evolve"


@pytest.mark.parametrize("least", [0.1, 0.2, 0.25, 0.3, 0.5, 1.0])
def test_the_next_forced_start_comes_after_as_many_runs_as_are_said(least: float) -> None:
    search = grow(("root", None, "ok", 0.5), rho_min=least, max_evolve_children=50)
    starts = []
    for number in range(40):
        action, on = chosen(search)
        said = search.runs_before_fresh_start
        assert said is not None
        starts.append(number + said)
        assert (said == 0) == (action == "scratch")
        add(search, action, on, "ok", 0.5)
    forced = [number for number, node in enumerate(list(search.nodes.values())[1:]) if node.kind == "scratch"]
    assert forced
    assert set(starts) - {start for start in starts if start >= 40} == set(forced)


def test_no_forced_start_is_announced_where_there_will_be_none() -> None:
    assert grow(("root", None, "ok", 0.5), rho_min=0).runs_before_fresh_start is None
    search = grow(*five_evolved())
    search.fresh_start_fits = False
    assert search.runs_before_fresh_start is None
