"""The offline early stopper: continue by default, stop what cannot win, never a late take-off."""

from __future__ import annotations

import math
import random

import pytest

from llmzero_ray import hyperparameters as hp
from llmzero_ray.agents.base import EarlyStopper, StopRequest
from llmzero_ray.agents.dynamics import Validation, observe
from llmzero_ray.agents.expert import ExpertEarlyStopper
from llmzero_ray.agents.expert.early_stopper import (
    grows_longer,
    incumbent_at,
    incumbent_gain,
    optimistic_pace,
)
from llmzero_ray.metrics import Curves
from llmzero_ray.records import StopDecision
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
    assert "stays below 0.900" in decision.reason


def test_the_outlook_is_the_level_plus_the_rate_times_the_steps_left() -> None:
    steady = c.curves(
        20, start=0.5, val={10: 0.5, 20: 0.5}, reward=c.line(0.5, 0.3, 20), kl=c.line(0, 0.1, 20)
    )
    se = math.sqrt(0.25 / 512)
    outlook = 0.5 + 2 * se + 15 * 2 * se / math.sqrt(200)
    assert judge(steady, n_steps=35, target=outlook + 1e-6).stop
    assert not judge(steady, n_steps=35, target=outlook - 1e-6).stop
    reason = judge(steady, n_steps=35, target=0.9).reason
    assert reason == (
        f"validation 0.500 at step 20, at best +0.0031 a step for 15 more: {outlook:.3f} stays below 0.900"
    )


def test_an_untrained_run_within_a_quarter_of_the_noise_of_the_record_stops_and_above_it_not() -> None:
    quarter = 0.25 * math.sqrt(0.42 * 0.58 / 512)
    assert judge(c.untrained(15, 0.42), target=0.42 - 0.9 * quarter).stop
    assert not judge(c.untrained(15, 0.42), target=0.42 - 1.1 * quarter).stop


def test_a_level_with_the_record_is_judged_like_any_other() -> None:
    assert "already beats" not in judge(flat(0.5), at=30, target=max(flat(0.5).val_scores)).reason


def test_the_grant_to_a_young_run_is_thirty_percent_generous() -> None:
    # From .45 the incumbent gained .17 within 25 steps: 1.3 x .17 = .221, on top of about .50.
    path = ((0, 0.45), (20, 0.62), (100, 0.9))
    shown = c.cut(flat(0.5), 15)
    reach = shown.val_scores[-1] + 1.3 * 0.17
    assert not judge(shown, n_steps=40, target=reach - 1e-6, path=path).stop
    assert "gained as much" not in judge(shown, n_steps=40, target=reach + 1e-6, path=path).reason


def test_the_same_run_continues_while_the_incumbent_is_within_reach() -> None:
    assert not judge(flat(), at=30, target=0.53).stop


def test_a_run_that_beats_the_incumbent_continues() -> None:
    assert not judge(flat(), at=30, target=0.4).stop


@pytest.mark.parametrize("at", [5, 10, 15, 20, 25])
def test_a_late_take_off_is_never_stopped(at: int) -> None:
    # Validation .166 at step 15 becomes 1.000 at step 30; the incumbent had .95 by then.
    path = ((0, 0.176), (10, 0.3), (15, 0.95), (30, 0.99))
    assert not judge(c.regh_late(), at=at, n_steps=30, target=0.99, path=path).stop


def test_a_rising_train_reward_keeps_a_run_with_flat_validation_alive() -> None:
    rising = c.curves(
        30,
        start=0.2,
        val={s: 0.2 + 0.01 * c.wave(s, 5) for s in range(5, 31, 5)},
        reward=c.joined(c.line(0.2, 0.2, 18, 0.02), c.line(0.22, 0.5, 12, 0.02)),
        kl=c.line(0.0, 0.2, 30, 0.002),
    )
    decision = judge(rising, at=30)
    assert not decision.stop
    assert "train reward still rises" in decision.reason


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


def test_without_two_validations_nothing_is_judged() -> None:
    one = c.curves(20, reward=c.line(0.5, 0.3, 20, 0.02), start=0.5, val={10: 0.1}, kl=c.line(0.1, 0.2, 20))
    assert "too few" in judge(one, n_steps=20 + 1).reason
    assert not judge(c.curves(10, reward=c.line(0.3, 0.3, 10, 0.05))).stop


def test_without_a_score_to_beat_nothing_is_stopped() -> None:
    request = StopRequest(
        task=c.TASK,
        running=c.node(flat(), node=1, n_steps=40),
        incumbent=c.node(Curves(), node=0),
        incumbent_path=(),
    )
    assert not STOPPER.judge(request).stop


def test_a_run_level_with_the_incumbent_at_the_same_step_continues() -> None:
    path = ((0, 0.4), (10, 0.45), (30, 0.5), (60, 0.9))
    decision = judge(flat(), at=30, n_steps=60, path=path)
    assert not decision.stop
    assert "not behind the incumbent at this step" in decision.reason


def test_a_young_run_may_still_gain_what_the_incumbent_gained_from_its_level() -> None:
    path = ((0, 0.45), (20, 0.62), (40, 0.9))
    assert not judge(flat(0.5), at=15, n_steps=40, path=path).stop
    assert judge(flat(0.5), at=30, n_steps=40, path=path).stop


def test_a_young_run_whose_answers_get_longer_may_be_taking_off() -> None:
    longer = flat(length=c.line(4.0, 8.0, 30, 0.1), kl=c.line(0.01, 0.1, 30, 0.001))
    assert "responses get longer" in judge(longer, at=15, n_steps=40).reason
    assert judge(longer, at=30, n_steps=40).stop


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


# --- the arithmetic behind it -------------------------------------------------------------------------------


def validation(*scores: float, start: float | None) -> Validation:
    """Scores at steps 10, 20, ... with a standard error of 0.02."""
    return Validation(
        steps=tuple(range(10, 10 * len(scores) + 1, 10)),
        scores=scores,
        start=start,
        best=max(scores),
        best_step=10,
        last=scores[-1],
        se=0.02,
        one_item=0.002,
    )


def test_a_flat_line_may_still_rise_by_two_standard_errors_of_its_items() -> None:
    # Steps 0, 10, 20: spread sqrt(200); the slope is known to 0.02 / sqrt(200).
    level, rate = optimistic_pace(validation(0.5, 0.5, start=0.5))
    assert level == pytest.approx(0.5 + 0.04)
    assert rate == pytest.approx(2 * 0.02 / math.sqrt(200))


def test_a_rising_line_goes_on_at_its_slope_and_more() -> None:
    level, rate = optimistic_pace(validation(0.5, 0.6, start=0.4))
    assert level == pytest.approx(0.64)
    assert rate == pytest.approx(0.01 + 2 * 0.02 / math.sqrt(200))


def test_scatter_around_the_line_widens_the_outlook() -> None:
    # Residuals 1/30, -2/30, 1/30 with one degree of freedom: noise sqrt(6)/30, slope error noise / sqrt(200).
    _, rate = optimistic_pace(validation(0.5, 0.7, start=0.5))
    assert rate == pytest.approx(0.01 + 2 * math.sqrt(6) / 30 / math.sqrt(200))


def test_the_latest_rise_counts_where_it_is_steeper_and_a_fall_never_does() -> None:
    late = validation(0.50, 0.48, 0.46, 0.44, 0.42, 0.40, 0.38, 0.58, start=0.52)
    assert optimistic_pace(late)[1] == pytest.approx(0.02)
    falling = validation(0.9, 0.5, 0.1, start=1.3)
    assert optimistic_pace(falling) == (pytest.approx(0.5 + 0.04), 0.0)


def test_without_a_start_score_the_line_begins_at_the_first_validation() -> None:
    # Steps 10, 20: spread sqrt(50).
    _, rate = optimistic_pace(validation(0.5, 0.5, start=None))
    assert rate == pytest.approx(2 * 0.02 / math.sqrt(50))


def test_the_incumbent_is_compared_at_its_last_score_so_far_and_nowhere_beyond_its_path() -> None:
    path = ((0, 0.4), (10, 0.5), (20, 0.6))
    assert [incumbent_at(path, step) for step in (0, 9, 10, 20, 21)] == [0.4, 0.4, 0.5, 0.6, None]
    assert incumbent_at(path[1:], 5) is None
    assert incumbent_at((), 5) is None


def test_the_incumbents_gain_starts_at_or_below_a_level_and_fits_into_the_steps() -> None:
    path = ((0, 0.4), (10, 0.45), (20, 0.8), (30, 0.9))
    assert incumbent_gain(path, 0.4, 10) == pytest.approx(0.05)
    assert incumbent_gain(path, 0.45, 10) == pytest.approx(0.35)
    assert incumbent_gain(path, 0.45, 30) == pytest.approx(0.5)
    assert incumbent_gain(path, 0.3, 30) == 0.0


@pytest.mark.parametrize(
    ("length_end", "kl_end", "reward_end", "herald"),
    [(8.0, 0.1, 0.5, True), (4.2, 0.1, 0.5, False), (8.0, 0.0, 0.5, False), (8.0, 0.1, 0.2, False)],
)
def test_longer_answers_herald_a_take_off_only_with_a_rising_kl_and_a_reward_that_holds(
    length_end: float, kl_end: float, reward_end: float, herald: bool
) -> None:
    found = c.curves(
        15,
        reward=c.line(0.5, reward_end, 15, 0.02),
        length=c.line(4.0, length_end, 15, 0.01),
        kl=c.line(0.0, kl_end, 15, 0.002),
    )
    assert bool(grows_longer(observe(found, c.TINY))) == herald


def test_at_least_two_validations_are_needed_and_two_are_enough() -> None:
    assert "too few" in judge(flat(), at=9, n_steps=24).reason
    assert judge(flat(), at=10, n_steps=24).stop


def test_a_run_whose_last_validation_is_near_is_left_to_it() -> None:
    # Validated every 5 steps: with 5 left there is one more check, with 6 the run is judged.
    assert "last validation is 5 steps away" in judge(flat(), at=25, n_steps=30).reason
    assert judge(flat(), at=25, n_steps=31).stop


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


def test_over_many_runs_few_winners_are_stopped_and_many_losers() -> None:
    rng = random.Random(7)
    stopped: dict[bool, list[bool]] = {True: [], False: []}
    for _ in range(200):
        base = rng.uniform(0.1, 0.5)
        best = max((random_run(rng, base) for _ in range(3)), key=lambda run: max(run.val_scores))
        path = ((0, best.start_score or 0.0), *zip(best.val_steps, best.val_scores, strict=True))
        run = random_run(rng, base)
        target = max(best.val_scores)
        ended = any(judge(run, at=at, n_steps=30, target=target, path=path).stop for at in (10, 15, 20, 25))
        stopped[max(run.val_scores) > target].append(ended)
    # The gate that compares with the incumbent's final score alone stopped nearly all of its winners.
    assert sum(stopped[True]) <= 0.1 * len(stopped[True])
    assert sum(stopped[False]) >= 0.4 * len(stopped[False])


def test_the_configuration_of_the_run_is_no_evidence() -> None:
    shown = c.node(flat(), hp.complete(c.TINY, {"lr": 0}), node=1, n_steps=40)
    request = StopRequest(
        task=c.TASK, running=shown, incumbent=c.node(Curves(), node=0, score=0.53), incumbent_path=()
    )
    assert not STOPPER.judge(request).stop
