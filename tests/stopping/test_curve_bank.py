"""The curve bank: clear cases are answered, doubt goes to the agent, and no late take-off is stopped."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmzero_ray.agents.base import StopRequest
from llmzero_ray.metrics import Curves
from llmzero_ray.stopping.curve_bank import FEWEST_PHASES, OLD, BankDecision, BankedPhase, CurveBank
from tests.agents import curves as c


def flat(level: float = 0.4, n: int = 30, **val: float) -> Curves:
    """A trained run that gets nowhere: reward and validation stay, the KL wanders."""
    shown = {s: level + 0.004 * c.wave(s, 5) for s in range(5, n + 1, 5)}
    return c.curves(
        n,
        reward=c.line(level, level - 0.05, n, 0.01),
        kl=c.line(0.1, 0.1, n, 0.02),
        start=level,
        val={**shown, **{int(step.removeprefix("at")): score for step, score in val.items()}},
    )


def gained(gain: float, level: float = 0.4, n: int = 60) -> Curves:
    """A completed phase that stays at a level for half of its steps and then gains."""
    val = {s: level if s <= n // 2 else level + gain for s in range(5, n + 1, 5)}
    return c.curves(n, reward=[level] * n, start=level, val=val)


def bank_of(*phases: Curves) -> CurveBank:
    bank = CurveBank(n_val=512)
    for node, phase in enumerate(phases):
        assert bank.add(c.node(phase, node=100 + node))
    return bank


def judge(
    bank: CurveBank,
    run: Curves,
    *,
    n_steps: int = 60,
    target: float | None = 0.8,
    path: tuple[tuple[int, float], ...] = (),
    may_stop: bool = True,
) -> BankDecision:
    running = c.node(run, node=1, n_steps=n_steps, status="running")
    incumbent = c.node(Curves(), node=0, score=target)
    request = StopRequest(task=c.TASK, running=running, incumbent=incumbent, incumbent_path=path)
    return bank.judge(request, may_stop=may_stop)


def category(bank: CurveBank, run: Curves, **more: object) -> str:
    answer = judge(bank, run, **more)  # type: ignore[arg-type]
    assert (answer.answer == "continue") == (answer.category not in ("ask", "dead", "hopeless"))
    return answer.category


# --- what is banked -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["early_stopped", "failed", "running", "pending"])
def test_only_completed_phases_are_banked(status: str) -> None:
    bank = CurveBank()
    assert not bank.add(c.node(c.csum_steady(), status=status))
    assert len(bank) == 0


def test_a_phase_without_a_finite_validation_is_not_banked() -> None:
    nan = c.curves(10, reward=[0.5] * 10, val={5: math.nan})
    assert not CurveBank().add(c.node(nan))
    assert not CurveBank().add(c.node(Curves(), score=None))


def test_a_validation_of_step_0_alone_is_no_score_of_a_phase() -> None:
    assert not CurveBank().add(c.node(Curves(steps=(1,), val_steps=(0,), val_scores=(0.5,)), best_step=0))


def test_a_phase_is_banked_once_per_search_and_node() -> None:
    bank = CurveBank()
    for search in ("", "", "earlier"):
        assert bank.add(c.node(c.csum_steady(), node=3), search)
    assert len(bank) == 2


def test_a_gain_is_counted_from_comparable_points_within_the_steps_left() -> None:
    phase = BankedPhase(base_step=0, n_steps=30, points=((0, 0.4), (10, 0.42), (20, 0.6), (30, 0.7)))
    assert phase.best == 0.7
    near = phase.gains(level=0.4, band=0.03, since=0, left=10)
    assert [(round(g.gain, 9), g.whole) for g in near] == [(0.02, True), (0.18, True)]
    longer = phase.gains(level=0.4, band=0.03, since=10, left=25)
    # From step 10 only 20 steps followed: more than .28 might have come.
    assert [(round(g.gain, 9), g.whole) for g in longer] == [(0.28, False)]
    assert phase.gains(level=0.7, band=0.03, since=0, left=10) == []


# --- clear CONTINUE -----------------------------------------------------------------------------------------


def test_without_a_score_to_beat_the_run_goes_on() -> None:
    assert category(bank_of(), flat(), target=None) == "no target"


def test_fewer_than_two_validations_are_too_few_to_judge() -> None:
    assert category(bank_of(), c.cut(flat(), 4)) == "too early"
    assert category(bank_of(), c.cut(flat(), 5)) != "too early"  # the start counts
    unknown = dataclasses.replace(flat(), start_score=None)
    assert category(bank_of(), c.cut(unknown, 9)) == "too early"
    assert category(bank_of(), c.cut(unknown, 10)) != "too early"


def test_a_run_one_check_before_its_end_goes_on() -> None:
    assert category(bank_of(), flat(), n_steps=35) == "last check"
    assert category(bank_of(), flat(), n_steps=36) == "ask"


def test_a_run_that_beats_the_record_goes_on() -> None:
    assert category(bank_of(), flat(), target=0.38) == "leads"


def rising(reward_end: float) -> Curves:
    return c.curves(
        30,
        reward=c.joined(c.line(0.4, 0.4, 18, 0.01), c.line(0.42, reward_end, 12, 0.01)),
        start=0.4,
        val={5: 0.4, 15: 0.398, 25: 0.404},
        kl=c.line(0.1, 0.2, 30, 0.002),
    )


def test_a_train_reward_that_multiplies_under_flat_validation_goes_on() -> None:
    assert category(bank_of(), rising(0.8)) == "take-off"


def test_a_train_reward_that_rises_a_little_is_for_the_agent() -> None:
    assert category(bank_of(), rising(0.46)) == "ask"


def test_a_rising_train_reward_over_falling_validation_is_for_the_agent() -> None:
    overfit = c.curves(
        30,
        reward=c.line(0.4, 0.7, 30, 0.01),
        start=0.4,
        val={5: 0.5, 15: 0.45, 25: 0.3},
        kl=c.line(0.1, 0.2, 30, 0.002),
    )
    assert category(bank_of(), overfit) == "ask"


def test_longer_responses_with_a_rising_kl_alone_are_for_the_agent() -> None:
    longer = Curves(
        **{
            **vars(flat()),
            "metrics": {
                "critic/score/mean": tuple(c.line(0.4, 0.4, 30, 0.02)),
                "actor/kl_loss": tuple(c.line(0.01, 0.1, 30, 0.001)),
                "response_length/mean": tuple(c.line(4.0, 8.0, 30, 0.1)),
            },
        }
    )
    assert category(bank_of(), longer) == "ask"


def test_a_run_that_gains_and_is_where_a_winner_was_at_this_global_step_goes_on() -> None:
    path = ((0, 0.3), (25, 0.44), (60, 0.8))
    rises = flat(at20=0.42, at25=0.45, at30=0.45)
    assert category(bank_of(), rises, path=path) == "keeps up"
    assert category(bank_of(), rises, path=((0, 0.3), (25, 0.47), (60, 0.8))) == "ask"
    # Level with the winner, but without a gain of its own.
    assert category(bank_of(), flat(0.45), path=path) == "ask"


def test_a_winner_that_needed_more_steps_than_the_run_has_left_is_no_measure() -> None:
    rises = flat(at20=0.42, at25=0.45, at30=0.45)
    assert category(bank_of(), rises, path=((0, 0.3), (25, 0.44), (61, 0.8))) == "ask"
    assert category(bank_of(), rises, path=((0, 0.3), (25, 0.44), (61, 0.8)), n_steps=61) == "keeps up"


def test_a_banked_phase_that_came_to_the_target_is_a_winner_too_at_its_own_global_steps() -> None:
    rises = flat(at20=0.42, at25=0.45, at30=0.45)
    winner = c.curves(60, reward=[0.4] * 60, val={10: 0.1, 30: 0.44, 60: 0.8})
    assert category(bank_of(winner), rises) == "keeps up"
    later = Curves(**{**vars(winner), "base_step": 40})
    assert category(bank_of(later), rises) == "ask"
    assert category(bank_of(winner), rises, target=0.95) == "ask"


def test_a_run_whose_fitted_pace_leads_to_the_target_goes_on() -> None:
    steady = c.curves(
        30,
        reward=c.line(0.4, 0.35, 30, 0.01),
        kl=c.line(0.1, 0.1, 30, 0.02),
        start=0.40,
        val={10: 0.45, 20: 0.5, 30: 0.55},
    )
    # .005 a step for 30 more, from .55.
    assert category(bank_of(), steady, target=0.699) == "within reach"
    assert category(bank_of(), steady, target=0.701) == "ask"


def test_half_of_the_comparable_phases_and_two_at_least_make_a_precedent() -> None:
    missing = 0.2
    target = max(flat().val_scores[-2:]) + missing
    late, never = gained(0.21), gained(0.0)
    assert category(bank_of(late, late), flat(), target=target) == "precedent"
    assert category(bank_of(late, late, never, never), flat(), target=target) == "precedent"
    assert category(bank_of(late), flat(), target=target) == "ask"
    assert category(bank_of(late, late, never, never, never), flat(), target=target) == "ask"


def test_gains_from_another_level_or_at_the_beginning_of_a_phase_are_no_precedent() -> None:
    target = 0.6
    other = gained(0.3, level=0.1)
    early = c.curves(60, reward=[0.4] * 60, start=0.4, val={5: 0.5, 10: 0.65, 60: 0.65})
    assert category(bank_of(other, other), flat(), target=target) == "ask"
    assert category(bank_of(early, early), flat(), target=target) == "ask"


# --- clear STOP ---------------------------------------------------------------------------------------------


def test_nothing_is_stopped_unless_it_is_allowed() -> None:
    hopeless = [gained(0.0)] * 20
    assert judge(bank_of(*hopeless), flat(), may_stop=False).answer == "ask"
    answer = judge(bank_of(*hopeless), flat(), n_steps=50)
    assert (answer.answer, answer.category) == ("stop", "hopeless")
    assert "0 of 20 banked phases gained that much" in answer.reason


def test_too_few_phases_that_lasted_as_long_stop_nothing() -> None:
    few = bank_of(*[gained(0.0)] * (FEWEST_PHASES - 1))
    assert judge(few, flat()).answer == "ask"
    # From step 15 on these have 15 steps at most; the run has 20 left.
    short = bank_of(*[gained(0.0, n=30)] * 20)
    assert judge(short, flat(), n_steps=50).answer == "ask"
    assert judge(bank_of(*[gained(0.0)] * FEWEST_PHASES), flat(), n_steps=50).answer == "stop"


def test_one_phase_that_came_near_the_missing_gain_is_enough_not_to_stop() -> None:
    # .4 is missing; with the factor 1.3 and the margins a gain of .3 is too near.
    bank = bank_of(*[gained(0.0)] * 20, gained(0.3))
    assert judge(bank, flat(), n_steps=50).answer == "ask"
    assert judge(bank_of(*[gained(0.0)] * 20, gained(0.2)), flat(), n_steps=50).answer == "stop"


def test_a_run_in_its_first_steps_is_not_stopped() -> None:
    bank = bank_of(*[gained(0.0, n=120)] * 20)
    longest = math.floor(30 / OLD)
    assert judge(bank, flat(), n_steps=longest).answer == "stop"
    assert judge(bank, flat(), n_steps=longest + 1).answer == "ask"


def test_a_run_in_which_nothing_moves_is_for_the_agent_even_at_the_record() -> None:
    dead = c.untrained(15, level=0.42)
    assert category(bank_of(), dead, target=0.40) == "dead"


# --- what must survive --------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(1, 31))
def test_the_recorded_late_take_off_is_never_stopped_nor_doubted(at: int) -> None:
    # Validation .166 at step 15 becomes 1.000 at step 30; 20 banked phases never moved.
    bank = bank_of(*[gained(0.0, level=0.17)] * 20)
    path = ((0, 0.176), (10, 0.3), (15, 0.95), (30, 0.99))
    assert judge(bank, c.cut(c.regh_late(), at), n_steps=30, target=0.99, path=path).answer == "continue"


@pytest.mark.parametrize("at", range(6, 27))
def test_a_late_take_off_under_many_flat_validations_is_never_stopped(at: int) -> None:
    # The same run, had it been validated every 3 steps while its greedy answers stood still.
    found = c.regh_late()
    flat_scores = tuple(0.17 + 0.004 * c.wave(step, 3) for step in range(3, 28, 3))
    often = Curves(**{**vars(found), "val_steps": tuple(range(3, 28, 3)), "val_scores": flat_scores})
    bank = bank_of(*[gained(0.0, level=0.17)] * 20)
    answer = judge(bank, c.cut(often, at), n_steps=30, target=0.99).answer
    # From step 15 on, half way through, its train reward has left its noise.
    assert answer == "continue" if at >= 15 else answer != "stop"


@pytest.mark.parametrize("number", range(6))
def test_no_phase_of_the_recorded_search_is_stopped(number: int) -> None:
    others = [c.recorded(other) for other in range(6) if other != number]
    bank = bank_of(*others, *[gained(0.0, level=0.17)] * 20)
    run = c.recorded(number)
    for n in range(1, len(run.steps) + 1):
        assert judge(bank, c.cut(run, n), n_steps=20, target=0.36).answer != "stop"


def scattered(rng: random.Random, n: int) -> Curves:
    """Any curve at all."""
    level = rng.uniform(0.05, 0.95)
    return c.curves(
        n,
        reward=[rng.uniform(0, 1) for _ in range(n)],
        kl=[rng.uniform(0, 1) for _ in range(n)],
        length=[rng.uniform(1, 100) for _ in range(n)],
        start=level,
        val={s: min(1.0, max(0.0, level + rng.gauss(0, 0.1))) for s in range(5, n + 1, 5)},
    )


@settings(derandomize=True)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 40), left=st.integers(0, 40), target=st.floats(0, 1))
def test_any_run_gets_an_answer_and_the_same_one_again(seed: int, n: int, left: int, target: float) -> None:
    rng = random.Random(seed)
    bank = bank_of(*(scattered(rng, rng.randint(5, 60)) for _ in range(rng.randint(0, 12))))
    run = scattered(rng, n)
    answer = judge(bank, run, n_steps=n + left, target=target)
    assert answer == judge(bank, run, n_steps=n + left, target=target)
    if answer.answer == "stop":
        assert target > max(run.val_scores)
        assert 2 * n >= n + left


@settings(derandomize=True)
@given(seed=st.integers(0, 10_000), n=st.integers(10, 40), left=st.integers(0, 40), target=st.floats(0, 1))
def test_an_empty_bank_never_stops_and_a_bank_without_permission_neither(
    seed: int, n: int, left: int, target: float
) -> None:
    rng = random.Random(seed)
    run = scattered(rng, n)
    full = bank_of(*(scattered(rng, 60) for _ in range(12)))
    assert judge(bank_of(), run, n_steps=n + left, target=target).answer != "stop"
    assert judge(full, run, n_steps=n + left, target=target, may_stop=False).answer != "stop"


@settings(derandomize=True)
@given(gains=st.lists(st.floats(0, 0.6), min_size=8, max_size=16), more=st.floats(0, 0.6))
def test_a_further_phase_that_gained_more_never_turns_ask_into_stop(gains: list[float], more: float) -> None:
    known = [gained(gain) for gain in gains]
    before = judge(bank_of(*known), flat()).answer
    after = judge(bank_of(*known, gained(max(*gains, more))), flat()).answer
    assert after != "stop" or before == "stop"
