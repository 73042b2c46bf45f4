"""What was asked against what acts: pure comparison."""

from __future__ import annotations

from typing import Any

from llmzero_ray.engines.verl.config_check import expected_at_start, expected_of_rollouts, mismatches
from llmzero_ray.hyperparameters import SPACE
from llmzero_ray.hyperparameters.verl_keys import REF_MICRO
from tests.engines.test_overrides import ACTOR, ROLLOUT, spec


def record(**changes: Any) -> dict[str, Any]:
    """One server that got 8 requests for each of 128 prompts."""
    return {
        "params": [(1.0, 1.0, -1, 24, 1024)],
        "prompts": [(i, 8) for i in range(128)],
        "seeds": 1024,
        **changes,
    }


def differences(*records: dict[str, Any], **asked: Any) -> list[str]:
    return mismatches(*expected_of_rollouts(spec(**asked), records))


def test_rollouts_as_asked_show_no_difference() -> None:
    assert differences(record()) == []


def test_rollouts_spread_over_two_servers_are_counted_together() -> None:
    half = record(prompts=[(i, 4) for i in range(128)], seeds=512)
    assert differences(half, half) == []


def test_another_temperature_cap_group_or_batch_is_named() -> None:
    assert differences(record(), temperature=0.7) == [f"{ROLLOUT}.temperature asked 0.7, acting 1.0"]
    assert differences(record(), resp=48) == ["data.max_response_length asked 48, acting 24"]
    assert any(f"{ROLLOUT}.n asked 12, acting 8" in d for d in differences(record(), n=12))
    assert any("requests asked 512, acting 1024" in d for d in differences(record(), batch=64))


def test_another_nucleus_is_named() -> None:
    assert differences(record(), top_p=0.9) == [f"{ROLLOUT}.top_p asked 0.9, acting 1.0"]


def test_mixed_sampling_parameters_are_named() -> None:
    mixed = record(params=[(1.0, 1.0, -1, 24, 512), (0.7, 1.0, -1, 24, 512)])
    assert differences(mixed) == [f"{ROLLOUT}.temperature asked 1.0, acting [0.7, 1.0]"]


def test_requests_that_share_a_seed_are_seen() -> None:
    assert differences(record(seeds=1)) == ["distinct seeds asked 1024, acting 1"]


def test_a_value_that_was_not_read_back_is_a_difference() -> None:
    assert mismatches({"x": 1}, {}) == ["x asked 1, not seen"]


def test_numbers_compare_as_numbers_and_flags_as_flags() -> None:
    assert mismatches({"a": 1, "b": (0.9, 0.999), "c": True}, {"a": 1.0, "b": [0.9, 0.999], "c": True}) == []
    assert mismatches({"c": True}, {"c": 1.5}) == ["c asked True, acting 1.5"]


def test_what_a_live_engine_may_change_is_read_back_and_nothing_else_of_the_table() -> None:
    phase = spec(use_kl_loss=True, use_kl_in_reward=True, adv_estimator="rloo")
    compared = {*expected_at_start(phase), *expected_of_rollouts(phase, [record()])[0]}
    rows = {row.key for row in SPACE if row.group != "duration"}  # a phase's own n_steps
    # It acts nowhere: the reference is the policy without its adapter, scored in the policy's micro batches.
    assert {row.key for row in SPACE if row.hot} == (compared & rows) | {REF_MICRO}


def test_the_start_is_compared_with_the_whole_configuration_that_can_be_read() -> None:
    expected = expected_at_start(spec(lr=3e-5, betas=[0.9, 0.95]))
    assert expected[f"{ACTOR}.optim.lr"] == 3e-5 and expected[f"{ACTOR}.optim.betas"] == (0.9, 0.95)
    assert expected["optimizer_state_empty"] is True and expected["trainer.total_training_steps"] == 40
    assert "algorithm.kl_ctrl.kl_coef" not in expected
    assert expected_at_start(spec(algo_kl=0.01))["algorithm.kl_ctrl.kl_coef"] == 0.01
