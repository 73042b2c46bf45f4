"""The doctor's check of GPUs, on the CPU: the same processes, product and collective; and its findings."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from llmzero_ray.cli.doctor import gpu_probe
from llmzero_ray.cli.doctor.gpu_probe import probe_gpus
from llmzero_ray.cli.doctor.machine_findings import gpus
from llmzero_ray.errors import EngineError
from llmzero_ray.launch.nodes import NoResult


def answer(**changes: Any) -> dict[str, Any]:
    checks = ["matrix product", "flash attention", "NCCL"]
    found = {"driver": "580.65.06", "cuda": "13.0", "used_mib": [3.0] * 8, "checks": checks, "problems": []}
    return {**found, **changes}


@pytest.mark.slow
def test_ranks_multiply_and_add_up() -> None:
    found = probe_gpus(2, "cpu")
    assert (found["problems"], found["cuda"]) == ([], None)


@pytest.mark.parametrize("flash_attention", [True, False])
def test_flash_attention_is_asked_for_only_if_the_policy_trains_with_it(
    flash_attention: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, '{"cuda": "13.0", "problems": []}\n', "")

    monkeypatch.setattr(subprocess, "run", run)
    found = gpus({"a": probe_gpus(1, "cuda", flash_attention)})
    assert found.status == "ok" and ("flash attention" in found.found) == flash_attention


@pytest.mark.slow
def test_without_a_gpu_the_check_says_so() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert probe_gpus(1)["problems"] == ["torch finds no GPU"]


def test_a_check_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_probe, "PROBE_S", 0.01)
    with pytest.raises(EngineError, match=r"did not answer within 0\.01 s; a collective may hang"):
        probe_gpus(2, "cpu")


def test_machines_whose_gpus_compute_and_are_free_are_ok() -> None:
    found = gpus({"a": answer(), "b": answer()})
    assert found.status == "ok" and found.found.startswith(
        "2 machine(s): matrix product, flash attention, NCCL"
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"driver": "570.1"}, "b: driver 570.1 is too old for CUDA 13.0, which needs 580 or later"),
        (
            {"problems": ["GPU 3: flash attention: ModuleNotFoundError: No module named 'flash_attn'"]},
            "GPU 3: flash",
        ),
        ({"problems": ["GPU 0: NCCL: the sum over 8 GPUs is 7, not 36"]}, "b: GPU 0: NCCL"),
    ],
)
def test_a_machine_that_cannot_train_fails_by_name(wrong: dict[str, Any], said: str) -> None:
    found = gpus({"a": answer(), "b": answer(**wrong)})
    assert found.status == "FAIL" and said in found.found and "a:" not in found.found and found.todo


def test_a_machine_without_an_answer_fails() -> None:
    found = gpus({"a": NoResult(reason="no answer within 330 s")})
    assert (found.status, found.found) == ("FAIL", "a: no answer within 330 s")


def test_gpus_that_something_else_uses_are_a_warning() -> None:
    found = gpus({"a": answer(used_mib=[3.0, 30_720.0])})
    assert (found.status, found.found) == ("warn", "a: 1 GPU(s) with up to 30.0 GiB in use")
