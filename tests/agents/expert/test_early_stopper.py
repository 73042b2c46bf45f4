"""The offline early stopper: continue by default, stop what cannot win, never a late take-off."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from llmzero_ray import hyperparameters as hp
from llmzero_ray.agents.expert import ExpertEarlyStopper
from llmzero_ray.agents.expert.early_stopper import TAKE_OFF, takes_off
from llmzero_ray.dynamics.features import observe
from llmzero_ray.dynamics.observations import reward_rising
from llmzero_ray.records import StopDecision
from llmzero_ray.records.agents import EarlyStopper, StopRequest
from llmzero_ray.records.metrics import Curves
from tests.agents import curves as c

STOPPER: EarlyStopper = ExpertEarlyStopper(n_val=512)


def judge(
    running: Curves,
    *,
    at: int | None = None,
    n_steps: int = 40,
    target: float = 0.9,
    path: tuple[tuple[int, float], ...] = (),
) -> StopDecision:
    """The judgement on a run after `at` of its steps, against an incumbent with a score and a path."""
    shown = c.cut(running, at) if at is not None else running
    return STOPPER.judge(
        StopRequest(
            task=c.TASK,
            running=c.node(shown, node=1, n_steps=n_steps, status="running"),
            incumbent=c.node(Curves(), node=0, score=target),
            incumbent_path=path,
        )
    )


def flat(level: float = 0.5, n: int = 30, **more: list[float]) -> Curves:
    """A trained run without progress: validation moves by more than single answers, but goes nowhere."""
    val = {s: level + 0.01 * c.wave(s, 5) for s in range(5, n + 1, 5)}
    named: dict[str, list[float]] = {
        "kl": c.line(0.10, 0.12, n, 0.002),
        "entropy": c.line(0.4, 0.4, n, 0.01),
        "length": c.line(7.0, 7.0, n, 0.1),
    }
    return c.curves(n, reward=c.line(level, level, n, 0.03), start=level, val=val, **{**named, **more})


def test_a_flat_run_far_below_the_incumbent_stops_with_its_outlook() -> None:
    decision = judge(flat(), at=30)
    assert decision.stop
    assert decision.rule == "early_stopper"
    assert not decision.hard
    assert "below 0.900" in decision.reason


@pytest.mark.parametrize(("step", "score", "stopped"), [(0, 0.3, False), (0, 0.9, True), (10, 0.9, False)])
def test_while_every_phase_is_worse_the_base_models_score_is_to_be_beaten(
    step: int, score: float, stopped: bool
) -> None:
    decision = judge(flat(), at=30, target=0.4, path=((step, score), (20, 0.4)))
    assert decision.stop == stopped
    assert ("below 0.900" in decision.reason) == stopped


def test_where_nothing_swings_the_slack_is_that_of_the_items() -> None:
    steady = c.curves(
        20, start=0.5, val={10: 0.5, 20: 0.5}, reward=c.line(0.5, 0.3, 20), kl=c.line(0, 0.1, 20)
    )

    def outlook(target: float) -> float:
        # Nothing swings, so the noise is the items': 10 steps on, from three validations 10 steps apart.
        items = math.sqrt(target * (1 - target) / 512)
        return 0.5 + items * math.hypot(2, 3 * 10 / math.sqrt(200))

    reached = next(t / 1000 for t in range(1000, 500, -1) if outlook(t / 1000) >= t / 1000)
    assert not judge(steady, n_steps=30, target=reached).stop
    stopped = judge(steady, n_steps=30, target=reached + 0.001)
    assert stopped.stop
    assert "at +0.0000 a step for 10 more" in stopped.reason


def test_the_same_curve_is_given_more_room_on_a_task_whose_validations_swing() -> None:
    calm = tuple((s, 0.6) for s in range(0, 31, 5))
    swinging = tuple((s, 0.6 + 0.1 * (-1) ** s) for s in range(0, 31, 5))
    assert judge(flat(), at=30, target=0.7, path=calm).stop
    assert not judge(flat(), at=30, target=0.7, path=swinging).stop


def test_the_fewer_steps_are_left_the_less_a_phase_can_still_gain() -> None:
    target = 0.75
    assert not judge(flat(), at=10, n_steps=200, target=target).stop
    assert judge(flat(), at=10, n_steps=14, target=target).stop


def test_a_phase_may_be_stopped_at_its_first_validation() -> None:
    collapsed = c.curves(5, start=0.6, val={5: 0.05}, reward=c.line(0.6, 0.0, 5), kl=c.line(0, 3, 5))
    assert judge(collapsed, n_steps=10, target=0.65).stop
    assert not judge(collapsed, n_steps=100, target=0.65).stop


def test_an_untrained_run_within_a_quarter_of_the_noise_of_the_record_stops_and_above_it_not() -> None:
    quarter = 0.25 * math.sqrt(0.42 * 0.58 / 512)
    assert judge(c.untrained(15, 0.42), target=0.42 - 0.9 * quarter).stop
    assert not judge(c.untrained(15, 0.42), target=0.42 - 1.1 * quarter).stop


def test_a_level_with_the_record_is_judged_like_any_other() -> None:
    assert "already beats" not in judge(flat(0.5), at=30, target=max(flat(0.5).val_scores)).reason


def test_the_same_run_continues_while_the_incumbent_is_within_reach() -> None:
    assert not judge(flat(), at=30, target=0.53).stop


def test_a_run_that_beats_the_incumbent_continues() -> None:
    assert not judge(flat(), at=30, target=0.4).stop


@pytest.mark.parametrize("at", [5, 10, 15, 20, 25])
def test_a_late_take_off_is_never_stopped(at: int) -> None:
    # Validation .166 at step 15 becomes 1.000 at step 30; the incumbent had .95 by then.
    path = ((0, 0.176), (10, 0.3), (15, 0.95), (30, 0.99))
    assert not judge(c.regh_late(), at=at, n_steps=30, target=0.99, path=path).stop


def rising(reward_end: float) -> Curves:
    """Flat validation, and a train reward that rises from .2."""
    return c.curves(
        30,
        start=0.2,
        val={s: 0.2 + 0.01 * c.wave(s, 5) for s in range(5, 31, 5)},
        reward=c.line(0.2, reward_end, 30, 0.004),
        kl=c.line(0.0, 0.2, 30, 0.002),
        length=c.line(4.0, 8.0, 30, 0.1),
    )


def test_a_train_reward_that_multiplies_under_flat_validation_announces_a_take_off() -> None:
    decision = judge(rising(0.2 * (1.5 + TAKE_OFF)), at=20, n_steps=30)
    assert not decision.stop
    assert "take-off" in decision.reason


def test_a_reward_that_rises_a_little_and_longer_responses_do_not_save_a_run_that_cannot_win() -> None:
    shown = rising(0.2 * (1 + 0.5 * TAKE_OFF))
    assert reward_rising(observe(c.cut(shown, 20), c.TINY))
    assert judge(shown, at=20, n_steps=30).stop


def test_a_rise_that_is_no_take_off_is_none_either_where_wrong_answers_cost_something() -> None:
    shown = c.repaid(rising(0.2 * (1 + 0.5 * TAKE_OFF)))
    assert judge(shown, at=20, n_steps=30).stop
    assert not judge(c.repaid(rising(0.2 * (1.5 + TAKE_OFF))), at=20, n_steps=30).stop


def test_a_reward_that_rises_while_validation_falls_is_no_take_off() -> None:
    overfit = c.curves(
        20,
        start=0.6,
        val={5: 0.6, 10: 0.5, 15: 0.4, 20: 0.3},
        reward=c.line(0.2, 0.6, 20, 0.004),
        kl=c.line(0.0, 0.2, 20, 0.002),
    )
    assert takes_off(observe(overfit, c.TINY, n_val=512)) == ""
    assert judge(overfit, n_steps=40).stop


def test_a_run_at_learning_rate_zero_stops_even_at_the_incumbents_own_score() -> None:
    resumed = c.curves(
        12, reward=c.line(0.8, 0.8, 12, 0.05), lr=[0.0] * 12, start=0.824, val={5: 0.824, 10: 0.824}
    )
    decision = judge(resumed, target=0.824)
    assert decision.stop
    assert "learning rate was 0" in decision.reason


def test_a_run_that_does_not_move_stops_without_a_logged_rate() -> None:
    decision = judge(c.untrained(15, 0.42), at=10, target=0.824)
    assert decision.stop
    assert "nothing moves in 10 steps" in decision.reason


def test_a_real_run_that_pauses_on_the_incumbents_level_is_not_taken_for_an_untrained_one() -> None:
    for number in (3, 4, 5):
        decision = ExpertEarlyStopper(n_val=256).judge(
            StopRequest(
                task=c.TASK,
                running=c.node(c.recorded(number), node=number, n_steps=15, status="running"),
                incumbent=c.node(Curves(), node=2, score=0.3477),
                incumbent_path=((0, 0.164), (10, 0.168), (20, 0.219), (30, 0.3477)),
            )
        )
        assert not decision.stop, decision.reason


def test_a_run_that_stands_still_on_a_record_is_left_alone() -> None:
    assert not judge(c.untrained(15, 0.85), at=15, target=0.80).stop


def test_without_two_validations_the_start_included_nothing_is_judged() -> None:
    unknown = c.curves(20, reward=c.line(0.5, 0.3, 20, 0.02), val={10: 0.1}, kl=c.line(0.1, 0.2, 20))
    assert "1 validation" in judge(unknown, n_steps=40).reason
    assert not judge(c.curves(10, reward=c.line(0.3, 0.3, 10, 0.05))).stop
    known = dataclasses.replace(unknown, start_score=0.4)
    assert judge(c.cut(known, 12), n_steps=20).stop


def test_without_a_score_to_beat_nothing_is_stopped() -> None:
    request = StopRequest(
        task=c.TASK,
        running=c.node(flat(), node=1, n_steps=40),
        incumbent=c.node(Curves(), node=0),
        incumbent_path=(),
    )
    assert not STOPPER.judge(request).stop


def test_a_run_level_with_the_incumbent_continues_where_that_one_won_in_the_steps_left() -> None:
    path = ((0, 0.4), (10, 0.45), (30, 0.5), (45, 0.9))
    calm = ((0, 0.49), (30, 0.5))  # without the last validation the path would not swing
    assert judge(flat(), at=30, n_steps=45, path=calm).stop
    decision = judge(flat(), at=30, n_steps=45, path=path)
    assert not decision.stop
    assert judge(flat(0.2), at=30, n_steps=45, path=path, target=0.99).stop


def test_a_falling_run_stops() -> None:
    falling = c.curves(
        25,
        start=0.6,
        val={5: 0.6, 10: 0.52, 15: 0.45, 20: 0.38, 25: 0.30},
        reward=c.line(0.6, 0.3, 25, 0.02),
        kl=c.line(0.1, 0.9, 25, 0.01),
    )
    assert judge(falling, n_steps=40).stop


def test_a_run_at_its_last_step_is_not_stopped() -> None:
    assert not judge(flat(n=30), n_steps=30).stop


def test_judging_reads_nothing_but_the_request() -> None:
    assert judge(flat(), at=30) == judge(flat(), at=30)


def random_run(rng: random.Random, base: float, n: int = 30) -> Curves:
    """A learning curve with a random take-off, pace and ceiling; validation lags behind sampling."""
    top, onset, pace = base + (1 - base) * rng.random(), rng.uniform(-5, 25), rng.uniform(0.15, 0.8)
    decay, turn, lag = rng.choice([0.0, 0.0, 0.0, 0.006]), rng.uniform(10, n), rng.uniform(0, 4)
    zero = 1 / (1 + math.exp(pace * onset))
    rise = [(1 / (1 + math.exp(-pace * (t - onset))) - zero) / (1 - zero) for t in range(n + 1)]
    skill = [max(0.01, base + (top - base) * r - decay * max(0.0, t - turn)) for t, r in enumerate(rise)]

    def measured(p: float) -> float:
        return sum(rng.random() < min(0.995, p) for _ in range(512)) / 512

    return c.curves(
        n,
        start=measured(base),
        val={t: measured(skill[max(0, int(t - lag))]) for t in range(5, n + 1, 5)},
        reward=[min(1.0, max(0.0, 0.9 * skill[t] + rng.gauss(0, 0.05))) for t in range(1, n + 1)],
        kl=[0.002 * t + 0.2 * (skill[t] - base) + abs(rng.gauss(0, 0.002)) for t in range(1, n + 1)],
        entropy=[0.6 - 0.4 * (skill[t] - base) + rng.gauss(0, 0.01) for t in range(1, n + 1)],
        length=[5 + 2 * (skill[t] - base) + rng.gauss(0, 0.1) for t in range(1, n + 1)],
    )


def test_over_many_runs_few_winners_are_stopped_and_three_tenths_of_the_steps_of_losers_are_saved() -> None:
    rng = random.Random(7)
    lost, saved = [], []
    for _ in range(200):
        base = rng.uniform(0.1, 0.5)
        best = max((random_run(rng, base) for _ in range(3)), key=lambda run: max(run.val_scores))
        path = ((0, best.start_score or 0.0), *zip(best.val_steps, best.val_scores, strict=True))
        run = random_run(rng, base)
        target = max(best.val_scores)
        checks = (10, 15, 20, 25)
        ended = next(
            (at for at in checks if judge(run, at=at, n_steps=30, target=target, path=path).stop), 30
        )
        if max(run.val_scores) > target:
            lost.append(ended < 30)
        else:
            saved.append(1 - ended / 30)
    # Half of these runs take off without any sign before, up to step 25 of 30: no rule knows all of them.
    assert sum(lost) <= 0.25 * len(lost)
    assert sum(saved) >= 0.3 * len(saved)


def test_the_configuration_of_the_run_is_no_evidence() -> None:
    shown = c.node(flat(), hp.complete(c.TINY, {"lr": 0}), node=1, n_steps=40)
    request = StopRequest(
        task=c.TASK, running=shown, incumbent=c.node(Curves(), node=0, score=0.53), incumbent_path=()
    )
    assert not STOPPER.judge(request).stop
