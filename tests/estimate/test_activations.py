"""The formulas for activations against what torch keeps and holds, on a small Qwen3 in bf16 on the CPU."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from transformers import Qwen3Config, Qwen3ForCausalLM

from llmzero_ray.estimate.model_shape import ModelShape
from llmzero_ray.estimate.stages import (
    backward_work,
    forward_work,
    head_work,
    kept_of_checkpoint,
    kept_of_layer,
    logits,
)

from .builders import setup

TOKENS = 384
RANK = 8
_WIDE_MLP = ModelShape(
    name="wide MLP",
    hidden=192,
    intermediate=576,
    layers=3,
    heads=4,
    kv_heads=2,
    head_dim=48,
    vocab=128,
    tied=True,
)
SHAPES = (
    _WIDE_MLP,
    dataclasses.replace(
        _WIDE_MLP, name="wide attention", hidden=128, intermediate=384, layers=4, head_dim=64
    ),
)


@pytest.fixture(params=SHAPES, ids=lambda shape: shape.name)
def shape(request: pytest.FixtureRequest) -> ModelShape:
    found: ModelShape = request.param
    return found


def policy(shape: ModelShape, *, checkpointing: bool, vocab: int = 128) -> Any:
    """As VeRL builds it: base and adapter in one precision, inputs that need gradients."""
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=vocab,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    lora = LoraConfig(r=RANK, lora_alpha=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = get_peft_model(model, lora, autocast_adapter_dtype=False)
    assert {p.dtype for p in adapted.parameters()} == {torch.bfloat16}
    return adapted.train()


def storages(model: Any) -> Iterator[int]:
    return (t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers()))


def kept_bytes(model: Any) -> int:
    """Of the storages that torch keeps for the backward pass of the decoder, weights not counted."""
    weights, kept = set(storages(model)), {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage  # alive, so that no other takes its place
        return tensor

    decoder = model.base_model.model.model
    ids = torch.randint(0, 128, (1, TOKENS))
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16),
    ):
        hidden = decoder(input_ids=ids, use_cache=False).last_hidden_state
    assert hidden.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


class Peak(TorchDispatchMode):
    """Counts bytes of storages that live at once."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._sizes = dict.fromkeys(storages(model), 0)
        self._live = self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for value in tree_flatten(made)[0]:
            if isinstance(value, torch.Tensor):
                self._add(value.untyped_storage())
        return made

    def _add(self, storage: Any) -> None:
        if storage._cdata in self._sizes:
            return
        self._sizes[storage._cdata] = storage.nbytes()
        self._live += storage.nbytes()
        self.bytes = max(self.bytes, self._live)
        weakref.finalize(storage, self._drop, storage._cdata)

    def _drop(self, key: int) -> None:
        self._live -= self._sizes.pop(key, 0)


class InPlaceLoss(torch.autograd.Function):
    """As flash-attn's cross-entropy treats memory: the gradient takes the place of the logits."""

    @staticmethod
    def forward(context: Any, scores: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(scores)
        return scores[..., 0].float()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        (scores,) = context.saved_tensors
        found: torch.Tensor = scores.mul_(gradient.unsqueeze(-1))
        return found


def peak_bytes(model: Any, *, train: bool, vocab: int) -> int:
    ids = torch.randint(0, vocab, (1, TOKENS))
    with Peak(model) as peak, torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(train):
        scores = model(input_ids=ids, use_cache=False).logits
        loss = InPlaceLoss.apply(scores).sum()
        del scores
        if train:
            loss.backward()
    return peak.bytes


def test_a_layer_keeps_what_torch_keeps(shape: ModelShape) -> None:
    output = TOKENS * shape.layers * kept_of_layer(shape, RANK)
    assert kept_bytes(policy(shape, checkpointing=False)) == pytest.approx(output, rel=0.15)


def test_with_checkpointing_a_layer_keeps_its_input(shape: ModelShape) -> None:
    # The last norm is outside of the layers.
    output = TOKENS * (shape.layers * kept_of_checkpoint(shape) + 4 * shape.hidden)
    assert kept_bytes(policy(shape, checkpointing=True)) == pytest.approx(output, rel=0.15)


def test_an_update_peaks_at_a_layer_where_the_vocabulary_is_small(shape: ModelShape) -> None:
    kept = shape.layers * kept_of_checkpoint(shape)
    output = TOKENS * (kept + kept_of_layer(shape, RANK) + backward_work(shape))
    assert peak_bytes(policy(shape, checkpointing=True), train=True, vocab=128) == pytest.approx(
        output, rel=0.15
    )


def test_an_update_peaks_at_the_logits_where_the_vocabulary_is_large(shape: ModelShape) -> None:
    vocab = 8192
    kept = shape.layers * kept_of_checkpoint(shape)
    output = TOKENS * (kept + 2 * vocab + head_work(shape))
    model = policy(shape, checkpointing=True, vocab=vocab)
    assert peak_bytes(model, train=True, vocab=vocab) == pytest.approx(output, rel=0.15)
    large = setup()
    assert logits(SHAPES[0], large).likely == 2 * SHAPES[0].vocab


def test_a_forward_pass_that_keeps_nothing_holds_one_layer_at_work(shape: ModelShape) -> None:
    output = TOKENS * forward_work(shape)
    assert peak_bytes(policy(shape, checkpointing=True), train=False, vocab=128) == pytest.approx(
        output, rel=0.2
    )
