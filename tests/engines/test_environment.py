"""Environment of VeRL's processes: what each of them may see of a machine's GPUs, and vLLM's switches."""

from __future__ import annotations

from pathlib import Path

from llmzero_ray.engines.verl.environment import process_env, worker_vars
from llmzero_ray.engines.verl.overrides import engine_overrides
from tests.builders import verl_settings

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
ON_ZERO = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"


def test_processes_without_a_gpu_see_none() -> None:
    from ray._private.accelerators import RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO_ENV_VAR

    assert RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO_ENV_VAR == ON_ZERO  # the name in the installed Ray
    on_gpus, on_cpus = verl_settings(platform="gpu"), verl_settings()
    assert worker_vars(on_gpus)[ON_ZERO] == "1" and ON_ZERO not in worker_vars(on_cpus)
    assert process_env(on_gpus)["CUDA_VISIBLE_DEVICES"] == ""


def test_vllms_model_runner_is_its_own_choice_unless_one_is_named() -> None:
    chosen = [
        worker_vars(verl_settings(platform="gpu", vllm_model_runner=name)) for name in ("auto", "v1", "v2")
    ]
    assert [found.get(RUNNER) for found in chosen] == [None, "0", "1"]
    assert RUNNER not in worker_vars(verl_settings(vllm_model_runner="v2"))  # its CPU build has one alone


def test_vllm_says_what_it_does_with_the_memory_of_gpus() -> None:
    assert worker_vars(verl_settings(platform="gpu"))["VLLM_LOGGING_LEVEL"] == "INFO"
    assert worker_vars(verl_settings())["VLLM_LOGGING_LEVEL"] == "WARN"


def test_trajectories_of_gpus_are_held_by_several_processes() -> None:
    units = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
    found = [engine_overrides(verl_settings(platform=platform))[units] for platform in ("gpu", "cpu")]
    assert found == [4, 1]


def test_on_gpus_a_model_in_a_folder_asks_no_hub(tmp_path: Path) -> None:
    in_folder = verl_settings(platform="gpu", model_path=str(tmp_path))
    assert worker_vars(in_folder)["HF_HUB_OFFLINE"] == "1"
    by_name = verl_settings(platform="gpu", model_path="Qwen/Qwen3-0.6B")
    assert "HF_HUB_OFFLINE" not in worker_vars(by_name)
