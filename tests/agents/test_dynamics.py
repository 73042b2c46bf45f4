"""Features of curves: hand-made series with numbers that can be worked out on paper."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from llmzero_ray.dynamics.features import change_point, clip_is_inert, find_spike, fit, observe, significance
from llmzero_ray.records.metrics import Curves, Series, accuracy_error
from tests.agents import curves as c


def series(*values: float) -> Series:
    return Series("x", tuple(range(1, len(values) + 1)), values)


def test_a_line_is_recovered_with_its_slope_and_change() -> None:
    trend = fit(series(1.0, 3.0, 5.0, 7.0))
    assert trend.slope == pytest.approx(2.0)
    assert trend.change == pytest.approx(6.0)
    assert trend.noise == pytest.approx(0.0)
    assert trend.rising
    assert not trend.falling


def test_noise_and_standard_error_are_those_of_the_residuals() -> None:
    # Residuals of 0, 1, 0, 1 around the line 0.2 + 0.2 (x - 1): sum of squares 0.8, two degrees of freedom.
    trend = fit(series(0.0, 1.0, 0.0, 1.0))
    assert trend.slope == pytest.approx(0.2)
    assert trend.noise == pytest.approx(math.sqrt(0.8 / 2))
    assert trend.slope_se == pytest.approx(math.sqrt(0.8 / 2) / math.sqrt(5.0))
    assert not trend.rising


@pytest.mark.parametrize("values", [(), (1.0,), (2.0, 2.0, 2.0), (0.1, 0.1, 0.1, 0.1)])
def test_constant_and_tiny_series_have_no_trend(values: tuple[float, ...]) -> None:
    trend = fit(series(*values))
    assert trend.slope == 0
    assert trend.t == 0


def test_two_points_have_a_slope_but_are_never_significant() -> None:
    trend = fit(series(0.0, 1.0))
    assert trend.slope == 1.0
    assert not trend.rising


def test_few_points_need_a_steeper_line_to_be_believed() -> None:
    # Near Student's quantiles for one chance in fifty: 5.0, 3.1 and 2.5 standard errors.
    assert [round(significance(n), 1) for n in (3, 10, 40)] == [5.0, 3.1, 2.5]
    bumpy = (0.0, 1.0, 1.0, 0.0, 2.0)  # t = 1.3
    assert not fit(series(*bumpy)).rising
    assert fit(series(*(value + step for step, value in enumerate(line_of(40))))).rising


def line_of(n: int) -> list[float]:
    return [c.wave(i) for i in range(n)]


QUIET = (0.010, 0.012, 0.011, 0.010, 0.013)


def test_a_spike_is_measured_against_the_settled_level_before_it() -> None:
    spike = find_spike(series(*QUIET, 0.03, 0.16, 0.17, 0.15), floor=0.001)
    assert spike is not None
    assert (spike.onset, spike.peak_step, spike.peak) == (7, 8, 0.17)
    assert spike.before == 0.011
    assert spike.factor == pytest.approx(0.17 / 0.011)


def test_five_times_the_level_is_a_spike_and_less_is_not() -> None:
    assert find_spike(series(*QUIET, 0.011, 0.055, 0.055), floor=0.001) is not None
    assert find_spike(series(*QUIET, 0.011, 0.054, 0.054), floor=0.001) is None


def test_a_single_high_point_is_no_spike() -> None:
    assert find_spike(series(*QUIET, 0.011, 0.5, 0.011, 0.011), floor=0.001) is None


def test_a_level_below_the_floor_counts_as_the_floor() -> None:
    tiny = tuple(value / 100 for value in QUIET)
    assert find_spike(series(*tiny, 0.0001, 0.04, 0.04), floor=0.01) is None
    assert find_spike(series(*tiny, 0.0001, 0.05, 0.05), floor=0.01) is not None


def test_a_run_that_leaves_its_reference_does_not_spike() -> None:
    quick = series(0.0, 0.001, 0.01, 0.04, 0.1, 0.18, 0.25, 0.3, 0.34, 0.37, 0.39, 0.4)
    assert find_spike(quick, floor=0.01) is None
    assert find_spike(series(*(0.02 * i for i in range(1, 30))), floor=0.01) is None


def test_a_change_of_level_is_found_at_its_first_step() -> None:
    assert change_point(series(0.1, 0.12, 0.1, 0.11, 0.5, 0.52, 0.51, 0.5)) == 5
    assert change_point(series(0.1, 0.5, 0.1, 0.5, 0.1, 0.5, 0.1, 0.5)) is None
    assert change_point(series(0.1, 0.1, 0.5)) is None


def test_levels_are_means_of_the_first_and_last_fifth() -> None:
    found = series(*(float(i) for i in range(1, 21)))
    assert found.window == 4
    assert (found.first, found.last) == (2.5, 18.5)
    assert math.isnan(series().last)


def test_values_that_are_missing_or_not_finite_are_skipped() -> None:
    found = observe(
        Curves(steps=(1, 2, 3, 4), metrics={"critic/score/mean": (0.1, None, math.nan, 0.4)}), c.TINY
    )
    assert found.reward.steps == (1, 4)
    assert found.reward.values == (0.1, 0.4)


def test_the_reward_after_kl_stands_in_where_the_score_is_not_logged() -> None:
    found = observe(Curves(steps=(1, 2), metrics={"critic/rewards/mean": (0.1, 0.2)}), c.TINY)
    assert found.reward.name == "critic/rewards/mean"


@pytest.mark.parametrize(("wrong", "right"), [(-1.0, 1.0), (0.0, 10.0), (1.0, 5.0)])
def test_rewards_outside_0_and_1_have_levels_between_the_extremes_that_were_logged(
    wrong: float, right: float
) -> None:
    paid = c.curves(3, reward=[0.0, 0.25, 1.0])
    assert observe(paid, c.TINY).reward_level.values == (0.0, 0.25, 1.0)
    found = observe(c.repaid(paid, wrong, right), c.TINY)
    assert found.reward_level.values == (0.0, 0.25, 1.0)
    assert found.reward.values[-1] == right
    assert found.sampled is None


@pytest.mark.parametrize(("reward", "level"), [(-1.0, 0.0), (5.0, 1.0)])
def test_where_all_answers_had_one_reward_so_far_none_or_all_were_rewarded(
    reward: float, level: float
) -> None:
    found = c.repaid(c.curves(3, reward=[0.5] * 3), reward, reward)
    assert observe(found, c.TINY).reward_level.values == (level,) * 3


@pytest.mark.parametrize("penalty", [-1.0, -10.0])
def test_a_single_penalty_does_not_stretch_the_levels(penalty: float) -> None:
    paid = c.curves(5, reward=[0.5, 0.6, 0.6, 0.1, 0.1])
    extremes = {"critic/score/min": (penalty, 0.0, 0.0, 0.0, 0.0), "critic/score/max": (1.0,) * 5}
    found = replace(paid, metrics={**paid.metrics, **extremes})
    assert observe(found, c.TINY).reward_level.values == (0.5, 0.6, 0.6, 0.1, 0.1)


def test_a_step_without_a_right_answer_is_not_the_highest_level() -> None:
    paid = c.curves(3, reward=[-0.05] * 3)
    extremes = {"critic/score/min": (-1.0,) * 3, "critic/score/max": (0.0,) * 3}
    found = observe(replace(paid, metrics={**paid.metrics, **extremes}), c.TINY)
    assert found.reward_level.last < 0.5


def test_rewards_within_0_and_1_are_their_own_levels() -> None:
    found = observe(c.repaid(c.curves(3, reward=[0.0, 0.3, 1.0]), 0.1, 0.7), c.TINY)
    assert found.reward_level == found.reward
    assert found.sampled == found.reward.last


def test_responses_at_the_batch_maximum_count_as_truncated_only_at_the_cap() -> None:
    # The small model's cap is 24; VeRL's share counts responses as long as the longest of the batch.
    found = observe(
        c.curves(3, reward=[0.5] * 3, longest=[16.0, 24.0, 24.0], at_longest=[0.6, 0.3, 0.4]), c.TINY
    )
    assert found.truncated.values == (0.0, 0.3, 0.4)


def test_one_update_per_step_makes_clip_ranges_inert() -> None:
    assert clip_is_inert(c.TINY)
    assert not clip_is_inert(c.PRACTITIONER)
    assert not clip_is_inert({**c.TINY, "actor_rollout_ref.actor.ppo_epochs": 2})


def test_the_standard_error_of_a_score_is_binomial_and_never_zero() -> None:
    assert accuracy_error(0.5, 100) == pytest.approx(0.05)
    assert accuracy_error(0.2, 400) == pytest.approx(0.02)
    assert accuracy_error(1.0, 100) == pytest.approx(math.sqrt(0.01 * 0.99 / 100))
    assert accuracy_error(0.0, 100) == pytest.approx(accuracy_error(1.0, 100))
    assert accuracy_error(0.0, 1) == accuracy_error(1.0, 1) == 0.5


def test_a_validation_knows_best_last_gain_and_margin() -> None:
    found = observe(c.csum_steady(), c.TINY, n_val=512).validation
    assert found is not None
    assert (found.start, found.best, found.best_step, found.last) == (0.416, 0.824, 20, 0.824)
    assert found.se == pytest.approx(math.sqrt(0.824 * 0.176 / 512))
    assert found.margin == pytest.approx(1.5 * found.se)
    assert found.gain == pytest.approx(0.408)
    # Points .416 .635 .824: the later half is .824, the earlier .416.
    assert found.recent_gain == pytest.approx(0.408)
    assert found.last_gain == pytest.approx(0.824 - 0.635)
    assert found.swings == 0


def test_swings_count_reversals_beyond_the_noise() -> None:
    swinging = observe(c.csum_swinging(), c.TINY).validation
    assert swinging is not None
    assert swinging.swings == 2


def test_a_phase_without_metrics_is_described_without_failing() -> None:
    found = observe(Curves(), c.TINY)
    assert (found.n_steps, found.last_step, found.half, found.validation) == (0, 0, 0, None)
