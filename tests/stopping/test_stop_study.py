"""The study of stopping on recorded phases."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from benchmarks import stop_runs
from benchmarks.stop_recorded import DEVELOPMENT, HELD_OUT, is_late_take_off, known, report


def test_on_recorded_phases_few_winners_are_stopped_and_losing_ones_are() -> None:
    found = report()
    assert {one["kind"] for one in found.values()} == {"development", "held out"}
    for kind in ("development", "held out"):
        of_kind = [one["pairs"] for one in found.values() if one["kind"] == kind]
        assert sum(one["lost"] for one in of_kind) <= 0.01 * sum(one["winners"] for one in of_kind)
        assert sum(one["late_take_offs_lost"] for one in of_kind) == 0
    assert all(found[name]["pairs"]["saved"] > 0.1 for name in ("sum", "sum_long", "rare_chain_a"))


def test_nothing_saves_more_than_the_hindsight_bound() -> None:
    for one in report().values():
        for what in ("pairs", "searches"):
            figures_of = one[what]
            if figures_of is not None and figures_of["losing"]:
                assert 0 <= figures_of["saved"] <= figures_of["bound"] < 1


def test_in_searches_of_recorded_phases_a_stop_costs_nothing_of_the_best_validation() -> None:
    searches = [one["searches"]["best"] for one in report().values() if one["searches"] is not None]
    assert len(searches) == 8
    assert all(best["cut"] >= best["whole"] - 0.001 for best in searches)


def test_the_recorded_set_holds_three_late_take_offs_that_win() -> None:
    searches = [search for name in (*DEVELOPMENT, *HELD_OUT) if (search := known(name)) is not None]
    assert sum(is_late_take_off(view) for search in searches for view in search.views) >= 3
    assert sum(one["pairs"]["late_take_offs_that_win"] for one in report().values()) >= 3


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


@pytest.mark.slow
def test_the_published_tables_of_a_models_stops_are_those_of_its_answers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "measurements.md").read_text(encoding="utf-8")
    printed = f"{stop_runs.text()}\n{stop_runs.calibration()}".splitlines()
    rows = [line for line in printed if line.startswith("| ") and "---" not in line]
    assert len(rows) == 1 + len(stop_runs.LIMITS) + 2 + len(stop_runs.BOUNDS)
    assert [row for row in rows if row not in page] == []


@pytest.mark.slow
def test_every_kept_answer_is_to_a_request_and_a_run_was_asked_about_until_its_chance_was_low() -> None:
    answers = stop_runs.answers()
    for pair in stop_runs.pairs():
        given = [answers.pop(pair.case(now), None) for now in pair.behind]
        asked = [chance for chance in given if chance is not None]
        assert given == asked + [None] * (len(given) - len(asked))
        assert len(asked) == len(given) or asked[-1] < min(stop_runs.LIMITS)
    assert answers == {}


def test_a_recorded_run_is_asked_about_with_the_outcome_of_its_items_and_the_runs_before_it() -> None:
    for pair in itertools.islice(stop_runs.pairs(), 3):
        request = pair.request(pair.behind[-1])
        assert len(request.standings) == 1 + len(pair.behind[-1].curves.val_steps)
        assert all(one.to_best is not None and one.to_best.paired for one in request.standings[1:])
        assert request.incumbent.node in [view.node for view in request.ended]
        for node, steps in pair.runs.outcomes.items():
            curves = pair.runs.views[node].curves
            for step, score in zip(curves.val_steps, curves.val_scores, strict=True):
                assert sum(item.acc for item in steps[step]) / pair.runs.n_val == pytest.approx(
                    score, abs=1e-5
                )
