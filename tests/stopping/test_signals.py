"""Pre-checks: facts for the agent, silent on success and on a late take-off."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmzero_ray.records.metrics import Curves
from llmzero_ray.stopping.rules import Collapse
from llmzero_ray.stopping.signals import annotate
from tests.agents import curves as c

SOUND: list[Callable[[], Curves]] = [
    *(partial(c.recorded, number) for number in range(6)),
    c.csum_steady,
    c.csum_swinging,
    c.reg_success,
    c.regh_late,
    c.regh_capped,
    c.paper_plateau,
    c.ssmr_regressed,
]


def facts(found: Curves) -> dict[str, str]:
    """The annotations by the name of their pre-check."""
    return dict(fact.split(": ", 1) for fact in annotate(c.node(found)))


def flat(level: float = 0.4, **metrics: list[float]) -> Curves:
    n = 20
    named: dict[str, Any] = dict(metrics)
    reward = c.line(level, level, n, 0.02)
    return c.curves(n, reward=reward, start=level, val={10: level, n: level}, **named)


@pytest.mark.parametrize("make", SOUND)
@pytest.mark.parametrize("share", [0.4, 0.7, 1.0])
def test_a_sound_run_has_no_annotation_at_any_time(make: Callable[[], Curves], share: float) -> None:
    found = make()
    assert annotate(c.node(c.cut(found, int(share * len(found.steps))))) == ()


def test_groups_without_contrast_are_named_with_the_reward() -> None:
    silent = flat(adv_max=[0.5] * 10 + [0.0] * 10, adv_min=[-0.5] * 10 + [0.0] * 10)
    message = facts(silent)["no_contrast"]
    assert message.startswith("Nearly all answers of a group score the same (mean 0.403): advantages vanish;")


def test_a_phase_without_any_reward_is_named() -> None:
    unpaid = c.curves(
        20, reward=[0.0] * 20, kl=c.line(0.02, 0.04, 20), adv_max=[0.0] * 20, adv_min=[0.0] * 20
    )
    assert facts(unpaid)["no_reward"].startswith("Hardly any answer is rewarded (mean 0.000)")


@pytest.mark.parametrize("step", range(16, 20))
def test_one_group_with_contrast_late_in_the_phase_is_life(step: int) -> None:
    spread = [0.0] * 20
    spread[step] = 0.5
    assert "no_contrast" not in facts(flat(adv_max=spread, adv_min=[0.0] * 20))


def test_single_steps_without_contrast_are_common() -> None:
    assert "no_contrast" not in facts(flat(adv_max=[0.5] * 19 + [0.0], adv_min=[0.0] * 20))


def test_a_running_phase_is_not_doubted_for_a_reward_s_own_judgement_of_the_format() -> None:
    rising = c.line(0.3, 0.9, 20)
    found = c.curves(20, reward=rising, start=0.3, val={10: 0.6, 20: 0.9})
    aux = {"val-core/sums/acc/mean@1": tuple(rising), "val-aux/sums/fmt_ok/mean@1": (0.3,) * 20}
    assert "doubtful" not in facts(replace(found, metrics={**found.metrics, **aux}))


def test_a_rate_of_zero_or_a_policy_that_stands_still_is_dead() -> None:
    message = "Nothing moves: the policy is still the one the phase started from"
    assert facts(flat(lr=[0.0] * 20))["dead"] == f"{message}; actor/lr is 0 in all 20 steps"
    assert "dead" not in facts(flat(lr=[0.0] * 5 + [1e-3] * 15))
    assert facts(c.untrained())["dead"].startswith(message)


def test_a_rate_that_is_still_warming_up_is_not_dead() -> None:
    assert facts(c.cut(flat(lr=[0.0] * 4 + [1e-3] * 16), 4)) == {}


def test_silent_groups_of_a_learnt_task_are_success() -> None:
    assert facts(flat(level=0.97, adv_max=[0.0] * 20, adv_min=[0.0] * 20)) == {}


def test_entropy_that_falls_for_nothing_is_a_collapse_with_its_numbers() -> None:
    message = facts(c.wildsci_entropy())["entropy_collapse"]
    assert message.startswith(
        "Entropy fell to 34% of its first level without a gain in reward; actor/entropy 0.7"
    )


@settings(derandomize=True)
@given(level=st.floats(0.9, 1.0), low=st.floats(0.001, 0.2))
def test_low_entropy_beside_a_high_reward_is_never_a_collapse(level: float, low: float) -> None:
    found = c.curves(20, reward=[level] * 20, entropy=c.line(0.6, low, 20))
    assert "entropy_collapse" not in facts(found)


@settings(derandomize=True)
@given(
    start=st.floats(0.0, 0.5),
    rise=st.floats(0.2, 0.5),
    entropy=st.floats(0.01, 0.1),
    kl=st.floats(1.0, 10.0),
    at_cap=st.floats(0.5, 1.0),
)
def test_no_pre_check_speaks_while_the_reward_rises_unless_more_is_rewarded_than_ends(
    start: float, rise: float, entropy: float, kl: float, at_cap: float
) -> None:
    found = c.curves(
        20,
        reward=c.line(start, start + rise, 20, 0.01),
        entropy=c.line(0.7, entropy, 20),
        kl=c.line(0.001, kl, 20),
        grad=[0.5] * 20,
        longest=[24.0] * 20,
        at_longest=[at_cap] * 20,
    )
    rewarded_when_cut_off = start + rise + at_cap - 1.0
    notes = {note.split(":")[0] for note in annotate(c.node(found))}
    assert notes <= ({"doubtful"} if rewarded_when_cut_off > 0.2 else set())


def test_a_kl_that_climbs_to_ten_times_its_level_is_a_runaway() -> None:
    away = flat(kl=c.joined(c.line(0.05, 0.06, 10), c.line(0.1, 3.0, 10)))
    assert "actor/kl_loss is 2." in facts(away)["kl_runaway"]
    assert "step 11" in facts(away)["kl_runaway"]


def test_a_kl_that_has_settled_or_is_still_near_the_base_model_is_no_runaway() -> None:
    settled = flat(kl=c.joined([0.05] * 10, c.line(3.0, 0.4, 10)))
    near = flat(kl=c.line(1e-5, 0.3, 20))
    assert "kl_runaway" not in facts(settled)
    assert "kl_runaway" not in facts(near)


def test_truncation_counts_only_where_the_longest_response_is_the_cap() -> None:
    at_cap = flat(longest=[24.0] * 20, at_longest=[0.5] * 20)
    below = flat(longest=[9.0] * 20, at_longest=[0.5] * 20)
    message = facts(at_cap)["truncated"]
    assert message.startswith(
        "50% of the responses are cut off at the cap of 24 tokens; share at the cap 50.0% ->"
    )
    assert "truncated" not in facts(below)
    # Without the phase's configuration its cap is unknown.
    assert annotate(c.node(at_cap, {})) == ()


def test_values_that_were_not_finite_are_counted_even_when_they_are_past() -> None:
    found = flat(grad=[0.5, math.nan, math.inf] + [0.5] * 17)
    assert facts(found)["non_finite"] == "not finite: actor/grad_norm in 2 of 20 steps, last at step 3"


def test_answers_that_never_end_are_named() -> None:
    endless = facts(flat(longest=[24.0] * 20, at_longest=[0.95] * 20))
    assert endless["never_ends"].startswith("Answers do not end: 95% of them are cut off")


def test_a_cap_at_which_most_answers_are_right_does_no_harm() -> None:
    assert facts(flat(level=0.85, longest=[24.0] * 20, at_longest=[1.0] * 20)) == {}


def test_a_collapse_of_the_reward_is_reported_with_the_reason_of_its_rule() -> None:
    assert "actor/kl_loss rose" in facts(c.sort_collapse())["collapse"]


def test_a_collapse_of_the_reward_without_a_rise_of_the_kl_is_reported() -> None:
    lost = c.curves(20, reward=c.joined(c.line(0.5, 0.5, 14, 0.02), c.line(0.1, 0.1, 6, 0.01)), kl=[0.2] * 20)
    assert Collapse().check(c.node(lost)) is None
    assert facts(lost)["collapse"].startswith("Collapsed: the train reward lost 80%")


@pytest.mark.parametrize(
    "found",
    [c.small_steps(), c.chem_kl_spike(), c.cut(c.csum_swinging(), 20)],
    ids=["slow", "spike", "swings"],
)
def test_what_many_winning_phases_show_or_the_validation_curve_tells_is_no_fact(found: Curves) -> None:
    assert facts(found) == {}


def test_nothing_is_known_of_a_phase_that_has_not_begun() -> None:
    assert annotate(c.node(Curves())) == ()
