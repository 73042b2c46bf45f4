"""An FSDP2 module's adapter is read whole, and nothing else is; its optimizer's state goes both ways."""

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


def sharded(mesh: Any, weights: Any = None) -> tuple[Any, Any]:
    """(policy, its AdamW), over the mesh; `weights`: those of another policy."""
    from torch.distributed.fsdp import fully_shard

    model = policy()
    if weights is not None:
        model.load_state_dict(weights)
    for layer in model.base_model.model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model: Any, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        ids = torch.tensor([[1, 2, 3, 4]])
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_new_optimizer_with_the_saved_state_goes_on_as_the_old_one(mesh: Any) -> None:
    from llmzero_ray.engines.verl.adapters import digest_of, gathered, optimizer_state, restore_optimizer

    start = policy().state_dict()
    model, optimizer = sharded(mesh, start)
    train(model, optimizer, 3)
    state = optimizer_state(model, optimizer)
    lora = list(gathered(model))
    assert {name.rpartition(":")[0] for name in state} == set(lora)
    assert {name.rpartition(":")[2] for name in state} == {"step", "exp_avg", "exp_avg_sq"}
    fresh = torch.optim.AdamW(model.parameters(), lr=1e-2)
    restore_optimizer(model, fresh, state)
    assert digest_of(optimizer_state(model, fresh)) == digest_of(state)
    train(model, fresh, 2)
    undisturbed, its_own = sharded(mesh, start)
    train(undisturbed, its_own, 5)
    assert digest_of(gathered(model)) == digest_of(gathered(undisturbed))
    with pytest.raises(ValueError, match="which is not trained here"):
        restore_optimizer(model, fresh, {"other.lora_A.weight:step": torch.tensor(1.0)})
