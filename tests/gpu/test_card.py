"""What training needs of a card, part by part and without this project's engine: if `test_bring_up` fails,
these tests say which part does."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmzero_ray.cli.doctor.gpu_probe import probe_gpus
from llmzero_ray.engines.verl import internals
from llmzero_ray.engines.verl.canary import difference, summary
from llmzero_ray.estimate.card import card_gib
from tests.gpu.card import (
    ROOT,
    SHARE,
    in_child,
    needs_card,
    serve,
    sum_in_another_process,
    train_lora,
    write_adapter,
)

SMALL_MODEL = str(ROOT / "benchmarks" / "suite" / "models" / "chain_sum")


@pytest.mark.gpu
@needs_card
def test_driver_and_versions_are_those_that_the_engine_needs() -> None:
    print(f"driver {internals.driver_version()}, CUDA {internals.cuda_version()}, {card_gib()} GiB")
    internals.check_versions("gpu")
    in_child(internals.check_names, internals.relied_on("gpu"))


@pytest.mark.gpu
@needs_card
def test_bf16_products_flash_attention_and_nccl_give_right_results() -> None:
    found = probe_gpus(1)
    print(found)
    assert found["problems"] == []


@pytest.mark.gpu
@needs_card
def test_another_process_reads_a_tensor_on_the_card() -> None:
    """As VeRL hands adapters to vLLM."""
    assert in_child(sum_in_another_process) == 2**20


def check_training(path: str, device: str) -> None:
    found = in_child(train_lora, path, device)
    print(found)
    assert found.losses[-1] < found.losses[0]
    assert found.adapter_changed and not found.base_changed


@pytest.mark.gpu
@needs_card
def test_a_step_of_lora_under_fsdp2_in_bf16_lowers_the_loss(model: str) -> None:
    check_training(model, "cuda")


@pytest.mark.slow
def test_the_same_step_does_so_on_the_cpu() -> None:
    check_training(SMALL_MODEL, "cpu")


@pytest.mark.gpu
@needs_card
def test_vllm_answers_with_an_adapter_and_gives_memory_back_while_it_sleeps(
    model: str, tmp_path: Path
) -> None:
    total = card_gib()
    assert total is not None
    actor = in_child(write_adapter, model, str(tmp_path), "cuda")
    found = in_child(serve, model, str(tmp_path), "cuda")
    print(summary(actor, found.awake), found)
    assert difference(actor, found.awake) is None
    assert min(found.freed_gib, found.taken_again_gib) > 0.8 * SHARE * total
    assert difference(actor, found.after_sleep) is None


@pytest.mark.slow
@pytest.mark.verl
def test_vllm_answers_with_the_same_adapter_on_the_cpu(tmp_path: Path) -> None:
    actor = in_child(write_adapter, SMALL_MODEL, str(tmp_path), "cpu")
    served = in_child(serve, SMALL_MODEL, str(tmp_path), "cpu").awake
    assert difference(actor, served) is None
    assert "without the adapter" in str(difference(actor, type(served)(policy=served.base, base=served.base)))
