"""Bytes that one token costs in a pass through the model, as VeRL's FSDP engine runs it in bf16.

Counted from transformers' eager Qwen3 modules under PEFT (base weights frozen, adapters on all projections,
no dropout) with flash attention: a frozen projection keeps nothing for its backward pass, but `lora_A` keeps
its input; an RMSNorm computes in float32 and keeps that copy; attention keeps queries, keys, values and
output; SwiGLU keeps gate, its activation, up and their product. The tests compare this with what torch itself
keeps. Not here: how many tokens a pass has (setup.py), and what else lies in memory (moments.py).
"""

from __future__ import annotations

from llmzero_ray.memory.setup import Setup
from llmzero_ray.memory.shapes import ModelShape
from llmzero_ray.memory.sizes import Range

_BF16 = 2
_FP32 = 4


def kept_of_layer(shape: ModelShape, rank: int) -> int:
    """Kept of one decoder layer until its backward pass, without gradient checkpointing."""
    norms = 2 * (_FP32 + _BF16) * shape.hidden + shape.qk_norm * _FP32 * (shape.queries + shape.keys)
    attention = _BF16 * (2 * shape.queries + 2 * shape.keys)
    mlp = 4 * _BF16 * shape.intermediate
    return norms + attention + mlp + 7 * _BF16 * rank


def kept_of_checkpoint(shape: ModelShape) -> int:
    """Kept of one decoder layer with gradient checkpointing: its input."""
    return _BF16 * shape.hidden


def backward_work(shape: ModelShape) -> int:
    """Gradients alive at once in the backward pass of one layer, beyond what it kept: those of the MLP."""
    return 2 * _BF16 * shape.intermediate + 3 * shape.hidden


def forward_work(shape: ModelShape) -> int:
    """Alive at once in a forward pass that keeps nothing."""
    return 3 * _BF16 * shape.intermediate + 14 * shape.hidden


def head_work(shape: ModelShape) -> int:
    """Kept of the last norm while the logits exist, and its output."""
    return (_FP32 + _BF16) * shape.hidden


def logits(shape: ModelShape, setup: Setup) -> Range:
    """Logits of one token until the loss has its gradient.

    `FSDPEngineWithLMHead.prepare_model_outputs`: bf16, divided out of place by a temperature that is not 1
    (the undivided ones stay referenced by the model's output). `logprobs_from_logits` uses flash-attn's
    cross-entropy, which writes the gradient over the logits. Padded passes copy the logits once more. A fused
    kernel never makes them.
    """
    if setup.fused_kernels:
        return Range.exactly(0)
    copies = 1 + (setup.temperature != 1.0) + (not setup.remove_padding)
    return Range.exactly(copies * _BF16 * shape.vocab)


def entropy_of_log_probs(shape: ModelShape, setup: Setup, tokens: Range) -> Range:
    """Bytes (not per token) beside the logits while the entropy of old log-probs is taken, in float32.

    VeRL always takes it there (`_compute_old_log_prob`). Compiled, softmax and sums run in one sweep over the
    vocabulary; should torch fall back, float copies appear. In chunks the copies are as long as a chunk.
    """
    if setup.fused_kernels:
        return Range.exactly(0)
    if setup.entropy_chunk is not None:
        rows = Range(
            min(tokens.low, setup.entropy_chunk),
            min(tokens.likely, setup.entropy_chunk),
            min(tokens.high, setup.entropy_chunk),
        )
        return rows * Range(8, 12, 16) * shape.vocab
    eager = Range(8, 12, 14)
    return tokens * (Range(0, 0, 4) if setup.torch_compile else eager) * shape.vocab


def entropy_of_update(shape: ModelShape, setup: Setup) -> Range:
    """Beside the logits of one token when the loss has an entropy bonus: what its backward pass needs."""
    if setup.entropy_coeff == 0 or setup.fused_kernels:
        return Range.exactly(0)
    return (Range(4, 8, 24) if setup.torch_compile else Range(20, 24, 26)) * shape.vocab
