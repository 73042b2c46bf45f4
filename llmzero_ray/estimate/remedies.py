"""Setting changes that lower a phase's GPU memory, each with the resulting setup and VeRL's keys.

The cheapest changes come first: those that only affect the speed. Changes that affect what is learned come
last. Not here: how much a change saves, and which ones are combined (fit.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from llmzero_ray.estimate.model_shape import ModelShape
from llmzero_ray.estimate.setup import BUCKET_MEGABYTES, ENTROPY_CHUNKING, LOG_PROB_MAX_TOKENS, Setup
from llmzero_ray.hyperparameters.couplings import largest_divisor
from llmzero_ray.hyperparameters.verl_keys import (
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
    TENSOR_PARALLEL,
)
from llmzero_ray.records import HyperparameterValue

Values: TypeAlias = Mapping[str, HyperparameterValue]
_LOWEST_SHARE, _HIGHEST_SHARE = 0.1, 0.9
_FEWEST_SEQUENCES = 16
_SMALLEST_BUCKET = 64 * 2.0**20
_CHUNK = 2048
_SWITCHES = {
    "gradient_checkpointing": GRADIENT_CHECKPOINTING,
    "param_offload": PARAM_OFFLOAD,
    "optimizer_offload": OPTIMIZER_OFFLOAD,
}


@dataclass(frozen=True, kw_only=True)
class SettingChange:
    """Change of one setting."""

    text: str
    """Setting as named in search.yaml, with its old and new value."""
    setup: Setup
    """Setup with that change."""
    values: Values
    """VeRL's key -> new value."""
    shrinks_task: bool = False
    """Whether it affects what is learned, not only the speed."""


def _changed(setup: Setup, text: str, values: Values, **fields: Any) -> SettingChange:
    return SettingChange(text=text, setup=replace(setup, **fields), values=values)


def setting_changes(shape: ModelShape, setup: Setup) -> Iterator[SettingChange]:
    """Changes of one setting of a setup, the cheapest first."""
    yield from _smaller_pieces(setup)
    for name, change in (("lower", -0.1), ("higher", 0.1)):
        share = round(setup.utilization + change, 2)
        if _LOWEST_SHARE <= share <= _HIGHEST_SHARE:
            text = f"engine.gpu_memory_utilization {name}: {setup.utilization:g} -> {share:g}"
            yield _changed(setup, text, {GPU_MEMORY: share}, utilization=share)
    if setup.max_num_seqs > _FEWEST_SEQUENCES:
        fewer = max(_FEWEST_SEQUENCES, setup.max_num_seqs // 2)
        text = f"engine.max_num_seqs {setup.max_num_seqs} -> {fewer}"
        yield _changed(setup, text, {MAX_NUM_SEQS: fewer}, max_num_seqs=fewer)
    if setup.entropy_chunk is None:
        text = "entropy_from_logits_with_chunking false -> true"
        yield _changed(setup, text, {ENTROPY_CHUNKING: True}, entropy_chunk=_CHUNK)
    buffer = setup.bucket_bytes / 4
    if buffer >= _SMALLEST_BUCKET:
        old, new = (int(size / 2**20) for size in (setup.bucket_bytes, buffer))
        text = f"update_weights_bucket_megabytes {old} -> {new}"
        yield _changed(setup, text, {BUCKET_MEGABYTES: new}, bucket_bytes=buffer)
    wider = setup.tensor_parallel * 2
    if setup.n_gpus % wider == 0 and shape.heads % wider == 0:
        text = f"engine.tensor_model_parallel_size {setup.tensor_parallel} -> {wider}"
        yield _changed(setup, text, {TENSOR_PARALLEL: wider}, tensor_parallel=wider)
    for name, key in _SWITCHES.items():
        if not getattr(setup, name):
            yield _changed(setup, f"{name} false -> true", {key: True}, **{name: True})
    if setup.response > 1:
        yield _shorter_response(setup, setup.response // 2)


def least_tokens(setup: Setup) -> int:
    """Smallest token budget per GPU of a packed micro batch, which must hold one full-length sequence."""
    return -(-setup.sequence // setup.ulysses)


def _shorter_response(setup: Setup, response: int) -> SettingChange:
    """Change to a shorter response cap. If packed micro batches already have their smallest budget, that is
    lowered as well."""
    text = f"max_response_length {setup.response} -> {response}"
    values: dict[str, HyperparameterValue] = {MAX_RESPONSE: response}
    shorter = replace(setup, response=response)
    if setup.dynamic_bsz and setup.max_tokens <= least_tokens(setup):
        budget = least_tokens(shorter)
        text += f" with max_token_len_per_gpu {budget}"
        values[MAX_TOKENS] = budget
        scoring = min(setup.log_prob_max_tokens, budget)
        shorter = replace(shorter, max_tokens=budget, log_prob_max_tokens=scoring)
    return SettingChange(text=text, setup=shorter, values=values, shrinks_task=True)


def _smaller_pieces(setup: Setup) -> Iterator[SettingChange]:
    least = least_tokens(setup)
    if not setup.dynamic_bsz:
        yield from _smaller_micro_batches(setup)
        budget = max(setup.max_tokens, least)
        yield _changed(
            setup,
            f"dynamic_bsz false -> true with max_token_len_per_gpu {budget}",
            {DYNAMIC_BSZ: True, MAX_TOKENS: budget},
            dynamic_bsz=True,
            max_tokens=budget,
            log_prob_max_tokens=budget,
        )
        return
    half = max(least, setup.max_tokens // 2)
    if half >= setup.max_tokens:
        return
    scoring = min(setup.log_prob_max_tokens, half)
    values: dict[str, HyperparameterValue] = {MAX_TOKENS: half}
    if setup.log_prob_max_tokens != setup.max_tokens:
        values[LOG_PROB_MAX_TOKENS] = scoring
    text = f"max_token_len_per_gpu {setup.max_tokens} -> {half}"
    yield _changed(setup, text, values, max_tokens=half, log_prob_max_tokens=scoring)


def _smaller_micro_batches(setup: Setup) -> Iterator[SettingChange]:
    """Changes to smaller micro batches. New sizes are divisors of the old ones, so they still divide the
    batch."""
    update, scoring = setup.micro_batch, setup.log_prob_micro_batch
    if update > 1:
        size = largest_divisor(update, update // 2)
        text = f"micro_batch_size {update} -> {size}"
        yield _changed(setup, text, {MICRO_BATCH: size}, micro_batch=size)
    if scoring > 1:
        size = largest_divisor(scoring, scoring // 2)
        text = f"log_prob_micro_batch_size {scoring} -> {size}"
        yield _changed(setup, text, {LOG_PROB_MICRO: size}, log_prob_micro_batch=size)
