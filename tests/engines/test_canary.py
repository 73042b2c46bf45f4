"""When a server's log-probabilities of the fixed text are those of the policy that is trained."""

from __future__ import annotations

import math
import random

import pytest

from llmzero_ray.engines.verl.canary import LogProbs, difference
from llmzero_ray.engines.verl.config_check import check_canary, check_rollout_kl
from llmzero_ray.errors import EffectiveConfigError

N = 30


def values(seed: int, spread: float, around: tuple[float, ...] = (-1.5,) * N) -> tuple[float, ...]:
    """Log-probabilities that differ from `around` by `spread` in the mean."""
    drawn = random.Random(seed)
    return tuple(value + drawn.choice((-spread, spread)) for value in around)


def actor(effect: float) -> LogProbs:
    base = values(0, 1.0)
    return LogProbs(policy=values(1, effect, base), base=base)


def served(given: LogProbs, noise: float) -> LogProbs:
    """By a server whose arithmetic differs by `noise`."""
    assert given.base is not None
    return LogProbs(policy=values(2, noise, given.policy), base=values(3, noise, given.base))


@pytest.mark.parametrize("noise", [0.0, 1e-6, 0.01, 0.05])
@pytest.mark.parametrize("effect", [0.0, 1e-4, 0.02, 1.0])
def test_the_actors_own_policy_passes_whatever_its_adapter_does(effect: float, noise: float) -> None:
    assert difference(actor(effect), served(actor(effect), noise)) is None


@pytest.mark.parametrize(("effect", "noise"), [(1e-4, 1e-6), (0.02, 1e-3), (0.09, 0.02), (0.5, 0.02)])
def test_a_missing_adapter_is_seen_as_soon_as_it_changes_more_than_the_arithmetic(
    effect: float, noise: float
) -> None:
    right = served(actor(effect), noise)
    assert right.base is not None
    found = difference(actor(effect), LogProbs(policy=right.base, base=right.base))
    assert found is not None and found.startswith("vLLM answers without the adapter")


def test_another_adapter_and_another_base_model_are_seen() -> None:
    right = served(actor(0.5), 0.01)
    other = LogProbs(policy=values(7, 0.5, right.policy), base=right.base)
    assert "vLLM's policy differs from the actor's by 0.5" in str(difference(actor(0.5), other))
    moved = LogProbs(policy=right.policy, base=values(8, 0.5, actor(0.5).base or ()))
    assert "vLLM's base model differs from the actor's by 0.5" in str(difference(actor(0.5), moved))


@pytest.mark.parametrize("noise", [0.0, 1e-6, 0.01, 0.05])
@pytest.mark.parametrize("effect", [0.0, 1e-4, 0.02, 1.0])
def test_merged_weights_of_the_actors_own_policy_pass(effect: float, noise: float) -> None:
    right = served(actor(effect), noise)
    assert difference(actor(effect), LogProbs(policy=right.policy, base=None)) is None


@pytest.mark.parametrize(("effect", "noise"), [(1e-4, 1e-6), (0.02, 1e-3), (0.09, 0.02), (0.5, 0.02)])
def test_weights_into_which_no_adapter_was_merged_are_seen(effect: float, noise: float) -> None:
    right = served(actor(effect), noise)
    assert right.base is not None
    found = difference(actor(effect), LogProbs(policy=right.base, base=None))
    assert found is not None and found.startswith("vLLM answers without the adapter")


def test_merged_weights_of_another_policy_are_seen() -> None:
    other = LogProbs(policy=values(9, 0.2, served(actor(0.5), 0.02).policy), base=None)
    assert "vLLM's policy differs from the actor's by 0.195" in str(difference(actor(0.5), other))
    broken = LogProbs(policy=(math.nan,) * N, base=None)
    assert "differs from the actor's by inf" in str(difference(actor(0.5), broken))


def test_a_part_of_a_merged_adapter_that_is_missing_is_seen() -> None:
    """Where servers told their base model before, also below what is allowed in any case."""
    trained = actor(0.08)
    assert trained.base is not None
    base = served(actor(0.0), 0.001).base
    part = tuple((p + 2 * b) / 3 for p, b in zip(trained.policy, trained.base, strict=True))
    found = difference(trained, LogProbs(policy=part, base=base), merged=True)
    assert found is not None and ("part of the adapter" in found or "without the adapter" in found)
    most = tuple((3 * p + 2 * b) / 5 for p, b in zip(trained.policy, trained.base, strict=True))
    assert (
        difference(trained, LogProbs(policy=most, base=values(3, 0.009, trained.base)), merged=True) is None
    )
    with pytest.raises(EffectiveConfigError, match=r"engine\.serve_merged to false"):
        check_canary(trained, [LogProbs(policy=part, base=base)], merged=True)


def test_values_that_are_no_numbers_are_refused() -> None:
    broken = LogProbs(policy=(math.nan,) * N, base=actor(0.1).base)
    with pytest.raises(EffectiveConfigError, match="differs from the actor's by inf"):
        check_canary(actor(0.1), [broken])


def test_a_policy_that_is_not_finite_is_left_to_the_check_of_losses() -> None:
    broken = LogProbs(policy=(math.nan,) * N, base=actor(0.1).base)
    assert difference(broken, broken) is None
    assert difference(broken, served(actor(0.1), 1e-3)) is None


def test_one_wrong_server_among_right_ones_is_refused() -> None:
    right = served(actor(0.5), 1e-3)
    check_canary(actor(0.5), [right, right])
    with pytest.raises(EffectiveConfigError, match="without the adapter"):
        check_canary(actor(0.5), [right, LogProbs(policy=right.base or (), base=right.base)])


TOP_P, TOP_K = "actor_rollout_ref.rollout.top_p", "actor_rollout_ref.rollout.top_k"


def test_the_kl_of_rollouts_is_judged_at_every_step() -> None:
    check_rollout_kl({"rollout_corr/kl": 0.09}, {}, 1)
    with pytest.raises(EffectiveConfigError, match=r"step 17: .* by 0\.110 nats \(at most 0\.1\)"):
        check_rollout_kl({"rollout_corr/kl": 0.11}, {TOP_P: 1.0, TOP_K: -1}, 17)


def test_without_old_log_probs_of_its_own_the_updates_difference_is_judged() -> None:
    check_rollout_kl({"actor/ppo_kl": 0.02}, {}, 1)
    with pytest.raises(EffectiveConfigError, match=r"step 3: .* by 0\.200 nats"):
        check_rollout_kl({"actor/ppo_kl": 0.2}, {}, 3)
    check_rollout_kl({"rollout_corr/kl": 0.01, "actor/ppo_kl": 0.2}, {}, 3)


def test_a_step_that_tells_nothing_of_its_rollouts_is_refused() -> None:
    with pytest.raises(EffectiveConfigError, match=r"step 2: .* neither rollout_corr/kl nor actor/ppo_kl"):
        check_rollout_kl({"actor/loss": 0.1}, {}, 2)


def test_the_validation_before_the_first_step_has_no_rollouts_to_judge() -> None:
    check_rollout_kl({"val-core/acc": 0.1}, {}, 0)


def test_a_nucleus_raises_the_limit_by_the_mass_that_it_leaves_out() -> None:
    check_rollout_kl({"rollout_corr/kl": 0.7}, {TOP_P: 0.5}, 1)
    with pytest.raises(EffectiveConfigError, match=r"at most 0\.793"):
        check_rollout_kl({"rollout_corr/kl": 0.8}, {TOP_P: 0.5}, 1)
    check_rollout_kl({"rollout_corr/kl": 5.0}, {TOP_K: 20}, 1)


def test_each_push_is_logged_with_what_the_bounds_are_judged_by(caplog: pytest.LogCaptureFixture) -> None:
    given = LogProbs(policy=(-1.0, -2.0), base=(-1.5, -2.5))
    with caplog.at_level("INFO"):
        check_canary(given, [LogProbs(policy=(-1.01, -2.01), base=(-1.502, -2.502))])
    assert "policy off by 0.01, base model off by 0.002, effect of the adapter 0.5" in caplog.text
