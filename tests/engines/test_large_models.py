"""The models of the presets with their adapter, as VeRL wraps and shards them; on torch's meta device, which
holds shapes and no values."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("verl")

from llmzero_ray.estimate.model_shape import KNOWN  # noqa: E402
from tests.engines.fake_ranks import fake_rank, peft_qwen3, sharded  # noqa: E402
from tests.estimate.test_model_shape import config_of  # noqa: E402

pytestmark = pytest.mark.slow  # 400 modules are built and wrapped

N_GPUS, RANK = 8, 64
LORA_PARAMETERS = {"qwen3-4b": 132_120_576, "qwen3-8b": 174_587_904}
LAYERS, PROJECTIONS = 36, 7


@pytest.fixture(params=sorted(LORA_PARAMETERS))
def model(request: pytest.FixtureRequest) -> Any:
    """(name, the policy with its adapter) as each rank builds it before it is sharded."""
    with torch.device("meta"):
        return request.param, peft_qwen3(config_of(KNOWN[request.param]), lora_rank=RANK)


def test_the_adapter_has_the_tensors_that_vllm_takes(model: tuple[str, Any]) -> None:
    from vllm.lora.utils import parse_fine_tuned_lora_name

    from llmzero_ray.engines.verl.adapters import live_name, peft_name

    name, policy = model
    live = {each: p for each, p in policy.named_parameters() if p.requires_grad}
    assert all("lora_" in each for each in live)
    assert len(live) == LAYERS * PROJECTIONS * 2
    assert sum(p.numel() for p in live.values()) == LORA_PARAMETERS[name]
    assert KNOWN[name].lora_parameters(RANK) == LORA_PARAMETERS[name]
    assert all(live_name(peft_name(each)) == each for each in live)
    parsed = [parse_fine_tuned_lora_name(peft_name(each)) for each in live]
    modules = {module for module, is_a in parsed if is_a}
    assert modules == {module for module, is_a in parsed if not is_a}
    assert len(modules) == LAYERS * PROJECTIONS
    assert all(module.startswith("model.layers.") for module in modules)


def test_the_modules_are_sharded_as_the_memory_estimate_says(model: tuple[str, Any]) -> None:
    name, policy = model
    shape = KNOWN[name]
    held = []
    with fake_rank(3, N_GPUS):
        wrapped = sharded(policy, N_GPUS, -1)
        groups = [each for each in wrapped.modules() if hasattr(each, "reshard")]
        held = [(p.to_local().numel(), p.numel(), p.dtype) for p in wrapped.parameters()]
    # Each layer by itself, the rest with the root; an untied embedding and output layer by themselves too.
    assert len(groups) == LAYERS + 1 + (0 if shape.tied else 2)
    assert sum(whole for _, whole, _ in held) == shape.parameters + LORA_PARAMETERS[name]
    share = (shape.parameters + LORA_PARAMETERS[name]) / N_GPUS
    assert sum(local for local, _, _ in held) == pytest.approx(share, rel=1e-6)
    assert {dtype for *_, dtype in held} == {torch.float32}  # masters of a learning rate of 5e-5
