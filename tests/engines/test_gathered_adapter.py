"""An FSDP2 module's adapter is read whole, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def mesh() -> Iterator[Any]:
    """One rank on the CPU."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield dist.device_mesh.init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


def policy() -> Any:
    """A two-layer model with an adapter whose B is not zero."""
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    model = get_peft_model(
        Qwen3ForCausalLM(Qwen3Config(**sizes, **heads)), LoraConfig(r=4, target_modules="all-linear")
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape))
    return model


def test_it_is_what_peft_saves(mesh: Any) -> None:
    from peft import get_peft_model_state_dict
    from torch.distributed.fsdp import fully_shard

    from llmzero_ray.engines.verl.adapters import digest_of, gathered

    model = policy()
    wanted = {name: tensor.clone() for name, tensor in get_peft_model_state_dict(model).items()}
    for layer in model.base_model.model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(input_ids=torch.tensor([[1, 2, 3]]))  # the root holds gathered parameters now
    found = gathered(model)
    assert list(found) == list(wanted) and digest_of(found) == digest_of(wanted)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.to_local().zero_()
    assert digest_of(found) == digest_of(wanted)  # a copy, not a view
