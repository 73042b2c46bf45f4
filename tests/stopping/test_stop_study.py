"""The study of stopping on recorded phases."""

from __future__ import annotations

import pytest

from benchmarks.stop_recorded import (
    DEVELOPMENT,
    HELD_OUT,
    figures,
    is_late_take_off,
    known,
    pairs,
    report,
    together,
)  # fmt: skip


def test_where_thresholds_were_fixed_no_winner_is_stopped_and_elsewhere_few() -> None:
    found = report()
    assert {name.split(": ")[0] for name in found} == {"development", "held out"}
    held_out = [arms["expert"] for name, arms in found.items() if name.startswith("held out")]
    fixed_on = [arms["expert"] for name, arms in found.items() if name.startswith("development")]
    assert not any(one["winners_lost"] for one in fixed_on)
    assert sum(len(one["winners_lost"]) for one in held_out) <= 0.1 * sum(one["winners"] for one in held_out)
    assert together()["held out"]["losing"] == sum(
        arms["expert"]["losing"] for name, arms in found.items() if name.startswith("held out")
    )
    for name in ("development: rare_chain_a", "held out: chain_sum_a"):
        assert found[name]["expert"]["steps_of_losing_saved"] > 0.2


def test_the_recorded_set_holds_three_late_take_offs_that_win_and_are_not_stopped() -> None:
    searches = [search for name in (*DEVELOPMENT, *HELD_OUT) if (search := known(name)) is not None]
    assert sum(is_late_take_off(view) for search in searches for view in search.views) >= 3
    judged = [pair for search in searches for pair in pairs("", search)]
    assert figures(judged)["late_take_offs_that_win"] >= 3
    assert figures(judged)["late_take_offs_lost"] == 0


def test_a_recorded_incumbent_is_compared_along_its_whole_chain_with_the_outcomes_of_its_items() -> None:
    search = known("chain_sum_first")
    assert search is not None
    chain = search.chains[2]
    assert [view.node for view in chain] == [0, 1, 2]
    assert [view.curves.val_steps[-1] for view in chain] == [10, 10, search.views[2].best_step]
    assert {len(items) for steps in search.outcomes.values() for items in steps.values()} == {search.n_val}
    for node, steps in search.outcomes.items():
        curves = search.views[node].curves
        for step, score in zip(curves.val_steps, curves.val_scores, strict=True):
            assert sum(item.acc for item in steps[step]) / search.n_val == pytest.approx(score)
