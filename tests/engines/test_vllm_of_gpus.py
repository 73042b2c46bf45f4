"""The vLLM of GPU machines, which is not installed here: its names, and its configuration for each preset.

Its wheel (280 MB) is downloaded once and its Python files are kept in pytest's cache.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.config import SearchConfig
from llmzero_ray.engines.verl.internals import VLLM_VERSIONS
from tests.engines.test_gpu_presets import PRESETS

pytestmark = [pytest.mark.slow, pytest.mark.long]

ROOT = Path(__file__).parents[2]
_KEPT = (".py", ".json", "/METADATA", "/entry_points.txt")


def pinned() -> str:
    """The version that VeRL itself asks for."""
    wanted = importlib.metadata.requires("verl") or []
    versions = {found[1] for each in wanted if (found := re.match(r"vllm==([\d.]+)", each))}
    (version,) = versions
    return version


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python files of that vLLM."""
    place = Path(str(request.config.cache.mkdir(f"vllm-{pinned()}")))
    if (place / "complete").exists():
        return place
    wheels = tmp_path_factory.mktemp("wheels")
    only = ["--no-deps", "--only-binary", ":all:", "--platform", "manylinux_2_28_x86_64"]
    pip = [sys.executable, "-m", "pip", "download", "-q", *only, "-d", str(wheels), f"vllm=={pinned()}"]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"vllm {pinned()} cannot be downloaded: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = wheels.iterdir()
    with zipfile.ZipFile(wheel) as files:
        files.extractall(place, [name for name in files.namelist() if name.endswith(_KEPT)])
    wheel.unlink()
    (place / "complete").touch()
    return place


@pytest.fixture(scope="module")
def report(folder: Path) -> dict[str, Any]:
    """What vllm_on_a_card.py prints."""
    plugin = {"VERL_USE_EXTERNAL_MODULES": "llmzero_ray.engines.verl.plugin"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.engines.vllm_on_a_card", str(folder)],
        env={**os.environ, **plugin, "CUDA_VISIBLE_DEVICES": "0", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_it_is_a_version_that_the_engine_takes_and_has_all_names(report: dict[str, Any]) -> None:
    assert report["version"] == pinned()
    assert report["version"].startswith(VLLM_VERSIONS["gpu"][0] + ".")
    assert report["missing"] == ""


def parametrized() -> list[Any]:
    return [pytest.param(name, config, id=name) for name, config in sorted(PRESETS.items())]


@pytest.mark.parametrize(("name", "config"), parametrized())
def test_its_configuration_is_the_presets(name: str, config: SearchConfig, report: dict[str, Any]) -> None:
    found, engine = report["presets"][name], config.engine
    assert {
        key: found[key] for key in ("max_num_seqs", "gpu_memory_utilization", "tensor_parallel_size")
    } == {
        "max_num_seqs": engine.max_num_seqs,
        "gpu_memory_utilization": engine.gpu_memory_utilization,
        "tensor_parallel_size": engine.tensor_model_parallel_size,
    }
    assert found["max_model_len"] == engine.max_prompt_length + max(
        engine.max_response_length, config.eval.max_response_length
    )
    assert found["max_num_batched_tokens"] >= found["max_model_len"]
    assert (found["max_loras"], found["dtype"]) == (1, "torch.bfloat16")
    assert found["max_lora_rank"] >= config.model.lora_rank
    # Weights come through our extension, sleep frees the card, log-probabilities are those sampled from.
    assert found["worker_extension_cls"].endswith(".WeightReceiver")
    assert found["sleep_mode"] and found["prefix_caching"]
    assert found["logprobs_mode"] == "processed_logprobs"
    assert (found["executor"], found["enforce_eager"]) == ("mp", False)
    assert found["graphs"] == "FULL_AND_PIECEWISE" and 8 <= found["n_captured"] <= 60


def test_it_runs_qwen3_with_an_adapter_on_its_second_model_runner(report: dict[str, Any]) -> None:
    """Where this changes, `engine.vllm_model_runner` and the bring-up on one card are read again."""
    assert {name for name, found in report["presets"].items() if found["v2_model_runner"]} == set(PRESETS)


def test_either_model_runner_can_be_asked_for(report: dict[str, Any]) -> None:
    assert report["runners"] == {"v1": False, "v2": True}
