"""What recorded curves are diagnosed as: the paper's patterns and those of small real runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from llmzero_ray import hyperparameters as hp
from llmzero_ray.dynamics.diagnosis import Finding, diagnose
from llmzero_ray.dynamics.features import observe
from llmzero_ray.records import Hyperparameters
from llmzero_ray.records.metrics import Curves
from tests.agents import curves as c

SHORT = hp.complete(c.TINY, {"lr": 5e-5, "max_response_length": 16})
CAPPED = hp.complete(c.TINY, {"max_response_length": 10})


def findings(
    found: Curves, hyperparameters: Hyperparameters = c.TINY, before: Hyperparameters | None = None
) -> tuple[Finding, ...]:
    on = c.node(found, hyperparameters)
    parent = None if before is None else c.node(found, before)
    return diagnose(observe(found, hyperparameters), on, parent)


@pytest.mark.parametrize(
    ("make", "hyperparameters", "kind", "state"),
    [
        (c.csum_steady, c.TINY, "improving", "healthy"),
        (c.csum_swinging, c.TINY, "noisy", "plateau"),
        (c.reg_success, c.TINY, "solved", "healthy"),
        (c.regh_late, c.TINY, "solved", "healthy"),
        (lambda: c.cut(c.regh_late(), 15), c.TINY, "take_off", "slow"),
        (c.regh_capped, CAPPED, "truncated", "truncated"),
        (c.sort_collapse, c.TINY, "collapse", "collapsing"),
        (c.untrained, c.TINY, "dead", "inactive"),
        (c.small_steps, SHORT, "hardly_moves", "inactive"),
        (c.chem_kl_spike, c.PRACTITIONER, "kl_spike", "collapsing"),
        (c.chem_truncated, c.PRACTITIONER, "truncated", "truncated"),
        (c.paper_plateau, c.PRACTITIONER, "plateau_weak", "plateau"),
        (c.wildsci_entropy, c.PRACTITIONER, "entropy_collapse", "collapsing"),
    ],
)
def test_recorded_curves_are_diagnosed(
    make: Callable[[], Curves], hyperparameters: Hyperparameters, kind: str, state: str
) -> None:
    first = findings(make(), hyperparameters)[0]
    assert (first.kind, first.state) == (kind, state)
    assert first.evidence
    assert all(any(char.isdigit() for char in fact) for fact in first.evidence)


def test_evidence_names_the_metric_its_course_and_the_steps() -> None:
    (first, *_) = findings(c.chem_kl_spike(), c.PRACTITIONER)
    assert first.evidence[0] == "actor/kl_loss 0.0117 -> 0.19 (x16.3) from step 13, peak at step 15"
    assert first.evidence[1].startswith("response_length/mean 1634 -> 2183 (x1.34) over steps 1-20")
    assert first.since == 13


def test_a_kl_that_rises_with_the_reward_is_no_pathology() -> None:
    kinds = {found.kind for found in findings(c.reg_success())}
    assert kinds == {"solved"}


def test_a_kl_spike_that_brings_validation_up_is_no_pathology() -> None:
    flat = c.chem_kl_spike()
    better = c.curves(
        20,
        start=0.292,
        val={3: 0.296, 9: 0.310, 18: 0.420},
        reward=flat.metrics["critic/score/mean"],  # type: ignore[arg-type]
        kl=flat.metrics["actor/kl_loss"],  # type: ignore[arg-type]
    )
    assert "kl_spike" not in {found.kind for found in findings(better, c.PRACTITIONER)}


def test_low_entropy_is_a_collapse_only_without_reward() -> None:
    entropy = c.line(0.7, 0.05, 20)
    stuck = c.curves(
        20, reward=c.line(0.4, 0.4, 20, 0.02), entropy=entropy, start=0.4, val={10: 0.4, 20: 0.41}
    )
    risen = c.curves(
        20, reward=c.line(0.2, 0.9, 20, 0.02), entropy=entropy, start=0.2, val={10: 0.6, 20: 0.9}
    )
    assert findings(stuck)[0].kind == "entropy_collapse"
    assert "entropy_collapse" not in {found.kind for found in findings(risen)}


def test_many_responses_at_the_batch_maximum_are_no_truncation_below_the_cap() -> None:
    found = c.curves(
        12,
        reward=c.line(0.4, 0.4, 12, 0.02),
        longest=[9.0] * 12,
        at_longest=[0.6] * 12,
        start=0.4,
        val={10: 0.4},
    )
    assert "truncated" not in {finding.kind for finding in findings(found)}


def test_the_severity_of_a_truncation_is_the_share_cut_off() -> None:
    (first, *_) = findings(c.regh_capped(), CAPPED)
    assert first.severity == pytest.approx(0.62, abs=0.02)


def test_flat_validation_under_a_rising_reward_is_a_take_off_not_a_plateau() -> None:
    kinds = [found.kind for found in findings(c.cut(c.regh_late(), 15))]
    assert kinds == ["take_off"]


def test_the_same_flat_validation_under_a_flat_reward_is_a_plateau() -> None:
    late = c.cut(c.regh_late(), 15)
    flat = c.curves(
        15,
        start=0.176,
        val={15: 0.166},
        reward=c.line(0.17, 0.17, 15, 0.025),
        kl=late.metrics["actor/kl_loss"],  # type: ignore[arg-type]
        grad=c.line(0.5, 0.8, 15, 0.05),
    )
    assert findings(flat)[0].kind == "plateau_noisy"


def test_fading_gradients_make_a_plateau_weak_and_steady_ones_noisy() -> None:
    def flat(grad: list[float]) -> Curves:
        return c.curves(
            16, start=0.5, val={8: 0.505, 16: 0.495}, reward=c.line(0.5, 0.5, 16, 0.03), grad=grad
        )

    assert findings(flat(c.line(0.6, 0.1, 16)))[0].kind == "plateau_weak"
    assert findings(flat(c.line(0.6, 0.6, 16)))[0].kind == "plateau_noisy"


def test_an_inert_clip_fraction_of_zero_is_no_sign_of_a_weak_signal() -> None:
    found = c.curves(
        16,
        start=0.5,
        val={8: 0.505, 16: 0.495},
        reward=c.line(0.5, 0.5, 16, 0.03),
        grad=[0.6] * 16,
        clipfrac=[0.0] * 16,
    )
    assert findings(found, c.TINY)[0].kind == "plateau_noisy"
    assert findings(found, c.PRACTITIONER)[0].kind == "plateau_weak"


def test_a_regression_is_read_by_what_the_phase_changed() -> None:
    before = c.PRACTITIONER
    tighter = hp.complete(before, {"lr": 3e-5, "kl": 0.002, "clip_high": 0.25})
    regressed = replace(
        c.ssmr_regressed(), val_gains=((-0.04, 0.014), (-0.048, 0.014), (-0.028, 0.013), (-0.035, 0.013))
    )
    (first, *_) = findings(regressed, tighter, before)
    assert first.kind == "too_conservative"
    assert "lr 5e-5 -> 3e-5" in " ".join(first.evidence)

    bolder = hp.complete(before, {"lr": 1e-4})
    spiked = c.curves(
        20,
        start=0.700,
        val={9: 0.66, 19: 0.64},
        reward=c.line(0.68, 0.60, 20, 0.01),
        kl=c.joined(c.line(0.01, 0.012, 8), c.line(0.2, 0.3, 12)),
    )
    kinds = [found.kind for found in findings(spiked, bolder, before)]
    assert "too_aggressive" in kinds
    assert "too_conservative" not in kinds


def test_a_first_phase_has_nothing_to_regress_from() -> None:
    fallen = replace(c.ssmr_regressed(), val_scores=(0.66, 0.64, 0.62, 0.60))
    assert findings(fallen, c.PRACTITIONER)[0].kind == "declining"


def test_validation_that_falls_while_the_reward_still_rises_is_overfitting() -> None:
    found = c.curves(
        30,
        start=0.40,
        val={10: 0.62, 20: 0.55, 30: 0.48},
        reward=c.line(0.4, 0.85, 30, 0.02),
        kl=c.line(0.01, 0.1, 30),
    )
    assert findings(found)[0].kind == "overfit"


def test_a_reward_of_zero_and_groups_without_contrast_are_inactive() -> None:
    none = c.curves(12, reward=[0.0] * 12, start=0.0, val={10: 0.0}, kl=c.line(0.0, 0.02, 12))
    even = c.curves(
        12,
        reward=c.line(0.5, 0.5, 12, 0.02),
        adv_max=[0.0] * 12,
        adv_min=[0.0] * 12,
        start=0.5,
        val={10: 0.51},
        kl=c.line(0.0, 0.02, 12),
    )
    assert findings(none)[0].kind == "no_reward"
    assert findings(even)[0].kind == "no_contrast"


def test_a_reward_that_dips_for_one_batch_has_not_collapsed() -> None:
    reward = c.line(0.5, 0.6, 20, 0.02)
    reward[15] = 0.05
    found = c.curves(20, reward=reward, start=0.5, val={10: 0.55, 20: 0.62}, kl=c.line(0.01, 0.1, 20))
    assert "collapse" not in {finding.kind for finding in findings(found)}


def test_a_run_at_learning_rate_zero_is_dead_whatever_its_reward_does_by_chance() -> None:
    lucky = c.curves(6, reward=c.line(0.3, 0.5, 6), lr=[0.0] * 6, start=0.4, val={5: 0.43})
    assert [found.kind for found in findings(lucky)] == ["dead"]


def test_a_resumed_run_at_a_plateau_is_not_taken_for_an_untrained_one() -> None:
    # The real run: ten steps at .348, .352, .348 with a KL that stays at .10, and a rate that is not 0.
    real = findings(c.recorded(4))[0]
    assert real.kind != "dead"
    assert findings(c.untrained(15, 0.6, 20, kl=0.15))[0].kind != "dead"
    rated = c.curves(15, reward=c.line(0.6, 0.6, 15, 0.05), kl=[0.15] * 15, lr=[0.0] * 15)
    assert findings(rated)[0].kind == "dead"


def test_small_steps_are_no_fault_where_little_is_left_to_gain() -> None:
    moved = c.small_steps()
    solved = replace(moved, start_score=0.98, val_scores=(0.98, 0.99))
    assert "hardly_moves" not in {found.kind for found in findings(solved, SHORT)}
    assert findings(replace(solved, start_score=0.5, val_scores=(0.5, 0.52)), SHORT)[0].kind == "hardly_moves"


def test_a_short_or_unvalidated_phase_that_learns_near_the_base_model_has_only_begun() -> None:
    small = [0.0018, 0.0022] * 6
    flat = c.curves(6, start=0.2, val={6: 0.21}, reward=[0.2, 0.25] * 3, kl=small)
    assert findings(flat, SHORT)[0].kind == "hardly_moves"
    gained = replace(flat, val_scores=(0.5,))
    rewarded = c.curves(12, reward=c.line(0.2, 0.5, 12, 0.01), kl=small)
    for found in (gained, rewarded):
        assert "hardly_moves" not in {finding.kind for finding in findings(found, SHORT)}


def test_a_real_run_before_its_take_off_is_warming_up() -> None:
    (first, *_) = findings(c.recorded(0))
    assert (first.kind, first.state) == ("warming_up", "slow")
    assert "actor/kl_loss and response_length/mean rise" in first.summary


def test_a_quick_start_away_from_the_base_model_is_no_kl_spike() -> None:
    found = c.curves(
        10,
        start=0.164,
        val={5: 0.160, 10: 0.185},
        reward=c.line(0.15, 0.18, 10, 0.03),
        kl=[0.0, 0.0002, 0.0008, 0.003, 0.012, 0.02, 0.026, 0.03, 0.033, 0.038],
        length=c.line(5.5, 9.0, 10, 0.2),
    )
    assert findings(found)[0].kind == "warming_up"


def test_a_real_run_is_judged_by_its_pace_not_by_its_level() -> None:
    rising = c.recorded(2)
    assert (rising.start_score, rising.val_scores) == (0.2188, (0.3281, 0.3438))
    assert findings(rising)[0].kind == "converging"  # .109, then .016


@pytest.mark.parametrize("number", [3, 4, 5])
def test_real_runs_that_stay_at_their_level_are_at_a_plateau(number: int) -> None:
    assert findings(c.recorded(number))[0].state in ("plateau", "slow")
    assert findings(c.recorded(number))[0].kind in ("plateau_noisy", "plateau_weak", "take_off")


def test_a_few_answers_that_change_make_a_plateau_not_a_dead_run() -> None:
    assert "dead" not in {found.kind for found in findings(c.paper_plateau(), c.PRACTITIONER)}


def test_slow_converging_and_improving_differ_by_the_pace_of_validation() -> None:
    def rising(val: dict[int, float]) -> Curves:
        return c.curves(40, start=0.40, val=val, reward=c.line(0.4, 0.6, 40, 0.02), kl=c.line(0.0, 0.1, 40))

    assert findings(rising({10: 0.405, 20: 0.41, 30: 0.43, 40: 0.455}))[0].kind == "slow"
    assert findings(rising({10: 0.55, 20: 0.70, 30: 0.78, 40: 0.80}))[0].kind == "converging"
    assert findings(rising({10: 0.45, 20: 0.50, 30: 0.60, 40: 0.72}))[0].kind == "improving"


def test_too_few_steps_without_validation_are_not_judged() -> None:
    (only,) = findings(c.curves(2, reward=[0.1, 0.2]))
    assert (only.kind, only.state) == ("unknown", "unknown")


def test_without_validation_the_reward_is_judged() -> None:
    assert findings(c.curves(12, reward=c.line(0.1, 0.6, 12, 0.02)))[0].kind == "take_off"
    assert findings(c.curves(12, reward=c.line(0.3, 0.3, 12, 0.02)))[0].kind == "plateau_noisy"
