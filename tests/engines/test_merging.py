"""Merged weights are what PEFT merges, by the base model's own names, and the base model is only read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")


def policy(dtype: Any, change: float) -> Any:
    """A two-layer model with tied embeddings, and an adapter whose B has values of this size."""
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": True}
    base = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads)).to(torch.bfloat16).to(dtype)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape) * change)
    return model


DTYPES = (torch.float32, torch.bfloat16)


def merge_on(rank: int, store: str, found: str) -> None:
    """One of two ranks, for each dtype: twenty times over, with the base model before and after."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    from llmzero_ray.engines.verl.merging import Rounding, merged_weights

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for dtype in DTYPES:
        model = policy(dtype, 0.02)
        for layer in model.base_model.model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model(input_ids=torch.tensor([[1, 2, 3]]))  # the root holds gathered parameters now
        before = {name: tensor.to_local().clone() for name, tensor in model.state_dict().items()}
        for _ in range(20):
            rounding = Rounding()
            merged = dict(merged_weights(model, torch.bfloat16, rounding))
        after = {name: tensor.to_local() for name, tensor in model.state_dict().items()}
        same = all(torch.equal(before[name], after[name]) for name in before)
        torch.save((merged, rounding.share, same), f"{found}{rank}-{dtype}")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def merged_on_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What both ranks found, for all dtypes: their processes take long to import torch and PEFT."""
    directory = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(merge_on, (str(directory / "store"), str(directory / "found")), nprocs=2)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_ranks_send_what_peft_merges_and_keep_the_base_model_to_the_bit(
    dtype: Any, merged_on_ranks: Path
) -> None:
    wanted = policy(torch.float32, 0.02)
    wanted = wanted.merge_and_unload().state_dict()
    del wanted["lm_head.weight"]  # tied: the model's file has none
    rounded = 1e-7 if dtype is torch.float32 else 1e-4  # of the adapter's own tensors
    for rank in range(2):
        merged, share, same = torch.load(merged_on_ranks / f"found{rank}-{dtype}")
        assert same
        assert merged.keys() == wanted.keys()
        assert all(tensor.dtype is torch.bfloat16 for tensor in merged.values())
        for name, tensor in merged.items():
            assert torch.allclose(tensor.float(), wanted[name], rtol=2**-8, atol=rounded), name
        assert 0 < share < 0.05


def rounding_of(change: float, dtype: Any) -> float:
    from llmzero_ray.engines.verl.merging import Rounding, merged_weights

    rounding = Rounding()
    assert len(list(merged_weights(policy(torch.float32, change), dtype, rounding))) > 10
    return rounding.share


def test_a_change_below_the_spacing_of_bfloat16_is_counted_as_lost() -> None:
    assert rounding_of(0.0, torch.bfloat16) == 0
    shares = [rounding_of(change, torch.bfloat16) for change in (1.0, 1e-2, 1e-4, 1e-6)]
    assert shares == sorted(shares) and shares[0] < 0.01 and shares[-1] > 0.9
    assert rounding_of(1e-2, torch.float32) < 1e-4


def test_an_adapter_that_is_no_product_beside_a_layer_is_refused() -> None:
    from llmzero_ray.engines.verl.merging import Rounding, merged_weights

    model = policy(torch.float32, 1.0)
    layer = model.base_model.model.model.layers[0].mlp.up_proj
    layer.use_dora["default"] = True
    with pytest.raises(ValueError, match=r"up_proj: .* Set engine\.serve_merged to false"):
        list(merged_weights(model, torch.bfloat16, Rounding()))
