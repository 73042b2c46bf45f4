"""The doctor's check of GPUs, on the CPU: the same processes, product and collective; and its findings."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from llmzero_ray.cli.doctor import gpu_probe
from llmzero_ray.cli.doctor.gpu_probe import check_all, probe_gpus
from llmzero_ray.cli.doctor.machine_findings import gpus
from llmzero_ray.engines.verl.internals import card_problem
from llmzero_ray.errors import EngineError
from llmzero_ray.launch.nodes import NoResult


def answer(**changes: Any) -> dict[str, Any]:
    checks = ["matrix product", "flash attention", "CUDA IPC", "NCCL"]
    found = {"driver": "580.65.06", "cuda": "13.0", "used_mib": [3.0] * 8, "checks": checks, "problems": []}
    return {**found, **changes}


@pytest.mark.slow
def test_ranks_multiply_share_memory_and_add_up() -> None:
    found = probe_gpus(2, "cpu")
    assert found["checks"] == ["matrix product", "CUDA IPC", "NCCL"]
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


@pytest.mark.parametrize(
    ("capability", "built_for", "said"),
    [
        ((7, 5), ["sm_75", "sm_90"], "compute capability 7.5 is too old"),
        ((9, 0), ["sm_80", "sm_90"], None),
        ((9, 0), ["sm_90a"], None),
        ((8, 9), ["sm_80", "sm_90"], None),
        ((8, 0), ["sm_86", "sm_90"], "code for sm_86, sm_90, and none for compute capability 8.0"),
        ((9, 0), ["sm_80"], "none for compute capability 9.0"),
        ((12, 0), ["sm_90", "compute_90"], None),
        ((10, 3), ["sm_100", "sm_120"], None),
        ((9, 0), [], "code for no GPU"),
    ],
)
def test_a_card_of_another_architecture_is_named_with_the_cure(
    capability: tuple[int, int], built_for: list[str], said: str | None
) -> None:
    problem = card_problem(capability, built_for)
    assert (problem is None) if said is None else (problem is not None and said in problem)
    assert problem is None or "Leave this GPU out" in problem or "Install a build of torch" in problem


def test_no_check_starts_on_a_card_of_another_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    card = {"is_available": True, "device_count": 2, "get_device_name": "Tesla T4"}
    card |= {"get_device_capability": (7, 5), "get_arch_list": ["sm_75", "sm_90"]}
    for name, value in card.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    problems = check_all(2, "cuda", ["no such check"])["problems"]
    assert [line.partition(":")[0] for line in problems] == ["GPU 0 (Tesla T4)", "GPU 1 (Tesla T4)"]


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
        "2 machine(s): matrix product, flash attention, CUDA IPC, NCCL"
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


def test_where_cuda_ipc_is_forbidden_the_sandbox_is_the_cure() -> None:
    found = gpus({"a": answer(problems=["GPU 0: CUDA IPC: RuntimeError: another process cannot read"])})
    assert found.status == "FAIL" and "permits CUDA IPC" in found.todo


def test_a_machine_without_an_answer_fails() -> None:
    found = gpus({"a": NoResult(reason="no answer within 330 s")})
    assert (found.status, found.found) == ("FAIL", "a: no answer within 330 s")


def test_gpus_that_something_else_uses_are_a_warning() -> None:
    found = gpus({"a": answer(used_mib=[3.0, 30_720.0])})
    assert (found.status, found.found) == ("warn", "a: 1 GPU(s) with up to 30.0 GiB in use")
