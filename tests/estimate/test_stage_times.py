"""Time limits of phases on GPUs: above every stage that a shipped preset may ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray.config import SearchConfig, load_config, parse_config
from llmzero_ray.estimate import LEAST_S, Estimate, StageTimes, TimeLimits
from llmzero_ray.estimate.model_shape import KNOWN
from llmzero_ray.estimate.stage_times import UNKNOWN_S
from llmzero_ray.hyperparameters.root import root_hyperparameters

CONFIGS = Path(__file__).parents[2] / "jobs" / "configs"
GPU_RECIPES = sorted(
    path.name for path in CONFIGS.glob("*.yaml") if load_config(path).engine.platform == "gpu"
)
N, EPOCHS = "actor_rollout_ref.rollout.n", "actor_rollout_ref.actor.ppo_epochs"
BATCH, RESPONSE = "data.train_batch_size", "data.max_response_length"
KL = "actor_rollout_ref.actor.use_kl_loss"


def preset(name: str, *changes: str) -> tuple[SearchConfig, dict[str, Any]]:
    config = load_config(CONFIGS / name, changes)
    return config, root_hyperparameters(config, 5000)


def seconds(config: SearchConfig, hyperparameters: dict[str, Any], **given: Any) -> StageTimes:
    found = Estimate(config).stage_times(hyperparameters, rows=500, **given)
    assert found is not None
    return found


def limits(config: SearchConfig, hyperparameters: dict[str, Any]) -> TimeLimits:
    return Estimate(config).time_limits(hyperparameters, rows=500)


@pytest.mark.parametrize("name", GPU_RECIPES)
@given(
    n=st.sampled_from([4, 8, 12, 16]),
    batch=st.sampled_from([64, 128, 256]),
    share=st.floats(0.1, 1.0),
    epochs=st.integers(1, 4),
    kl=st.booleans(),
)
def test_a_phase_of_any_size_has_more_time_than_its_stages_are_estimated_to_take(
    name: str, n: int, batch: int, share: float, epochs: int, kl: bool
) -> None:
    config, root = preset(name)
    response = round(share * config.engine.max_response_length)
    asked = {**root, N: n, BATCH: batch, RESPONSE: response, EPOCHS: epochs, KL: kl}
    times, found = seconds(config, asked), limits(config, asked)
    assert found.hang_s >= max(600.0, 1.5 * times.longest_s)
    assert found.stop_s >= max(600.0, 1.5 * (times.rollout_s + times.update_s))


@pytest.mark.parametrize(
    ("name", "n", "rollout_s", "update_s"),
    # One node of 8 A100s, by hand: tokens x 2 FLOP for each parameter and pass at 25 % of the peak; steps of
    # decoding x (weights + cache) at 1.3 TB/s, and 40 % for the longest answer.
    [
        ("qwen3_4b.yaml", 8, 650.0, 512.0),
        ("qwen3_4b.yaml", 12, 1690.0, 765.0),
        ("qwen3_8b.yaml", 8, 670.0, 943.0),
    ],
)
def test_limits_hold_what_was_worked_out_by_hand_for_the_presets(
    name: str, n: int, rollout_s: float, update_s: float
) -> None:
    config, root = preset(name)
    found = limits(config, {**root, N: n, RESPONSE: 8192 if n == 12 else 6144})
    assert found.hang_s > 1.2 * max(rollout_s, update_s) > LEAST_S
    assert found.stop_s > 1.2 * (rollout_s + update_s)


def test_an_update_is_two_flops_for_each_parameter_token_and_pass() -> None:
    config, root = preset("qwen3_4b.yaml")
    times = seconds(config, root, response_share=2000 / 6144)
    tokens, passes = 128 * 8 * (2048 + 2000) / 8, 5
    weights_s = passes * tokens * 2 * KNOWN["qwen3-4b"].parameters / (0.3 * 312e12)
    assert weights_s < times.update_s < 1.25 * weights_s  # attention comes on top
    without = seconds(config, {**root, KL: False}, response_share=2000 / 6144)
    assert without.update_s == pytest.approx(times.update_s * 4 / 5)


def test_an_h200_is_told_by_its_memory_and_takes_less_time() -> None:
    one, other = (seconds(*preset("qwen3_4b.yaml", f"slots.gpu_memory_gib={gib}")) for gib in (79.2, 139.8))
    assert other.update_s < one.update_s / 2 and other.rollout_s < one.rollout_s / 2


def test_what_the_configuration_gives_is_what_counts() -> None:
    config, root = preset("qwen3_4b.yaml", "engine.hang_min_s=77", "engine.stop_deadline_s=88")
    assert limits(config, root) == TimeLimits(hang_s=77.0, stop_s=88.0)
    config, root = preset("qwen3_4b.yaml", "engine.hang_min_s=77")
    own, _ = preset("qwen3_4b.yaml")
    assert limits(config, root) == TimeLimits(hang_s=77.0, stop_s=limits(own, root).stop_s)


@pytest.mark.parametrize("engine", [{"platform": "cpu"}, {"backend": "my.module:engine"}])
def test_without_gpus_a_stage_has_ten_minutes(engine: dict[str, Any]) -> None:
    config = parse_config({"name": "s", "engine": engine, "model": {"path": "Qwen3-8B"}})
    assert limits(config, root_hyperparameters(config, 512)) == TimeLimits(hang_s=LEAST_S, stop_s=LEAST_S)


def test_a_model_of_unknown_shape_has_an_hour_on_gpus() -> None:
    config, root = preset("qwen3_4b.yaml", "model.path=/nowhere/Mixtral-8x7B")
    assert limits(config, root) == TimeLimits(hang_s=UNKNOWN_S, stop_s=UNKNOWN_S)
