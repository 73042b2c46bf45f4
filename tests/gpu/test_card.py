"""What training needs of a card, part by part and without this project's engine: if `test_bring_up` fails,
these tests say which part does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.cli.doctor.gpu_probe import probe_gpus
from llmzero_ray.engines.verl import internals
from llmzero_ray.engines.verl.canary import difference, summary
from llmzero_ray.estimate import card_gib
from tests.gpu.card import (
    ROOT,
    SHARE,
    in_child,
    needs_card,
    problem_of,
    serve,
    train_lora,
    write_adapter,
)
from tests.gpu.report import note

A100 = ("NVIDIA A100-SXM4-40GB", (8, 0))
SOUND: dict[str, Any] = {
    "driver": "580.65.06",
    "cuda": "13.0",
    "cards": [A100],
    "built_for": ["sm_80", "sm_90"],
    "free_gib": 39.0,
}


@pytest.mark.parametrize(
    ("found", "said", "cure"),
    [
        (
            {"driver": "570.86.15", "cards": []},
            "driver 570.86.15 is too old for CUDA 13.0",
            "update the driver",
        ),
        ({"cuda": None, "cards": []}, "torch (CUDA None) finds no GPU", "install torch with CUDA"),
        (
            {"cards": [("Tesla T4", (7, 5))]},
            "Tesla T4: compute capability 7.5 is too old",
            "Leave this GPU out",
        ),
        ({"built_for": ["sm_90"]}, "none for compute capability 8.0", "Install a build of torch"),
        ({"free_gib": 3.0}, "has 3.0 GiB free, and these tests take 8", "end what runs there"),
    ],
)
def test_what_no_card_of_this_kind_can_do_is_one_line_with_the_cure(
    found: dict[str, Any], said: str, cure: str
) -> None:
    assert problem_of(**SOUND) is None
    problem = problem_of(**SOUND | found)
    assert problem is not None and said in problem and cure in problem and "\n" not in problem


SMALL_MODEL = str(ROOT / "benchmarks" / "suite" / "models" / "chain_sum")


@pytest.mark.gpu
@needs_card
def test_driver_and_versions_are_those_that_the_engine_needs() -> None:
    note(driver=internals.driver_version(), cuda=internals.cuda_version(), gib=card_gib())
    internals.check_versions("gpu")
    in_child(internals.check_names, internals.relied_on("gpu"))


@pytest.mark.takes(30)
@pytest.mark.gpu
@needs_card
def test_products_flash_attention_memory_of_another_process_and_nccl_give_right_results() -> None:
    found = probe_gpus(1)
    note(**found)
    assert found["problems"] == []


def check_training(path: str, device: str) -> None:
    found = in_child(train_lora, path, device)
    note(training=found)
    assert found.losses[-1] < found.losses[0]
    assert found.adapter_changed and not found.base_changed


@pytest.mark.takes(40)
@pytest.mark.gpu
@needs_card
def test_a_step_of_lora_under_fsdp2_in_bf16_lowers_the_loss(model: str) -> None:
    check_training(model, "cuda")


@pytest.mark.slow
def test_the_same_step_does_so_on_the_cpu() -> None:
    check_training(SMALL_MODEL, "cpu")


@pytest.mark.takes(60)
@pytest.mark.gpu
@needs_card
def test_vllm_answers_with_an_adapter_and_gives_memory_back_while_it_sleeps(
    model: str, tmp_path: Path
) -> None:
    total = card_gib()
    assert total is not None
    actor = in_child(write_adapter, model, str(tmp_path), "cuda")
    found = in_child(serve, model, str(tmp_path), "cuda")
    note(
        awake=summary(actor, found.awake),
        freed_gib=round(found.freed_gib, 2),
        taken_again_gib=round(found.taken_again_gib, 2),
    )
    assert difference(actor, found.awake) is None
    assert min(found.freed_gib, found.taken_again_gib) > 0.8 * SHARE * total
    assert difference(actor, found.after_sleep) is None


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.verl
def test_vllm_answers_with_the_same_adapter_on_the_cpu(tmp_path: Path) -> None:
    actor = in_child(write_adapter, SMALL_MODEL, str(tmp_path), "cpu")
    served = in_child(serve, SMALL_MODEL, str(tmp_path), "cpu").awake
    assert difference(actor, served) is None
    assert "without the adapter" in str(difference(actor, type(served)(policy=served.base, base=served.base)))
