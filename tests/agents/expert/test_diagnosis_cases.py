"""Which pattern is seen, and which is not: clear cases, away from thresholds, which may be tuned."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from llmzero_ray import hyperparameters as hp
from llmzero_ray.dynamics.diagnosis import Finding, diagnose
from llmzero_ray.dynamics.features import observe
from llmzero_ray.records import Hyperparameters
from llmzero_ray.records.metrics import Curves
from tests.agents import curves as c

FLAT = [0.5 + 0.03 * c.wave(i) for i in range(20)]
DRIFT = c.line(0.2, 0.25, 20)
"""A KL that shows the policy moves, far from the base model and from a spike."""
SE = (0.5 * 0.5 / 500) ** 0.5
MARGIN = 1.5 * SE


def kinds(
    found: Curves, hyperparameters: Hyperparameters = c.TINY, before: Hyperparameters | None = None
) -> list[str]:
    return [finding.kind for finding in everything(found, hyperparameters, before)]


def everything(
    found: Curves, hyperparameters: Hyperparameters = c.TINY, before: Hyperparameters | None = None
) -> tuple[Finding, ...]:
    on = c.node(found, hyperparameters)
    return diagnose(
        observe(found, hyperparameters, n_val=500), on, None if before is None else c.node(found, before)
    )


def run(**more: Any) -> Curves:
    """Twenty steps at a reward of about .5, without validation unless one is given."""
    return c.curves(20, **{"reward": FLAT, "kl": DRIFT, **more})


def test_a_few_steps_or_a_validation_are_enough_to_be_judged() -> None:
    assert kinds(c.curves(2, reward=[0.1, 0.2])) == ["unknown"]
    assert kinds(c.curves(9, reward=[0.1, 0.2, 0.1] * 3)) != ["unknown"]
    assert kinds(c.curves(2, reward=[0.1, 0.2], start=0.1, val={2: 0.2})) != ["unknown"]


SPIKE = c.joined(c.line(0.02, 0.022, 9), [0.2] * 11)


@pytest.mark.parametrize(("longer", "expected"), [(1.0, False), (1.6, True)])
def test_growing_answers_are_part_of_a_kl_spike(longer: float, expected: bool) -> None:
    length = c.joined([100.0] * 9, [100.0 * longer] * 11)
    (first, *_) = everything(run(kl=SPIKE, length=length))
    assert first.kind == "kl_spike"
    assert ("responses got longer" in first.summary) == expected
    assert any("response_length" in fact for fact in first.evidence) == expected


@pytest.mark.parametrize(
    ("val", "spiked"),
    [
        ({10: 0.50, 20: 0.50}, True),
        ({10: 0.60}, True),  # measured at the onset: not an effect of what came after
        ({20: 0.60}, False),
    ],
)
def test_a_kl_spike_is_forgiven_when_validation_gains_after_it(val: dict[int, float], spiked: bool) -> None:
    assert ("kl_spike" in kinds(run(kl=SPIKE, start=0.50, val=val))) == spiked


def test_a_kl_spike_is_forgiven_when_the_reward_rises_after_it() -> None:
    rising = c.joined([0.5] * 9, c.line(0.5, 0.7, 11, 0.01))
    assert "kl_spike" not in kinds(run(kl=SPIKE, reward=rising))


def narrowing(to: float) -> list[float]:
    """Entropy 1.0, falling in one step at step 8."""
    return [1.0] * 7 + [to] * 13


@pytest.mark.parametrize(("to", "collapsed"), [(0.15, True), (0.8, False)])
def test_entropy_is_low_far_below_its_first_level(to: float, collapsed: bool) -> None:
    found = run(entropy=narrowing(to), start=0.5, val={20: 0.5})
    assert ("entropy_collapse" in kinds(found)) == collapsed


def test_an_entropy_that_was_always_zero_has_not_fallen() -> None:
    assert "entropy_collapse" not in kinds(run(entropy=[0.0] * 20, start=0.5, val={20: 0.5}))


def test_an_entropy_collapse_tells_how_far_and_since_when() -> None:
    (first, *_) = everything(run(entropy=narrowing(0.2), start=0.5, val={20: 0.5}))
    assert first.summary == "Entropy fell to 20% of its first level without a gain in reward."
    assert first.since == 8  # the first step below half


def test_an_entropy_of_zero_throughout_has_not_fallen() -> None:
    assert "entropy_collapse" not in kinds(run(entropy=[0.0] * 20, start=0.5, val={20: 0.5}))


@pytest.mark.parametrize(("gain", "collapsed"), [(0.0, True), (4 * MARGIN, False)])
def test_low_entropy_is_forgiven_when_validation_gained(gain: float, collapsed: bool) -> None:
    found = run(entropy=narrowing(0.2), start=0.5, val={20: 0.5 + gain})
    assert ("entropy_collapse" in kinds(found)) == collapsed


def test_low_entropy_is_forgiven_at_a_high_reward() -> None:
    sure = [0.93 + 0.02 * c.wave(i) for i in range(20)]
    assert "entropy_collapse" not in kinds(run(reward=sure, entropy=narrowing(0.2), start=0.9, val={20: 0.9}))


@pytest.mark.parametrize(("share", "truncated"), [(0.3, True), (0.0, False)])
def test_many_cut_off_answers_make_the_cap_a_bottleneck(share: float, truncated: bool) -> None:
    found = run(longest=[24.0] * 20, at_longest=[share] * 20)
    assert ("truncated" in kinds(found)) == truncated


@pytest.mark.parametrize(
    "share",
    [
        c.line(0.3, 0.3, 20, 0.03),
        c.line(0.005, 0.005, 20),
        c.line(0.99, 0.99, 20),
        c.joined(c.line(0.55, 0.6, 8, 0.005), c.line(0.59, 0.51, 12, 0.004)),
        c.joined(c.line(0.3, 0.6, 8, 0.005), c.line(0.3, 0.05, 12, 0.004)),
    ],
)
@pytest.mark.parametrize("entropy", [[0.6] * 20, c.line(0.6, 0.1, 20)])
def test_a_phase_has_the_same_findings_whatever_two_values_its_reward_pays(
    share: list[float], entropy: list[float]
) -> None:
    found = run(reward=share, entropy=entropy, start=0.3, val={10: 0.3, 20: 0.3})
    assert kinds(c.repaid(found)) == kinds(c.repaid(found, 0.0, 10.0)) == kinds(found)


@pytest.mark.parametrize(
    ("level", "val", "empty"), [(0.99, 0.9, True), (0.9, 0.9, False), (0.99, 0.99, False)]
)
def test_groups_hold_no_contrast_near_one_unless_validation_is_as_good(
    level: float, val: float, empty: bool
) -> None:
    assert ("no_contrast" in kinds(run(reward=[level] * 20, start=val, val={20: val}))) == empty


@pytest.mark.parametrize(("spread", "empty"), [(0.0, True), (0.5, False)])
def test_advantages_of_zero_are_no_contrast(spread: float, empty: bool) -> None:
    found = run(adv_max=[spread] * 20, adv_min=[0.0] * 20, start=0.5, val={20: 0.5})
    assert ("no_contrast" in kinds(found)) == empty


@pytest.mark.parametrize(("level", "none"), [(0.0, True), (0.1, False)])
def test_a_mean_reward_near_zero_holds_nothing_to_learn_from(level: float, none: bool) -> None:
    assert ("no_reward" in kinds(run(reward=[level] * 20, start=0.0, val={20: 0.0}))) == none


RISING = c.line(0.4, 0.8, 20, 0.01)


@pytest.mark.parametrize(("drop", "kind"), [(4 * MARGIN, "overfit"), (MARGIN, "take_off")])
def test_a_clear_fall_under_a_rising_reward_is_overfitting(drop: float, kind: str) -> None:
    (first, *_) = everything(run(reward=RISING, start=0.45, val={5: 0.5, 20: 0.5 - drop}))
    assert first.kind == kind
    assert first.since == (6 if kind == "overfit" else None)


def test_an_overshoot_needs_a_clear_fall_after_the_best_step() -> None:
    def overshot(last: float) -> tuple[Finding, ...]:
        return everything(run(start=0.45, val={10: 0.5, 20: last}))

    (first, *_) = overshot(0.5 - 4 * MARGIN)
    assert (first.kind, first.since) == ("noisy", 11)
    assert first.summary.startswith("Overshot: validation fell from 0.500 at step 10")
    assert "noisy" not in [finding.kind for finding in overshot(0.5)]


def test_swings_are_reported_with_their_size() -> None:
    (first, *_) = everything(run(start=0.4, val={5: 0.5, 10: 0.4, 15: 0.5, 20: 0.4}))
    assert first.kind == "noisy"
    assert f"by more than {2 * MARGIN:.3f} between checks" in first.summary


TIGHTER: list[dict[str, float]] = [
    {"kl": 0.002},
    {"clip_high": 0.2},
    {"temperature": 0.9},
    {"lr": 2.5e-5, "kl": 0.002},  # the KL pulls back to the base model
]
LOOSER: list[dict[str, float]] = [{"lr": 1e-4}, {"kl": 0.0005}, {"clip_high": 0.4}, {"temperature": 1.1}]


@pytest.mark.parametrize("spike", [False, True])
@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        *((change, "too_conservative") for change in TIGHTER),
        *((change, "too_aggressive") for change in LOOSER),
        *((change, "too_fast") for change in ({"lr": 2.5e-5}, {"lr": 2.5e-5, "temperature": 0.9})),
        ({"lr": 4e-5, "kl": 0.0005}, "too_fast"),  # one each, and no pull
        ({"lr": 4e-5, "kl": 0.0005, "clip_high": 0.4}, "too_aggressive"),
        ({"lr": 4.5e-5, "temperature": 1.4}, "regressed"),
        ({"lr": 1e-4, "kl": 0.002}, "regressed"),  # one each
        ({"lr": 8.5e-5, "kl": 0.0005}, "too_aggressive"),
        ({"n": 16}, "regressed"),
        ({}, "declining"),
    ],
)
def test_a_regression_is_read_by_the_count_of_what_was_loosened(
    changes: dict[str, float], kind: str, spike: bool
) -> None:
    on = hp.complete(c.PRACTITIONER, changes)
    found = run(start=0.5, val={20: 0.4}, kl=SPIKE if spike else DRIFT)
    assert kind in kinds(found, on, c.PRACTITIONER)


def test_clip_ranges_that_do_not_act_loosen_nothing() -> None:
    wider = hp.complete(c.TINY, {"clip_high": 0.4})
    assert "regressed" in kinds(run(start=0.5, val={20: 0.4}), wider, c.TINY)


@pytest.mark.parametrize(
    ("last", "paired", "declines"),
    [
        (0.45, 0.012, True),  # four errors of the rows
        (0.45, None, True),  # 2.2 errors of one score
        (0.47, 0.012, False),  # 2.5 errors of the rows, but another run may differ by more
        (0.50, 0.012, False),
    ],
)
def test_a_decline_exceeds_the_error_of_the_rows_and_what_another_run_may_differ_by(
    last: float, paired: float | None, declines: bool
) -> None:
    found = run(start=0.5, val={20: last})
    if paired is not None:
        found = dataclasses.replace(found, val_gains=((last - 0.5, paired),))
    assert ("declining" in kinds(found)) == declines


@pytest.mark.parametrize(("late", "kind"), [(0.3, "plateau_weak"), (0.9, "plateau_noisy")])
def test_gradients_fade_far_below_their_first_level(late: float, kind: str) -> None:
    assert kinds(run(grad=c.joined([1.0] * 10, [late] * 10), start=0.5, val={20: 0.5})) == [kind]


@pytest.mark.parametrize(("share", "kind"), [(0.0005, "plateau_weak"), (0.05, "plateau_noisy")])
def test_updates_are_weak_when_hardly_any_token_is_clipped(share: float, kind: str) -> None:
    assert kinds(run(clipfrac=[share] * 20, start=0.5, val={20: 0.5}), c.PRACTITIONER) == [kind]


@pytest.mark.parametrize(
    ("kl", "kind"),
    [
        (c.line(0.0, 0.04, 20), "warming_up"),
        (c.line(0.0, 0.15, 20), "plateau_noisy"),  # not close to the base model any more
        ([0.02 + 0.001 * c.wave(i) for i in range(20)], "plateau_noisy"),  # not rising
    ],
)
def test_a_flat_run_warms_up_while_its_kl_rises_from_the_base_model(kl: list[float], kind: str) -> None:
    assert kinds(run(kl=kl, start=0.5, val={20: 0.5})) == [kind]


def test_a_run_whose_reward_falls_does_not_warm_up() -> None:
    falling = c.line(0.6, 0.4, 20, 0.01)
    assert kinds(run(kl=c.line(0.0, 0.04, 20), reward=falling, start=0.5, val={20: 0.5})) == ["plateau_noisy"]


@pytest.mark.parametrize(
    ("half", "end", "entropy", "kind"),
    [
        (0.55, 0.66, 0.9, "improving"),  # .15, then .11: more than half the pace
        (0.55, 0.66, 0.3, "converging"),  # the same, but entropy says it settles
        (0.55, 0.57, 0.9, "converging"),  # .15, then .02
        (0.83, 0.90, 0.9, "converging"),  # .43, then .07
        (0.60, 0.90, 0.9, "improving"),  # a high level is not a reason by itself
    ],
)
def test_convergence_is_a_lost_pace_whatever_the_level(
    half: float, end: float, entropy: float, kind: str
) -> None:
    found = run(
        reward=RISING, entropy=c.joined([1.0] * 10, [entropy] * 10), start=0.40, val={10: half, 20: end}
    )
    assert kinds(found) == [kind]


def test_what_is_left_to_gain_counts_from_chance() -> None:
    found = run(reward=[0.97] * 20, start=0.98, val={20: 0.98})
    dynamics = observe(found, c.TINY, n_val=500)
    by_chance = observe(found, c.TINY, n_val=500, chance=0.5)
    on = c.node(found, c.TINY)
    assert [one.kind for one in diagnose(dynamics, on, None)] == ["solved"]
    assert [one.kind for one in diagnose(by_chance, on, None)] != ["solved"]


def test_a_flat_line_near_one_is_solved_not_a_plateau() -> None:
    assert kinds(run(start=0.99, val={20: 0.99})) == ["solved"]
    assert kinds(run(start=0.9, val={20: 0.9})) == ["plateau_noisy"]


@pytest.mark.parametrize(("end", "kind"), [(0.448, "slow"), (0.5, "improving")])
def test_a_small_gain_of_what_is_left_is_slow(end: float, kind: str) -> None:
    assert kinds(run(reward=RISING, start=0.40, val={10: 0.40, 20: end})) == [kind]


def test_a_small_gain_that_is_clear_is_steady_not_slow() -> None:
    """Where most answers are wrong runs differ by less: .05 is a clear gain at .05 and may be none at .5."""
    low = run(reward=RISING, start=0.05, val={10: 0.07, 20: 0.11})
    high = run(reward=RISING, start=0.40, val={10: 0.41, 20: 0.45})
    assert (kinds(low), kinds(high)) == (["steady"], ["slow"])


def after(phase: Curves, found: Curves, rate: float = 1e-3) -> str:
    """What a phase at `rate` is, that went on after another one at 1e-3."""
    given = hp.complete(c.TINY, {"lr": rate})
    on, before = c.node(found, given, node=1), c.node(phase, c.TINY)
    return diagnose(observe(found, given, n_val=500), on, before)[0].kind


def test_a_small_gain_after_a_phase_that_gained_faster_is_convergence() -> None:
    little = run(reward=RISING, start=0.40, val={10: 0.41, 20: 0.445})
    fast = run(reward=RISING, start=0.20, val={10: 0.30, 20: 0.40})
    alike = run(reward=RISING, start=0.35, val={20: 0.40})
    no_start = run(reward=RISING, val={20: 0.40})
    assert [after(phase, little) for phase in (fast, alike, no_start)] == ["converging", "slow", "slow"]


def test_a_gain_under_a_rate_that_the_phase_raised_is_told_apart() -> None:
    before = run(reward=RISING, start=0.40, val={20: 0.45})
    slow = run(reward=RISING, start=0.45, val={20: 0.49})
    fast = run(reward=RISING, start=0.45, val={20: 0.60})
    assert [after(before, found, 2e-3) for found in (slow, fast)] == ["raised", "raised"]
    assert [after(before, found, 5e-4) for found in (slow, fast)] == ["slow", "improving"]


def test_a_steep_gain_in_the_later_half_is_improving_and_in_the_earlier_one_converging() -> None:
    assert kinds(run(reward=RISING, start=0.50, val={10: 0.55, 20: 0.70})) == ["improving"]
    assert kinds(run(reward=RISING, start=0.50, val={10: 0.65, 20: 0.70})) == ["converging"]


@pytest.mark.parametrize("entropy", [0.9, 0.3])
def test_a_single_gain_has_no_pace_and_is_improving(entropy: float) -> None:
    """Phases are often as long as the time between two validations: one gain says nothing of a lost pace."""
    found = run(reward=RISING, entropy=c.joined([1.0] * 10, [entropy] * 10), start=0.46, val={20: 0.58})
    assert kinds(found) == ["improving"]


def test_three_gains_are_halved_in_their_middle() -> None:
    steady = run(reward=RISING, start=0.40, val={6: 0.50, 12: 0.60, 18: 0.70})
    lost = run(reward=RISING, start=0.40, val={6: 0.60, 12: 0.68, 18: 0.70})
    assert (kinds(steady), kinds(lost)) == (["improving"], ["converging"])
