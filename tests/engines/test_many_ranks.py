"""What each of 16 ranks holds of an adapter: on a plain mesh, and sharded within machines of eight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("verl")

from tests.engines.fake_ranks import (  # noqa: E402
    fake_rank,
    on_ranks,
    peft_qwen3,
    sharded,
    shards,
    worker_of,
)

pytestmark = pytest.mark.slow  # VeRL is imported, and each rank is a process

WORLD = 16
MESHES = {"plain": -1, "hybrid": 8}
"""VeRL's `fsdp_size`."""
LORA_RANK = 4
SIZES: dict[str, Any] = {
    "hidden_size": 20,  # of 16 ranks, and of 8, some get less and some nothing
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "vocab_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


@pytest.fixture
def saved(tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """An adapter with values everywhere, as a PEFT folder, and its tensors by the live module's names."""
    from llmzero_ray.engines.verl.adapters import peft_name, save_peft

    model, drawn = peft_qwen3(SIZES, LORA_RANK), torch.Generator().manual_seed(1)
    tensors = {
        name: torch.randn(parameter.shape, generator=drawn)
        for name, parameter in model.named_parameters()
        if "lora_" in name
    }
    config = model.peft_config["default"].to_dict()
    path = tmp_path / "adapter"
    save_peft(path, {peft_name(name): tensor for name, tensor in tensors.items()}, config, {})
    return str(path), tensors


def tiny_worker(fsdp_size: int) -> Any:
    torch.manual_seed(0)
    return worker_of(sharded(peft_qwen3(SIZES, LORA_RANK), WORLD, fsdp_size))


def loaded(rank: int, fsdp_size: int, path: str | None, seed: int) -> tuple[int, dict[str, Any]]:
    """On a rank: how many tensors `load_adapter` wrote, and what this rank has of them."""
    with fake_rank(rank, WORLD):
        worker = tiny_worker(fsdp_size)
        return worker.load_adapter(path, seed), shards(worker)


@pytest.mark.parametrize("mesh", [pytest.param("plain", marks=pytest.mark.long), "hybrid"])
def test_the_shards_that_ranks_write_are_the_adapter(mesh: str, saved: tuple[str, Any]) -> None:
    path, wanted = saved
    answers = on_ranks(loaded, range(WORLD), MESHES[mesh], path, 0)
    assert {written for written, _ in answers} == {len(wanted)}
    held = [found for _, found in answers]
    per_copy = WORLD if mesh == "plain" else 8
    for name, full in wanted.items():
        for start in range(0, WORLD, per_copy):  # each machine of the hybrid mesh has the whole of it
            parts = [found[name] for found in held[start : start + per_copy]]
            assert np.array_equal(np.concatenate(parts), full.numpy()), name
    sizes = {found[name].shape[0] for found in held for name in wanted}
    assert 0 in sizes and len(sizes) > 2  # uneven, and empty on some ranks


@pytest.mark.long
@pytest.mark.parametrize("mesh", MESHES)
def test_a_fresh_adapter_is_the_same_for_any_number_of_ranks(mesh: str, saved: tuple[str, Any]) -> None:
    from llmzero_ray.engines.verl.adapters import fresh_lora

    some = (0, 5, 15)
    ranks = WORLD if mesh == "plain" else 8
    for rank, (_, found) in zip(some, on_ranks(loaded, some, MESHES[mesh], None, 7), strict=True):
        for name, like in saved[1].items():
            whole = fresh_lora(name, tuple(like.shape), 7)
            parts = torch.chunk(whole, ranks)
            expected = parts[rank % ranks] if rank % ranks < len(parts) else whole[:0]
            assert np.array_equal(found[name], expected.numpy()), name


def saved_and_restored(rank: int, fsdp_size: int, adapter: str, place: str) -> tuple[list[Any], list[Any]]:
    """On a rank: digests of what `save_full` wrote, of what another phase made of it, and of what `load_full`
    put back; and its shards at the first and at the last of these."""
    with fake_rank(rank, WORLD):
        worker = tiny_worker(fsdp_size)
        engine = worker.actor.engine
        worker.load_adapter(adapter, 0)
        for parameter in engine.module.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.ones_like(parameter)
        engine.optimizer.step()
        engine.lr_scheduler.step()
        before, saved = shards(worker), worker.save_full(place)
        worker.load_adapter(None, 3)
        engine.optimizer.step()
        return [saved, worker._full_digests(), worker.load_full(place)], [before, shards(worker)]


@pytest.mark.long
@pytest.mark.parametrize("mesh", MESHES)
def test_each_rank_saves_its_shard_and_goes_on_from_it(
    mesh: str, saved: tuple[str, Any], tmp_path: Path
) -> None:
    some, place = (0, 3, 14), tmp_path / "full"
    answers = on_ranks(saved_and_restored, some, MESHES[mesh], saved[0], str(place))
    for (first, between, last), (before, after) in answers:
        assert last == first and between["adapter"] != first["adapter"]
        assert between["optimizer"] != first["optimizer"]
        assert all(np.array_equal(after[name], value) for name, value in before.items())
    names = {path.name for path in place.glob("model_*")}
    assert names == {f"model_world_size_{WORLD}_rank_{rank}.pt" for rank in some}
    assert len({first["adapter"] for (first, *_), _ in answers}) == len(some)
