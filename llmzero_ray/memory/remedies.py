"""Settings that lower a phase's GPU memory: each with the set-up that it leads to and the keys that make it.

The cheapest come first: what changes only the speed, and last what changes what is learnt. Not here: how much
a change saves (verdict.py), which ones are combined (relief.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from llmzero_ray.hyperparameters.couplings import largest_divisor
from llmzero_ray.hyperparameters.table import (
    DYNAMIC_BSZ,
    GPU_MEMORY,
    GRADIENT_CHECKPOINTING,
    LOG_PROB_MICRO,
    MAX_NUM_SEQS,
    MAX_RESPONSE,
    MAX_TOKENS,
    MICRO_BATCH,
    OPTIMIZER_OFFLOAD,
    PARAM_OFFLOAD,
    REF_MICRO,
    TENSOR_PARALLEL,
)
from llmzero_ray.memory.setup import (
    BUCKET_MEGABYTES,
    ENTROPY_CHUNKING,
    LOG_PROB_MAX_TOKENS,
    Setup,
)
from llmzero_ray.memory.shapes import ModelShape
from llmzero_ray.records import HyperparameterValue

_LOWEST_SHARE, _HIGHEST_SHARE = 0.1, 0.9
_FEWEST_SEQUENCES = 16
_SMALLEST_BUCKET = 64 * 2.0**20
_CHUNK = 2048


@dataclass(frozen=True, kw_only=True)
class SettingChange:
    """One setting changed."""

    text: str
    """In the words of search.yaml, with its old and new value."""
    setup: Setup
    """With that change."""
    values: Mapping[str, HyperparameterValue]
    """VeRL's key -> new value; empty: only the user can change it, in `engine.overrides`."""
    shrinks_task: bool = False
    """Whether it changes what is learnt, and not only how fast."""


def setting_changes(shape: ModelShape, setup: Setup) -> Iterator[SettingChange]:
    """Set-ups that differ from this one in one setting; the cheapest first."""
    yield from _smaller_pieces(setup)
    yield from _other_shares(setup)
    if setup.max_num_seqs > _FEWEST_SEQUENCES:
        fewer = max(_FEWEST_SEQUENCES, setup.max_num_seqs // 2)
        yield SettingChange(
            text=f"engine.max_num_seqs {setup.max_num_seqs} -> {fewer}",
            setup=replace(setup, max_num_seqs=fewer),
            values={MAX_NUM_SEQS: fewer},
        )
    yield from _smaller_buffers(setup)
    wider = setup.tensor_parallel * 2
    if setup.n_gpus % wider == 0 and shape.heads % wider == 0:
        yield SettingChange(
            text=f"engine.tensor_model_parallel_size {setup.tensor_parallel} -> {wider}",
            setup=replace(setup, tensor_parallel=wider),
            values={TENSOR_PARALLEL: wider},
        )
    yield from _moved_and_recomputed(setup)
    yield from _other_sharding(setup)
    if setup.response > 1:
        yield _shorter_response(setup, setup.response // 2)


def least_tokens(setup: Setup) -> int:
    """Tokens of the smallest packed micro batch: a sequence is never split."""
    return -(-setup.sequence // setup.ulysses)


def _shorter_response(setup: Setup, response: int) -> SettingChange:
    """With micro batches packed as tightly as they go, only their smaller budget saves anything."""
    text = f"max_response_length {setup.response} -> {response}"
    values: dict[str, HyperparameterValue] = {MAX_RESPONSE: response}
    shorter = replace(setup, response=response)
    if setup.dynamic_bsz and setup.max_tokens <= least_tokens(setup):
        budget = least_tokens(shorter)
        text += f" with max_token_len_per_gpu {budget}"
        values[MAX_TOKENS] = budget
        shorter = replace(
            shorter, max_tokens=budget, log_prob_max_tokens=min(setup.log_prob_max_tokens, budget)
        )
    return SettingChange(text=text, setup=shorter, values=values, shrinks_task=True)


def _smaller_pieces(setup: Setup) -> Iterator[SettingChange]:
    least = least_tokens(setup)
    if not setup.dynamic_bsz:
        yield from _smaller_micro_batches(setup)
        budget = max(setup.max_tokens, least)
        yield SettingChange(
            text=f"dynamic_bsz false -> true with max_token_len_per_gpu {budget}",
            setup=replace(setup, dynamic_bsz=True, max_tokens=budget, log_prob_max_tokens=budget),
            values={DYNAMIC_BSZ: True, MAX_TOKENS: budget},
        )
        return
    half = max(least, setup.max_tokens // 2)
    if half >= setup.max_tokens:
        return
    scoring = min(setup.log_prob_max_tokens, half)
    values: dict[str, HyperparameterValue] = {MAX_TOKENS: half}
    if setup.log_prob_max_tokens != setup.max_tokens:
        values[LOG_PROB_MAX_TOKENS] = scoring
    yield SettingChange(
        text=f"max_token_len_per_gpu {setup.max_tokens} -> {half}",
        setup=replace(setup, max_tokens=half, log_prob_max_tokens=scoring),
        values=values,
    )


def _smaller_micro_batches(setup: Setup) -> Iterator[SettingChange]:
    """Divisors of the present ones, which divide the batch as these do."""
    update, scoring = setup.micro_batch, setup.log_prob_micro_batch
    if update > 1:
        size = largest_divisor(update, update // 2)
        yield SettingChange(
            text=f"micro_batch_size {update} -> {size}",
            setup=replace(setup, micro_batch=size),
            values={MICRO_BATCH: size},
        )
    if scoring > 1:
        size = largest_divisor(scoring, scoring // 2)
        yield SettingChange(
            text=f"log_prob_micro_batch_size and ref_micro_batch_size {scoring} -> {size}",
            setup=replace(setup, log_prob_micro_batch=size),
            values={LOG_PROB_MICRO: size, REF_MICRO: size},
        )


def _other_shares(setup: Setup) -> Iterator[SettingChange]:
    for name, change in (("lower", -0.1), ("higher", 0.1)):
        share = round(setup.utilization + change, 2)
        if _LOWEST_SHARE <= share <= _HIGHEST_SHARE:
            yield SettingChange(
                text=f"engine.gpu_memory_utilization {name}: {setup.utilization:g} -> {share:g}",
                setup=replace(setup, utilization=share),
                values={GPU_MEMORY: share},
            )


def _smaller_buffers(setup: Setup) -> Iterator[SettingChange]:
    if setup.entropy_chunk is None:
        yield SettingChange(
            text="entropy_from_logits_with_chunking false -> true",
            setup=replace(setup, entropy_chunk=_CHUNK),
            values={ENTROPY_CHUNKING: True},
        )
    buffer = setup.bucket_bytes / 4
    if buffer >= _SMALLEST_BUCKET:
        old, new = (int(size / 2**20) for size in (setup.bucket_bytes, buffer))
        yield SettingChange(
            text=f"update_weights_bucket_megabytes {old} -> {new}",
            setup=replace(setup, bucket_bytes=buffer),
            values={BUCKET_MEGABYTES: new},
        )


def _moved_and_recomputed(setup: Setup) -> Iterator[SettingChange]:
    if not setup.gradient_checkpointing:
        yield SettingChange(
            text="gradient_checkpointing false -> true",
            setup=replace(setup, gradient_checkpointing=True),
            values={GRADIENT_CHECKPOINTING: True},
        )
    if not setup.param_offload:
        yield SettingChange(
            text="param_offload false -> true",
            setup=replace(setup, param_offload=True),
            values={PARAM_OFFLOAD: True},
        )
    if not setup.optimizer_offload:
        yield SettingChange(
            text="optimizer_offload false -> true",
            setup=replace(setup, optimizer_offload=True),
            values={OPTIMIZER_OFFLOAD: True},
        )


def _other_sharding(setup: Setup) -> Iterator[SettingChange]:
    if setup.strategy != "fsdp":
        return
    fsdp2 = replace(setup, strategy="fsdp2")
    yield SettingChange(text="actor.strategy fsdp -> fsdp2", setup=fsdp2, values={})
    if not setup.layered_summon:
        by_layer = replace(setup, layered_summon=True)
        yield SettingChange(text="rollout.layered_summon false -> true", setup=by_layer, values={})
