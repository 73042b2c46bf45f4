"""GPU memory of a slot at each stage of a training step of VeRL's hybrid engine.

The policy (FSDP, LoRA) and vLLM live in two processes on the same card and take turns: vLLM sleeps while the
policy is trained, the policy's shard waits while vLLM generates. Sources: VeRL 0.9.1, vLLM 0.24 to 0.27 and
torch's FSDP, by reading; what no formula gives is a range. Assumed: bf16 passes, and flash attention with its
cross-entropy, as in the image that cluster.yaml names. Not here: activations and logits (activations.py),
judging it (verdict.py).
"""

from __future__ import annotations

from llmzero_ray.memory import activations
from llmzero_ray.memory.setup import Setup
from llmzero_ray.memory.shapes import ModelShape
from llmzero_ray.memory.sizes import GIB, Item, Moment, Range, together

_BF16 = 2
_FP32 = 4

# CUDA context, kernels and NCCL buffers of the process that trains.
_TRAINER = Range(0.6, 1.2, 2.2) * GIB
# CUDA context of vLLM's process: taken before vLLM measures what is free, so not a part of its share.
_SERVER = Range(0.3, 0.5, 0.7) * GIB
# What level 1 leaves (`Worker.sleep` unmaps the pools of weights and cache): context, CUDA graphs, NCCL,
# workspaces. Reports of users: 0.8 GiB without, 2.4 to 7.2 GiB with tensor parallelism.
_ASLEEP = Range(0.8, 1.8, 3.0) * GIB
_ASLEEP_PARALLEL = Range(1.5, 2.5, 7.2) * GIB
# Of the captured batch sizes, with and without an adapter.
_GRAPHS = Range(0.3, 0.7, 1.2) * GIB
# Pieces that torch's caching allocator cannot reuse, as a share of what comes and goes.
_SLACK = Range(0.0, 0.04, 0.10)
# Base, change, sum, and two of what measures the rounding, while one tensor is merged.
_MERGED_COPIES = 5
# A layer in use, the next one gathered ahead, and the gathering buffer (FSDP2 copies out of it).
_LAYERS_AT_ONCE = Range(2, 3, 4)

SERVER_START, ROLLOUT, LOG_PROBS, UPDATE, WEIGHT_SYNC, SAVING = (
    "server start",
    "rollout",
    "log-probs",
    "update",
    "weight sync",
    "saving",
)
GATHERED = "whole model gathered"
LOGITS = "logits and entropy"
CACHE = "KV cache"


def moments(shape: ModelShape, setup: Setup) -> tuple[Moment, ...]:
    """Every moment of a step, in order."""
    return (
        _server_start(shape, setup),
        _rollout(shape, setup),
        _log_probs(shape, setup),
        _update(shape, setup),
        _weight_sync(shape, setup),
        _saving(shape, setup),
    )


def cache_bytes(shape: ModelShape, setup: Setup) -> Range:
    """What vLLM has left for its KV cache on one GPU; 0 where its share is used up before."""
    others = together([item.size for item in _server_items(shape, setup)])
    share = _share(setup)
    return Range(*(max(0.0, share - taken) for taken in (others.high, others.likely, others.low)))


def cache_per_token(shape: ModelShape, setup: Setup) -> float:
    """Bytes of one token in the KV cache of one GPU: heads are spread, never split."""
    return shape.kv_bytes_per_token / min(setup.tensor_parallel, shape.kv_heads)


def _share(setup: Setup) -> float:
    """`request_memory` in vllm/v1/worker/utils.py: a share of the card's total, whatever else is on it."""
    return setup.utilization * setup.gpu_bytes


def _moment(name: str, setup: Setup, *items: Item) -> Moment:
    there = tuple(item for item in items if item.size.high > 0)
    return Moment(name=name, items=there, limit=setup.gpu_bytes, limit_name="the card")


# --- vLLM -----------------------------------------------------------------------------------------------


def _server_items(shape: ModelShape, setup: Setup) -> tuple[Item, ...]:
    """What vLLM counts against its share before the cache (`determine_available_memory`)."""
    weights, adapter = _server_weights(shape, setup)
    # Its profiling pass: one step of `max_num_batched_tokens`, and a sampler with float32 logits of
    # `max_num_seqs` sequences, their softmax and their log-probs.
    step = activations.forward_work(shape) * setup.max_num_batched_tokens / setup.tensor_parallel
    sampler = 3 * _FP32 * shape.vocab * setup.max_num_seqs
    graphs = Range.exactly(0) if setup.enforce_eager else _GRAPHS
    work = Range(0.7, 1.0, 1.5) * (step + sampler) + graphs
    return (weights, adapter, Item(name="vLLM's working memory", size=work))


def _server_weights(shape: ModelShape, setup: Setup) -> tuple[Item, Item]:
    """Base weights in bf16 and the one adapter slot that VeRL asks for (`max_loras` 1)."""
    base = _BF16 * shape.parameters / setup.tensor_parallel
    parameters = shape.lora_parameters(setup.lora_rank, setup.target_modules)
    slot = 0 if setup.serves_merged else _BF16 * parameters
    # vLLM spreads one of A and B over the GPUs, and keeps the other one whole.
    adapter = Range(slot / setup.tensor_parallel, slot * (1 + 1 / setup.tensor_parallel) / 2, slot)
    return (
        Item(name="vLLM's weights", size=Range.exactly(base)),
        Item(name="vLLM's adapter", size=adapter),
    )


def _server_start(shape: ModelShape, setup: Setup) -> Moment:
    """vLLM refuses to start unless its cache holds one sequence of `max_model_len`."""
    one = cache_per_token(shape, setup) * setup.max_model_len
    items = (*_server_items(shape, setup), Item(name=CACHE, size=Range.exactly(one)))
    return Moment(name=SERVER_START, items=items, limit=_share(setup), limit_name="vLLM's share")


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
    """Context, FSDP shards, and Adam's two moments; `model` and `optimizer` say whether offloaded parts are
    on the card at that moment (`BaseEngineCtx._context_switch`)."""
    adapter = shape.lora_parameters(setup.lora_rank, setup.target_modules)
    shards = setup.shards
    has_model = not setup.offload_policy and (model or not setup.param_offload)
    has_optimizer = not setup.offload_policy and (optimizer or not setup.optimizer_offload)
    base = has_model * setup.weight_bytes * shape.parameters / shards
    # Gradients are reduced in float32 and cast to the parameters' type; moments have that type, too.
    lora = setup.weight_bytes * adapter / shards * (has_model + 2 * has_optimizer + gradients)
    whole = Range.exactly(_FP32 * adapter if gradients and setup.no_sync else 0)
    return (
        Item(name="trainer's context", size=_TRAINER),
        Item(name="base weights' shard", size=Range.exactly(base)),
        Item(name="adapter with Adam", size=Range.exactly(lora) + whole),
    )


def _gathered(shape: ModelShape) -> Item:
    """Whole layers in bf16 during a pass, and the output layer, which stays until the pass ends: tied, it
    belongs to FSDP2's root, which is not resharded after its forward."""
    layers = _LAYERS_AT_ONCE * (_BF16 * shape.layer_parameters)
    return Item(name="gathered layers", size=layers + Range.exactly(_BF16 * shape.embedding_parameters))


def _slack(*items: Item) -> Item:
    return Item(name="allocator slack", size=together([item.size for item in items]) * _SLACK)


def _worse(at_logits: Range, at_layer: Range) -> Item:
    """The two are never in memory at the same time."""
    name = LOGITS if at_logits.likely >= at_layer.likely else "activations of a layer"
    return Item(name=name, size=at_logits.at_least(at_layer))


def _rollout(shape: ModelShape, setup: Setup) -> Moment:
    return _moment(ROLLOUT, setup, *_trainer(shape, setup, model=False, optimizer=False), *_awake(setup))


def _log_probs(shape: ModelShape, setup: Setup) -> Moment:
    """Old log-probs with their entropy: at the logits, or at one layer before them. The reference is the same
    model with its adapter switched off."""
    tokens = setup.log_prob_tokens()
    at_logits = tokens * (activations.logits(shape, setup) + Range.exactly(activations.head_work(shape)))
    at_logits = at_logits + activations.entropy_of_log_probs(shape, setup, tokens)
    peak = _worse(at_logits, tokens * activations.forward_work(shape))
    gathered = _gathered(shape)
    return _moment(
        LOG_PROBS,
        setup,
        *_trainer(shape, setup, model=True, optimizer=False),
        gathered,
        peak,
        _slack(gathered, peak),
        *_asleep(setup),
    )


def _update(shape: ModelShape, setup: Setup) -> Moment:
    """The worse of two points of the backward pass: at the logits, and at one layer computed again."""
    tokens = setup.update_tokens()
    layer = activations.kept_of_layer(shape, setup.lora_rank)
    each = activations.kept_of_checkpoint(shape) if setup.gradient_checkpointing else layer
    kept = Item(name="kept for backward", size=tokens * (each * shape.layers))
    per_token = activations.logits(shape, setup) + activations.entropy_of_update(shape, setup)
    at_logits = tokens * (per_token + Range.exactly(activations.head_work(shape)))
    again = layer if setup.gradient_checkpointing else 0
    at_layer = tokens * (again + activations.backward_work(shape))
    peak = _worse(at_logits, at_layer)
    gathered = _gathered(shape)
    return _moment(
        UPDATE,
        setup,
        *_trainer(shape, setup, model=True, optimizer=True, gradients=True),
        gathered,
        kept,
        peak,
        _slack(gathered, kept, peak),
        *_asleep(setup),
    )


def _summoned(shape: ModelShape, setup: Setup) -> Item:
    """What is gathered for vLLM. `collect_lora_params`: FSDP1 gathers the whole model to read the adapter, in
    the shards' own precision (`FlatParamHandle._force_full_precision`), on every GPU; layer by layer with
    `layered_summon`. FSDP2 gathers single tensors."""
    if setup.serves_merged:
        layer = _MERGED_COPIES * _FP32 * shape.hidden * shape.intermediate
        largest = max(layer, (setup.weight_bytes + _BF16) * shape.vocab * shape.hidden)
        return Item(name="tensor being merged", size=Range.exactly(largest))
    everything = shape.parameters + shape.lora_parameters(setup.lora_rank, setup.target_modules)
    if setup.strategy != "fsdp":
        size = 0.0
    elif setup.layered_summon:
        size = setup.weight_bytes * (shape.layer_parameters + everything - shape.parameters)
    else:
        size = setup.weight_bytes * everything
    return Item(name=GATHERED, size=Range.exactly(size))


def _brings_shards_back(setup: Setup) -> bool:
    """Whether reading the adapter brings offloaded shards to the GPU: the engine reads LoRA tensors alone,
    which FSDP1 does not hold one by one."""
    return setup.strategy == "fsdp"


def _weight_sync(shape: ModelShape, setup: Setup) -> Moment:
    """`update_weights`: vLLM's weights are back, its cache is not; the adapter goes through a buffer."""
    awake = _awake(setup) if not setup.sleeps else (*_asleep(setup), *_server_weights(shape, setup))
    return _moment(
        WEIGHT_SYNC,
        setup,
        *_trainer(shape, setup, model=_brings_shards_back(setup), optimizer=False),
        _summoned(shape, setup),
        Item(name="transfer buffer", size=Range.exactly(setup.bucket_bytes)),
        *awake,
    )


def _saving(shape: ModelShape, setup: Setup) -> Moment:
    """An adapter that is saved after a validation: vLLM is awake. Full checkpoints are written then, too, and
    hold shards as they are."""
    trainer = _trainer(shape, setup, model=_brings_shards_back(setup), optimizer=False)
    return _moment(SAVING, setup, *trainer, *_awake(setup))
