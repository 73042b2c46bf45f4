"""The rules on recorded curves: when they fire, and when they must not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from llmzero_ray.config import StopperSettings
from llmzero_ray.hyperparameters.verl_keys import LR
from llmzero_ray.records import MetricPoint
from llmzero_ray.records.metrics import Curves
from llmzero_ray.stopping.phase_monitor import PhaseMonitor
from llmzero_ray.stopping.policy import StoppingPolicy
from llmzero_ray.stopping.rules import Collapse, NonFinite, StopRule, Unmoved, make_rules
from tests.agents import curves as c

HEALTHY: list[Callable[[], Curves]] = [
    *(partial(c.recorded, number) for number in range(6)),
    c.csum_steady,
    c.csum_swinging,
    c.reg_success,
    c.regh_late,
    c.regh_capped,
    c.untrained,
    c.chem_kl_spike,
    c.chem_truncated,
    c.paper_plateau,
    c.ssmr_regressed,
    c.wildsci_entropy,
]


def why(rule: StopRule, found: Curves) -> str | None:
    """The rule's reason to end the phase with these curves, which is planned for 60 steps."""
    return rule.check(c.node(found, status="running", n_steps=60))


def first_stop(rule: StopRule, found: Curves) -> int | None:
    """The step at which a rule that is asked after every step ends the phase."""
    return next((n for n in range(1, len(found.steps) + 1) if why(rule, c.cut(found, n)) is not None), None)


@pytest.mark.parametrize("make", HEALTHY)
def test_no_rule_ends_a_run_that_did_not_collapse(make: Callable[[], Curves]) -> None:
    assert [first_stop(rule, make()) for rule in make_rules(StopperSettings()).values()] == [None] * 3


def test_a_collapse_is_ended_within_three_steps_of_the_fall() -> None:
    # Reward falls from step 16 on, while KL goes .16 -> .36.
    assert first_stop(Collapse(), c.sort_collapse()) == 18
    decision = StoppingPolicy(StopperSettings()).check_rules(c.node(c.sort_collapse()))
    assert decision is not None
    assert decision.rule == "collapse"
    assert not decision.hard
    assert "actor/kl_loss rose" in decision.reason


def first_stop_of_a_monitor(found: Curves) -> int | None:
    """The same for all rules, with the series that a running phase shows them."""
    points = [
        MetricPoint(
            node=0,
            attempt=1,
            step=step,
            global_step=step,
            wall_s=0.0,
            metrics={
                name: value for name, values in found.metrics.items() if (value := values[n]) is not None
            },
        )
        for n, step in enumerate(found.steps)
    ]
    phase = c.node(Curves(), n_steps=60, status="pending")
    verdict = PhaseMonitor(StoppingPolicy(StopperSettings()), phase).add(points)
    return None if verdict is None else verdict.running.curves.steps[-1]


def test_rewards_of_minus_1_and_1_collapse_where_those_of_0_and_1_do() -> None:
    dip = c.joined(c.line(0.55, 0.6, 8, 0.005), c.line(0.59, 0.505, 12, 0.004))
    harder = c.curves(20, reward=dip, kl=c.joined([0.012] * 8, c.line(0.02, 0.085, 12)))
    for found, step in ((harder, None), (c.sort_collapse(), 18)):
        assert first_stop_of_a_monitor(found) == first_stop_of_a_monitor(c.repaid(found)) == step


def fallen(kl_after: float, reward_after: float) -> Curves:
    """Ten good steps, then five at another level."""
    return c.curves(
        15,
        reward=c.joined([0.5] * 10, [reward_after] * 5),
        kl=c.joined([0.02] * 10, [kl_after] * 5),
    )


@pytest.mark.parametrize(
    ("kl_after", "reward_after", "ends"),
    [
        (0.10, 0.10, True),
        (0.06, 0.20, True),  # exactly three times, exactly 60 % lost
        (0.05, 0.10, False),  # the KL stayed below three times its median
        (0.10, 0.25, False),  # only half of the reward was lost
        (0.10, 0.90, False),  # the reward rose
    ],
)
def test_a_collapse_needs_both_the_spike_and_the_fall(
    kl_after: float, reward_after: float, ends: bool
) -> None:
    assert (why(Collapse(), fallen(kl_after, reward_after)) is not None) == ends


def test_a_collapse_needs_more_than_twice_its_window_of_steps() -> None:
    # Window 3: three steps at the old level, three at the new one, and one between.
    def short(before: int) -> Curves:
        n = before + 3
        return c.curves(
            n, reward=c.joined([0.5] * before, [0.05] * 3), kl=c.joined([0.02] * before, [0.5] * 3)
        )

    assert why(Collapse(), short(3)) is None
    reason = why(Collapse(), short(4))
    assert reason is not None
    assert reason == "actor/kl_loss rose x25.0 and the reward lost 90% of its level at step 3"


def test_the_level_before_the_fall_is_a_mean_of_the_window() -> None:
    # Means of three: .3 at step 3, .5 at step 5; the last three lie at .18 at most: 64 % lost.
    reward = [0.2, 0.3, 0.4, 0.5, 0.6, 0.4, 0.18, 0.1, 0.1]
    reason = why(Collapse(), c.curves(9, reward=reward, kl=c.joined([0.02] * 6, [0.5] * 3)))
    assert reason is not None
    assert "lost 64% of its level at step 5" in reason


def test_a_kl_that_was_not_logged_before_the_fall_is_no_evidence() -> None:
    late = Curves(
        steps=tuple(range(1, 16)),
        metrics={
            "critic/score/mean": (0.5,) * 10 + (0.1,) * 5,
            "actor/kl_loss": (None,) * 10 + (0.5,) * 5,
        },
    )
    assert why(Collapse(), late) is None
    early = Curves(
        steps=late.steps,
        metrics={**late.metrics, "actor/kl_loss": (0.5,) * 10 + (None,) * 5},
    )
    assert why(Collapse(), early) is None


def test_a_step_that_was_not_finite_is_left_out_of_levels() -> None:
    found = fallen(0.1, 0.1)
    gap = {name: (*values[:5], math.nan, *values[6:]) for name, values in found.metrics.items()}
    assert why(Collapse(), Curves(steps=found.steps, metrics=gap)) is not None


def test_a_fall_within_the_scatter_of_few_prompts_is_no_collapse() -> None:
    # Moves of .2 between steps: a scatter of .21, so that a fall from .35 to .05 proves nothing.
    scattered = [0.25, 0.45, 0.25, 0.45, 0.25, 0.45, 0.25, 0.05, 0.05, 0.05]
    steady = [0.34, 0.36, 0.34, 0.36, 0.34, 0.36, 0.34, 0.05, 0.05, 0.05]
    kl = c.joined([0.02] * 7, [0.5] * 3)
    assert why(Collapse(), c.curves(10, reward=scattered, kl=kl)) is None
    assert why(Collapse(), c.curves(10, reward=steady, kl=kl)) is not None


def test_one_good_batch_after_the_fall_takes_the_verdict_back() -> None:
    found = fallen(0.1, 0.1)
    recovered = c.curves(
        16,
        reward=(*found.metrics["critic/score/mean"], 0.5),  # type: ignore[arg-type]
        kl=(*found.metrics["actor/kl_loss"], 0.1),  # type: ignore[arg-type]
    )
    assert why(Collapse(), recovered) is None


def test_the_kl_of_an_update_serves_where_there_is_no_kl_loss() -> None:
    found = c.curves(15, reward=c.joined([0.5] * 10, [0.1] * 5), ppo_kl=c.joined([0.01] * 10, [0.2] * 5))
    reason = why(Collapse(), found)
    assert reason is not None
    assert "actor/ppo_kl" in reason


def test_growth_of_a_kl_near_zero_is_no_spike() -> None:
    found = c.curves(15, reward=c.joined([0.5] * 10, [0.1] * 5), kl=c.joined([1e-5] * 10, [1e-3] * 5))
    assert why(Collapse(), found) is None


@pytest.mark.parametrize("reward", [[0.0] * 15, [-1.0] * 15, []])
def test_a_reward_without_a_level_to_lose_never_collapses(reward: list[float]) -> None:
    found = c.curves(15, reward=reward, kl=c.joined([0.02] * 10, [0.5] * 5))
    assert why(Collapse(), found) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("metric", ["actor/pg_loss", "actor/grad_norm", "critic/score/mean", "actor/kl_loss"])
def test_a_value_that_is_not_finite_ends_the_phase_at_once_and_hard(metric: str, value: float) -> None:
    found = Curves(steps=(1, 2), metrics={metric: (0.1, value)})
    decision = StoppingPolicy(StopperSettings()).check_rules(c.node(found))
    assert decision is not None
    assert decision.hard
    assert decision.rule == "non_finite"
    assert metric in decision.reason
    assert "step 2" in decision.reason


def test_a_past_value_that_was_not_finite_is_forgiven_and_a_missing_one_is_no_value() -> None:
    assert why(NonFinite(), Curves(steps=(1, 2), metrics={"actor/pg_loss": (math.nan, 0.1)})) is None
    assert why(NonFinite(), Curves(steps=(1, 2), metrics={"actor/pg_loss": (0.1, None)})) is None
    assert why(NonFinite(), Curves()) is None


def test_metrics_that_may_be_nan_in_a_sound_run_are_not_watched() -> None:
    found = Curves(steps=(1,), metrics={"response_length_non_aborted/mean": (math.nan,)})
    assert why(NonFinite(), found) is None


def test_each_detector_can_be_switched_off() -> None:
    assert list(make_rules(StopperSettings())) == ["non_finite", "collapse", "unmoved"]
    assert list(make_rules(StopperSettings(collapse=False))) == ["non_finite", "unmoved"]
    assert list(make_rules(StopperSettings(unmoved=False))) == ["non_finite", "collapse"]


# --- a policy that is still the base model ------------------------------------------------------------------

RATE = c.PRACTITIONER[LR]
assert isinstance(RATE, float)
SMALL = [0.0018, 0.0022]


def quiet(n: int = 10, **more: Any) -> Curves:
    """A phase near the base model that gains nothing, planned for ten steps."""
    values: dict[str, Any] = {
        "start": 0.25,
        "val": {5: 0.25, 10: 0.26},
        "reward": [0.2, 0.25] * 10,
        "kl": SMALL * 10,
        "lr": [RATE] * 20,
    }
    return c.curves(n, **{**values, **more})


def unmoved_at(found: Curves, n_steps: int = 10) -> int | None:
    """The step at which the rule ends the phase."""
    nodes = (
        c.node(c.cut(found, n), c.PRACTITIONER, status="running", n_steps=n_steps)
        for n in range(1, len(found.steps) + 1)
    )
    return next((view.curves.steps[-1] for view in nodes if Unmoved().check(view)), None)


def test_a_policy_that_is_still_the_base_model_is_ended_at_half_of_its_phase() -> None:
    assert unmoved_at(quiet()) == 5
    assert unmoved_at(quiet(20), 20) == 10
    assert unmoved_at(quiet(6), 6) == 5, "five steps are the least"
    assert unmoved_at(quiet(5), 5) is None, "at the last step a stop saves nothing"
    reason = Unmoved().check(c.node(c.cut(quiet(), 5), c.PRACTITIONER, n_steps=10))
    assert reason == (
        "actor/kl_loss is still 0.002 after 5 of 10 steps, and neither the reward nor validation rises: "
        "the learning rate is too low"
    )


@pytest.mark.parametrize(
    "more",
    [
        {"kl": [0.002 * n for n in range(1, 21)]},
        {"val": {5: 0.35, 10: 0.36}},
        {"val": {5: 0.15, 10: 0.16}},
        {"reward": c.line(0.2, 0.5, 20, 0.01)},
        {"lr": [RATE * n / 20 for n in range(1, 21)]},
        {"lr": [RATE] * 3 + [RATE / 10] * 17},
        {"lr": [0.0] * 20},
        {"lr": []},
        {"kl": []},
    ],
    ids=["moves", "gains", "falls", "rewarded", "warms up", "decays", "rate 0", "rate unknown", "no KL"],
)
def test_a_phase_that_may_still_learn_is_not_ended_as_unmoved(more: dict[str, Any]) -> None:
    assert unmoved_at(quiet(**more)) is None


@pytest.mark.parametrize("kind", ["evolve", "debug", "scratch"])
def test_only_the_first_phase_is_ended_as_unmoved(kind: str) -> None:
    """A later phase has a low rate because a higher one lost."""
    assert Unmoved().check(c.node(c.cut(quiet(), 5), c.PRACTITIONER, n_steps=10, kind=kind)) is None


def test_a_gain_counts_by_the_number_of_validation_items() -> None:
    view = c.node(c.cut(quiet(val={5: 0.28}), 5), c.PRACTITIONER, n_steps=10)
    assert Unmoved(n_val=128).check(view) is not None
    assert Unmoved(n_val=5000).check(view) is None
    assert StoppingPolicy(StopperSettings(), n_val=128).check_rules(view) is not None
    assert StoppingPolicy(StopperSettings(), n_val=5000).check_rules(view) is None


def test_a_base_model_with_little_left_to_gain_is_not_ended() -> None:
    assert unmoved_at(quiet(start=0.98, val={5: 0.98}, reward=[0.95] * 10)) is None


def test_the_bound_grows_with_the_steps_up_to_ten() -> None:
    assert unmoved_at(quiet(kl=[0.003] * 20)) == 7
    assert unmoved_at(quiet(20, kl=[0.0049] * 20), 20) == 10
    assert unmoved_at(quiet(20, kl=[0.0051] * 20), 20) is None


def test_a_real_phase_at_a_rate_that_is_too_low_is_ended() -> None:
    small = c.small_steps()
    with_rate = replace(small, metrics={**small.metrics, "actor/lr": (RATE,) * 10})
    assert unmoved_at(with_rate) == 5
