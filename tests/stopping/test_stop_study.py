"""The study of stopping: repeatable, and its arms differ in nothing but who decides."""

from __future__ import annotations

import random

import pytest

from benchmarks.stop_calls import study
from benchmarks.stop_curves import KINDS, World, make_phase
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
from benchmarks.stop_search import REGIMES, Search

WORLD = World(base=0.2, ceiling=0.8, offset=0.0, paired=0.4, n_val=500)


def phase(seed: int, n: int = 60) -> tuple[str, tuple[float, ...]]:
    made = make_phase(WORLD, random.Random(seed), start=0.3, base_step=0, n=n, test_freq=5)
    assert len(made.true) == n + 1
    assert made.curves.val_steps == tuple(range(5, n + 1, 5))
    assert {len(values) for values in made.curves.metrics.values()} == {n}
    return made.kind, made.true


def test_every_kind_of_curve_occurs_and_does_what_its_name_says() -> None:
    ends: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for seed in range(300):
        kind, true = phase(seed)
        ends[kind].append(true[-1] - 0.3)
    mean = {kind: sum(found) / len(found) for kind, found in ends.items()}
    assert mean["late"] > mean["steady"] > 0.1
    assert abs(mean["plateau"]) < 0.02
    assert mean["drift"] < -0.02
    assert mean["collapse"] < -0.05


def test_a_late_take_off_shows_in_the_train_reward_before_it_shows_in_validation() -> None:
    made = next(
        found
        for seed in range(50)
        if (found := make_phase(WORLD, random.Random(seed), start=0.2, base_step=0, n=60, test_freq=1)).kind
        == "late"
        and found.true[-1] > 0.5
    )
    half = (made.true[0] + made.true[-1]) / 2
    reward = [value / 0.9 for value in made.curves.metrics["critic/score/mean"] if value is not None]
    rewarded = next(i for i, value in enumerate(reward, 1) if value > half)
    assert rewarded < next(i for i, score in enumerate(made.curves.val_scores, 1) if score > half)


@pytest.mark.parametrize("arm", ["never", "ask", "bank", "bank_stop+earlier"])
def test_the_same_seed_gives_the_same_search(arm: str) -> None:
    first, again = (Search(7, REGIMES["demo"], arm, "expert").finish() for _ in range(2))
    assert vars(first) == vars(again)


def test_arms_train_the_same_phase_at_the_same_place() -> None:
    arms = [Search(3, REGIMES["demo"], arm, "foresight") for arm in ("never", "ask", "bank")]
    seen: dict[str, tuple[float, ...]] = {}
    for search in arms:
        search.finish()
        for run in search.runs.values():
            assert seen.setdefault(run.place, run.true) == run.true


def test_the_bank_answers_some_of_the_questions_and_never_asks_more() -> None:
    ask, bank = (Search(5, REGIMES["dense"], arm, "expert").finish() for arm in ("ask", "bank"))
    assert ask.calls == ask.due
    assert 0 < bank.calls < bank.due
    assert sum(bank.by.values()) == bank.due


def test_figures_of_an_arm_against_itself_are_nothing_lost_and_all_calls_made() -> None:
    found = study("demo", range(2), "expert", ("never", "ask"))
    arms = found["arms"]
    assert isinstance(arms, dict)
    assert arms["ask"]["calls_ratio"] == [1.0, 0.0]
    assert arms["ask"]["loss_to_ask_runs"] == [0.0, 0.0]
    assert arms["never"]["calls_ratio"] == [0.0, 0.0]


def test_where_thresholds_were_fixed_no_winner_is_stopped_and_elsewhere_few() -> None:
    found = report()
    assert {name.split(": ")[0] for name in found} == {"development", "held out"}
    for arm in ("expert", "bank before expert"):
        held_out = [arms[arm] for name, arms in found.items() if name.startswith("held out")]
        assert all(not arms[arm]["winners_lost"] for arms in found.values() if arms[arm] not in held_out)
        assert sum(len(one["winners_lost"]) for one in held_out) <= 0.1 * sum(
            one["winners"] for one in held_out
        )
    assert together()["held out"]["losing"] == sum(
        arms["expert"]["losing"] for name, arms in found.items() if name.startswith("held out")
    )
    assert all(arms["bank before expert"]["calls"] <= arms["expert"]["calls"] for arms in found.values())
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
