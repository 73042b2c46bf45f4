"""GPU memory of a slot at each stage of a training step of VeRL's hybrid engine.

The policy (FSDP, LoRA) and vLLM are two processes on the same GPU that take turns: vLLM sleeps while the
policy is trained, and the policy's shard is idle while vLLM generates. The formulas come from the source code
of VeRL 0.9.1, vLLM 0.24 to 0.27 and torch's FSDP; sizes without a formula are ranges. Passes in bf16 and
flash attention with its cross-entropy are assumed, as in the image that cluster.yaml names.

Activations are those of transformers' eager Qwen3 modules under PEFT (base weights frozen, adapters on all
projections, no dropout). A frozen projection keeps nothing for its backward pass, but `lora_A` keeps its
input. An RMSNorm computes in float32 and keeps that copy. Attention keeps queries, keys, values and output.
SwiGLU keeps gate, its activation, up and their product. Tests compare this with what torch itself keeps. Not
here: how many tokens a pass has (setup.py), whether it all fits (fit.py).
"""

from __future__ import annotations

from llmzero_ray.estimate.model_shape import ModelShape
from llmzero_ray.estimate.setup import Setup
from llmzero_ray.estimate.sizes import Item, Range, StageMemory, total_of
from llmzero_ray.utils.text import GIB

_BF16 = 2
_FP32 = 4

# CUDA context, kernels and NCCL buffers of the training process.
_TRAINER = Range(0.6, 1.2, 2.2) * GIB
# CUDA context of vLLM's process. It is allocated before vLLM measures free memory, so it is not in its share.
_SERVER = Range(0.3, 0.5, 0.7) * GIB
# What stays at sleep level 1 (`Worker.sleep` unmaps the pools of weights and cache): context, CUDA graphs,
# NCCL, workspaces. Users report 0.8 GiB without, and 2.4 to 7.2 GiB with tensor parallelism.
_ASLEEP = Range(0.8, 1.8, 3.0) * GIB
_ASLEEP_PARALLEL = Range(1.5, 2.5, 7.2) * GIB
# CUDA graphs of the captured batch sizes, with and without an adapter.
_GRAPHS = Range(0.3, 0.7, 1.2) * GIB
# Fragments that torch's caching allocator cannot reuse, as a share of temporary memory.
_SLACK = Range(0.0, 0.04, 0.10)
# Copies of a tensor while it is merged: base, change, sum, and two to measure the rounding.
_MERGED_COPIES = 5
# The layer in use, the next one gathered ahead, and the all-gather buffer (FSDP2 copies out of it).
_LAYERS_AT_ONCE = Range(2, 3, 4)

SERVER_START, ROLLOUT, LOG_PROBS = "server start", "rollout", "log-probs"
UPDATE, WEIGHT_SYNC, SAVING = "update", "weight sync", "saving"
LOGITS = "logits and entropy"
CACHE = "KV cache"


def stages(shape: ModelShape, setup: Setup) -> tuple[StageMemory, ...]:
    """All stages of a step, in order."""
    return (
        _server_start(shape, setup),
        _rollout(shape, setup),
        _log_probs(shape, setup),
        _update(shape, setup),
        _weight_sync(shape, setup),
        _saving(shape, setup),
    )


def cache_bytes(shape: ModelShape, setup: Setup) -> Range:
    """Bytes left for vLLM's KV cache on one GPU. 0 if other items use up its share."""
    others = total_of(_server_items(shape, setup))
    share = _share(setup)
    return Range(*(max(0.0, share - taken) for taken in (others.high, others.likely, others.low)))


def cache_per_token(shape: ModelShape, setup: Setup) -> float:
    """Bytes of one token in the KV cache of one GPU. Key-value heads are distributed over GPUs, never
    split."""
    return shape.kv_bytes_per_token / min(setup.tensor_parallel, shape.kv_heads)


def _share(setup: Setup) -> float:
    """vLLM's share in bytes: a share of the GPU's total memory, whatever else is on it (`request_memory` in
    vllm/v1/worker/utils.py)."""
    return setup.utilization * setup.gpu_bytes


def _stage(name: str, setup: Setup, *items: Item) -> StageMemory:
    there = tuple(item for item in items if item.size.high > 0)
    return StageMemory(name=name, items=there, limit=setup.gpu_bytes, limit_name="the card")


# --- vLLM -----------------------------------------------------------------------------------------------


def _server_items(shape: ModelShape, setup: Setup) -> tuple[Item, ...]:
    """Items that vLLM counts against its share before the cache (`determine_available_memory`)."""
    weights, adapter = _server_weights(shape, setup)
    # vLLM's profiling pass: one step of `max_num_batched_tokens`, and a sampler with float32 logits of
    # `max_num_seqs` sequences, their softmax and their log-probs.
    step = forward_work(shape) * setup.max_num_batched_tokens / setup.tensor_parallel
    sampler = 3 * _FP32 * shape.vocab * setup.max_num_seqs
    graphs = Range.exactly(0) if setup.enforce_eager else _GRAPHS
    work = Range(0.7, 1.0, 1.5) * (step + sampler) + graphs
    return (weights, adapter, Item(name="vLLM's working memory", size=work))


def _server_weights(shape: ModelShape, setup: Setup) -> tuple[Item, Item]:
    """Base weights in bf16, and the one adapter slot that VeRL requests (`max_loras` 1)."""
    base = _BF16 * shape.parameters / setup.tensor_parallel
    parameters = shape.lora_parameters(setup.lora_rank, setup.target_modules)
    slot = 0 if setup.serves_merged else _BF16 * parameters
    # Of the adapter's A and B, vLLM shards one over the GPUs and replicates the other.
    adapter = Range(slot / setup.tensor_parallel, slot * (1 + 1 / setup.tensor_parallel) / 2, slot)
    return (
        Item(name="vLLM's weights", size=Range.exactly(base)),
        Item(name="vLLM's adapter", size=adapter),
    )


def _server_start(shape: ModelShape, setup: Setup) -> StageMemory:
    """Memory of vLLM at its start. It refuses to start unless its cache can hold one sequence of
    `max_model_len`."""
    one = cache_per_token(shape, setup) * setup.max_model_len
    items = (*_server_items(shape, setup), Item(name=CACHE, size=Range.exactly(one)))
    return StageMemory(name=SERVER_START, items=items, limit=_share(setup), limit_name="vLLM's share")


def _awake(setup: Setup) -> tuple[Item, ...]:
    return (
        Item(name="vLLM's context", size=_SERVER),
        Item(name="vLLM's share", size=Range.exactly(_share(setup))),
    )


def _asleep(setup: Setup) -> tuple[Item, ...]:
    if not setup.sleeps:
        return _awake(setup)
    left = _ASLEEP if setup.tensor_parallel == 1 else _ASLEEP_PARALLEL
    return (Item(name="vLLM asleep", size=left),)


# --- the policy's process ---------------------------------------------------------------------------------


def _trainer(
    shape: ModelShape, setup: Setup, *, model: bool, optimizer: bool, gradients: bool = False
) -> tuple[Item, ...]:
    """Context, FSDP shards, and Adam's two moments. `model` and `optimizer` are whether these are on the GPU
    at that stage if they are offloaded otherwise (`BaseEngineCtx._context_switch`)."""
    adapter = shape.lora_parameters(setup.lora_rank, setup.target_modules)
    shards = setup.shards
    has_model = not setup.offload_policy and (model or not setup.param_offload)
    has_optimizer = not setup.offload_policy and (optimizer or not setup.optimizer_offload)
    base = has_model * setup.weight_bytes * shape.parameters / shards
    # Gradients are reduced in float32 and cast to the parameters' type, which moments have as well.
    lora = setup.weight_bytes * adapter / shards * (has_model + 2 * has_optimizer + gradients)
    whole = Range.exactly(_FP32 * adapter if gradients and setup.no_sync else 0)
    return (
        Item(name="trainer's context", size=_TRAINER),
        Item(name="base weights' shard", size=Range.exactly(base)),
        Item(name="adapter with Adam", size=Range.exactly(lora) + whole),
    )


def _gathered(shape: ModelShape) -> Item:
    """Gathered layers in bf16 during a pass, and the output layer, which stays until the pass ends. If tied,
    it belongs to FSDP2's root, which is not resharded after its forward pass."""
    layers = _LAYERS_AT_ONCE * (_BF16 * shape.layer_parameters)
    return Item(name="gathered layers", size=layers + Range.exactly(_BF16 * shape.embedding_parameters))


def _slack(*items: Item) -> Item:
    return Item(name="allocator slack", size=total_of(items) * _SLACK)


def _worse(at_logits: Range, at_layer: Range) -> Item:
    """Larger of two items that are never in memory at the same time."""
    name = LOGITS if at_logits.likely >= at_layer.likely else "activations of a layer"
    return Item(name=name, size=at_logits.at_least(at_layer))


def _rollout(shape: ModelShape, setup: Setup) -> StageMemory:
    return _stage(ROLLOUT, setup, *_trainer(shape, setup, model=False, optimizer=False), *_awake(setup))


def _log_probs(shape: ModelShape, setup: Setup) -> StageMemory:
    """Memory while old log-probs and their entropy are computed: the larger of that at the logits and that at
    a layer before them. The reference is the same model with its adapter disabled."""
    tokens = setup.log_prob_tokens()
    at_logits = tokens * (logits(shape, setup) + Range.exactly(head_work(shape)))
    at_logits = at_logits + entropy_of_log_probs(shape, setup, tokens)
    peak = _worse(at_logits, tokens * forward_work(shape))
    gathered = _gathered(shape)
    return _stage(
        LOG_PROBS,
        setup,
        *_trainer(shape, setup, model=True, optimizer=False),
        gathered,
        peak,
        _slack(gathered, peak),
        *_asleep(setup),
    )


def _update(shape: ModelShape, setup: Setup) -> StageMemory:
    """Memory of an update: the larger of two points of its backward pass, at the logits and at a recomputed
    layer."""
    tokens = setup.update_tokens()
    layer = kept_of_layer(shape, setup.lora_rank)
    each = kept_of_checkpoint(shape) if setup.gradient_checkpointing else layer
    kept = Item(name="kept for backward", size=tokens * (each * shape.layers))
    per_token = logits(shape, setup) + entropy_of_update(shape, setup)
    at_logits = tokens * (per_token + Range.exactly(head_work(shape)))
    again = layer if setup.gradient_checkpointing else 0
    at_layer = tokens * (again + backward_work(shape))
    peak = _worse(at_logits, at_layer)
    gathered = _gathered(shape)
    return _stage(
        UPDATE,
        setup,
        *_trainer(shape, setup, model=True, optimizer=True, gradients=True),
        gathered,
        kept,
        peak,
        _slack(gathered, kept, peak),
        *_asleep(setup),
    )


def _merged(shape: ModelShape, setup: Setup) -> Item:
    """Largest tensor while the adapter is merged into it. 0 unless merged weights are served."""
    layer = _MERGED_COPIES * _FP32 * shape.hidden * shape.intermediate
    largest = max(layer, (setup.weight_bytes + _BF16) * shape.vocab * shape.hidden)
    return Item(name="tensor being merged", size=Range.exactly(setup.serves_merged * largest))


def _weight_sync(shape: ModelShape, setup: Setup) -> StageMemory:
    """Memory during `update_weights`: vLLM's weights are back, but not its cache. The adapter is sent through
    a buffer."""
    awake = _awake(setup) if not setup.sleeps else (*_asleep(setup), *_server_weights(shape, setup))
    return _stage(
        WEIGHT_SYNC,
        setup,
        *_trainer(shape, setup, model=False, optimizer=False),
        _merged(shape, setup),
        Item(name="transfer buffer", size=Range.exactly(setup.bucket_bytes)),
        *awake,
    )


def _saving(shape: ModelShape, setup: Setup) -> StageMemory:
    """Memory while an adapter is saved after a validation, when vLLM is awake. Full checkpoints are written
    then as well, but contain shards as they are."""
    trainer = _trainer(shape, setup, model=False, optimizer=False)
    return _stage(SAVING, setup, *trainer, *_awake(setup))


# --- bytes of one token in a pass through the model --------------------------------------------------------


def kept_of_layer(shape: ModelShape, rank: int) -> int:
    """Bytes per token that a decoder layer keeps for its backward pass, without gradient checkpointing."""
    norms = 2 * (_FP32 + _BF16) * shape.hidden + shape.qk_norm * _FP32 * (shape.queries + shape.keys)
    attention = _BF16 * (2 * shape.queries + 2 * shape.keys)
    mlp = 4 * _BF16 * shape.intermediate
    return norms + attention + mlp + 7 * _BF16 * rank


def kept_of_checkpoint(shape: ModelShape) -> int:
    """Bytes per token that a decoder layer keeps with gradient checkpointing: its input."""
    return _BF16 * shape.hidden


def backward_work(shape: ModelShape) -> int:
    """Bytes per token of gradients that exist at the same time in a layer's backward pass, beyond what it
    kept: those of the MLP."""
    return 2 * _BF16 * shape.intermediate + 3 * shape.hidden


def forward_work(shape: ModelShape) -> int:
    """Bytes per token that exist at the same time in a forward pass that keeps nothing."""
    return 3 * _BF16 * shape.intermediate + 14 * shape.hidden


def head_work(shape: ModelShape) -> int:
    """Bytes per token of the last norm, what it keeps and its output, while the logits exist."""
    return (_FP32 + _BF16) * shape.hidden


def logits(shape: ModelShape, setup: Setup) -> Range:
    """Bytes of the logits of one token until the loss has its gradient.

    In `FSDPEngineWithLMHead.prepare_model_outputs` they are bf16, and divided out of place by a temperature
    other than 1 (the model's output still refers to the undivided ones). `logprobs_from_logits` uses
    flash-attn's cross-entropy, which overwrites the logits with the gradient. Padded passes copy the logits
    once more. A fused kernel never creates them.
    """
    if setup.fused_kernels:
        return Range.exactly(0)
    copies = 1 + (setup.temperature != 1.0) + (not setup.remove_padding)
    return Range.exactly(copies * _BF16 * shape.vocab)


def entropy_of_log_probs(shape: ModelShape, setup: Setup, tokens: Range) -> Range:
    """Bytes (not per token) in addition to the logits while the entropy of old log-probs is computed in
    float32, which VeRL always does (`_compute_old_log_prob`).

    If compiled, softmax and sums run in one pass over the vocabulary; if torch falls back to eager mode,
    there are float copies. With chunks, the copies are as long as a chunk.
    """
    if setup.fused_kernels:
        return Range.exactly(0)
    if setup.entropy_chunk is not None:
        found = (min(of, setup.entropy_chunk) for of in (tokens.low, tokens.likely, tokens.high))
        return Range(*found) * Range(8, 12, 16) * shape.vocab
    eager = Range(8, 12, 14)
    return tokens * (Range(0, 0, 4) if setup.torch_compile else eager) * shape.vocab


def entropy_of_update(shape: ModelShape, setup: Setup) -> Range:
    """Bytes in addition to the logits of one token that the backward pass of an entropy bonus needs. 0
    without one."""
    if setup.entropy_coeff == 0 or setup.fused_kernels:
        return Range.exactly(0)
    return (Range(4, 8, 24) if setup.torch_compile else Range(20, 24, 26)) * shape.vocab
