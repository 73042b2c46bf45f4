"""What lies in memory when: figures worked out by hand, and what must hold for all set-ups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray.estimate.model_shape import KNOWN, ModelShape
from llmzero_ray.estimate.setup import Setup
from llmzero_ray.estimate.sizes import StageMemory
from llmzero_ray.estimate.stages import CACHE, LOGITS, cache_bytes, cache_per_token, stages
from llmzero_ray.utils.text import GIB
from tests.marks import slow_example

from .builders import setup, shape


def at(name: str, shape: ModelShape, setup: Setup) -> StageMemory:
    return next(stage for stage in stages(shape, setup) if stage.name == name)


def likely(stage: StageMemory, item: str) -> float:
    size = stage.size_of(item)
    assert size is not None, f"{stage.name} has no {item}"
    return size.likely


# --- by hand ------------------------------------------------------------------------------------------------


def test_a_shard_is_the_float32_model_over_the_gpus_of_the_slot() -> None:
    rollout = at("rollout", shape("8B"), setup())
    assert likely(rollout, "base weights' shard") == 8_190_735_360 * 4 / 8


def test_an_adapter_is_kept_with_two_moments_and_in_the_update_with_its_gradients() -> None:
    adapter = 132_120_576
    assert likely(at("rollout", shape("4B"), setup()), "adapter with Adam") == adapter * 4 * 3 / 8
    assert likely(at("update", shape("4B"), setup()), "adapter with Adam") == adapter * 4 * 4 / 8


def test_vllms_weights_are_bf16_and_spread_by_tensor_parallelism() -> None:
    start = at("server start", shape("8B"), setup(tensor_parallel=2))
    assert likely(start, "vLLM's weights") == 8_190_735_360 * 2 / 2


def test_merged_weights_need_no_adapter_beside_them_and_one_gathered_tensor_at_a_time() -> None:
    merged = setup(serves_merged=True)
    assert likely(at("server start", shape("4B"), merged), "vLLM's adapter") == 0
    found = at("weight sync", shape("4B"), merged).size_of("tensor being merged")
    assert found is not None and found.likely == (4 + 2) * 151_936 * 2560
    assert at("weight sync", shape("4B"), setup()).size_of("tensor being merged") is None


def test_the_cache_is_what_vllms_share_leaves() -> None:
    phase = setup(utilization=0.6, tensor_parallel=2)
    start = at("server start", shape("8B"), phase)
    others = sum(item.size.likely for item in start.items if item.name != CACHE)
    assert cache_bytes(shape("8B"), phase).likely == pytest.approx(0.6 * 39.4 * GIB - others)
    # 4 of 8 heads a GPU: 36 layers x 4 heads x 128 x (key, value) x 2 bytes.
    assert cache_per_token(shape("8B"), phase) == 72 * 1024
    assert cache_per_token(shape("8B"), replace(phase, tensor_parallel=16, n_gpus=16)) == 18 * 1024


def test_vllm_starts_only_with_room_for_one_longest_sequence() -> None:
    start = at("server start", shape("8B"), setup(utilization=0.4, max_model_len=10_240))
    assert likely(start, CACHE) == 10_240 * 144 * 1024
    assert start.limit == pytest.approx(0.4 * 39.4 * GIB)
    assert start.total.likely > start.limit  # 15.3 GiB of weights alone


def test_logits_are_two_bytes_a_token_and_word() -> None:
    phase = setup(dynamic_bsz=True, max_tokens=16_384, log_prob_max_tokens=16_384)
    made, head = 16_384 * 151_936 * 2, 16_384 * 6 * 2560
    assert likely(at("update", shape("4B"), phase), LOGITS) == made + head
    assert likely(at("update", shape("4B"), replace(phase, temperature=0.7)), LOGITS) == 2 * made + head
    assert likely(at("update", shape("4B"), replace(phase, remove_padding=False)), LOGITS) == 2 * made + head


def test_a_chunk_bounds_the_entropys_copies() -> None:
    phase = setup(dynamic_bsz=True, max_tokens=16_384, log_prob_max_tokens=16_384, torch_compile=False)
    whole = likely(at("log-probs", shape("4B"), phase), LOGITS)
    chunked = likely(at("log-probs", shape("4B"), replace(phase, entropy_chunk=512)), LOGITS)
    assert whole - chunked == (16_384 - 512) * 151_936 * 12


def test_checkpoints_are_one_input_a_layer() -> None:
    phase = setup(dynamic_bsz=True, max_tokens=16_384)
    kept = likely(at("update", shape("8B"), phase), "kept for backward")
    assert kept == 36 * 4096 * 2 * 16_384 == 4.5 * GIB


def test_fixed_micro_batches_count_sequences_at_their_caps() -> None:
    phase = setup(micro_batch=8, prompt=1024, response=6144)
    assert phase.update_tokens().likely == 8 * 7168
    assert replace(phase, ulysses=2).update_tokens().likely == 4 * 7168


def test_offloaded_shards_are_on_the_gpu_for_passes_alone() -> None:
    phase = setup(param_offload=True)
    for name in ("rollout", "weight sync", "saving"):
        assert at(name, shape("8B"), phase).size_of("base weights' shard") is None
    for name in ("log-probs", "update"):
        assert likely(at(name, shape("8B"), phase), "base weights' shard") > 0
    for stage in stages(shape("8B"), setup(offload_policy=True)):
        assert stage.size_of("base weights' shard") is None


def test_a_server_that_never_sleeps_keeps_its_share_during_the_update() -> None:
    assert likely(at("update", shape("4B"), setup(sleeps=False)), "vLLM's share") == 0.5 * 39.4 * GIB


# --- for all set-ups ----------------------------------------------------------------------------------------

SETUPS = st.builds(
    setup,
    n_gpus=st.sampled_from([1, 2, 4, 8, 16, 64]),
    weight_bytes=st.sampled_from([2, 4]),
    param_offload=st.booleans(),
    optimizer_offload=st.booleans(),
    gradient_checkpointing=st.booleans(),
    remove_padding=st.booleans(),
    torch_compile=st.booleans(),
    no_sync=st.booleans(),
    entropy_chunk=st.sampled_from([None, 128, 2048]),
    entropy_coeff=st.sampled_from([0.0, 0.001]),
    temperature=st.sampled_from([1.0, 0.7]),
    dynamic_bsz=st.booleans(),
    max_tokens=st.integers(1024, 2**18),
    log_prob_max_tokens=st.integers(1024, 2**18),
    micro_batch=st.integers(1, 64),
    log_prob_micro_batch=st.integers(1, 64),
    prompt=st.integers(1, 4096),
    response=st.integers(1, 16_384),
    lora_rank=st.sampled_from([1, 8, 64, 256]),
    utilization=st.floats(0.1, 0.9),
    sleeps=st.booleans(),
)
MODELS = st.sampled_from(list(KNOWN.values()))


def assert_never_more(shape: ModelShape, less: Setup, more: Setup) -> None:
    for small, large in zip(stages(shape, less), stages(shape, more), strict=True):
        for bound in ("low", "likely", "high"):
            assert getattr(small.total, bound) <= getattr(large.total, bound) * (1 + 1e-9), small.name


@given(MODELS, SETUPS)
def test_bounds_are_in_order(shape: ModelShape, phase: Setup) -> None:
    for stage in stages(shape, phase):
        for item in stage.items:
            assert 0 <= item.size.low <= item.size.likely <= item.size.high, (stage.name, item)


@pytest.mark.parametrize(
    "key", ["max_tokens", "log_prob_max_tokens", "micro_batch", "log_prob_micro_batch", "response", "prompt"]
)
@slow_example
@given(shape=MODELS, phase=SETUPS, factor=st.integers(2, 5))
def test_more_tokens_never_take_less(key: str, shape: ModelShape, phase: Setup, factor: int) -> None:
    more: dict[str, Any] = {key: getattr(phase, key) * factor}
    assert_never_more(shape, phase, replace(phase, **more))


@given(MODELS, SETUPS, st.sampled_from(["param_offload", "optimizer_offload", "offload_policy"]))
def test_offloading_never_takes_more(shape: ModelShape, phase: Setup, key: str) -> None:
    off: dict[str, Any] = {key: False}
    on: dict[str, Any] = {key: True}
    assert_never_more(shape, replace(phase, **on), replace(phase, **off))


@given(MODELS, SETUPS, st.integers(2, 4))
def test_more_gpus_never_take_more_of_each(shape: ModelShape, phase: Setup, factor: int) -> None:
    assert_never_more(shape, replace(phase, n_gpus=phase.n_gpus * factor), phase)


@given(SETUPS)
def test_larger_models_never_take_less(phase: Setup) -> None:
    for small, large in zip(("0.6B", "1.7B", "4B"), ("1.7B", "4B", "8B"), strict=True):
        for less, more in zip(stages(shape(small), phase), stages(shape(large), phase), strict=True):
            assert less.total.likely <= more.total.likely, (small, large, less.name)
