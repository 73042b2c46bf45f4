"""Settings of a search that determine the GPU memory of a phase.

`setup_of` reads VeRL's keys with the same precedence as the engine: the engine's own choices, then
`engine.overrides`, then the hyper-parameters of the phase. Not here: bytes (stages.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import ConfigError
from llmzero_ray.estimate.sizes import Range
from llmzero_ray.hyperparameters import resolve
from llmzero_ray.hyperparameters.verl_keys import MAX_TOKENS
from llmzero_ray.records import Hyperparameters
from llmzero_ray.utils.text import GIB, is_number

_ACTOR = "actor_rollout_ref.actor."
_FSDP = "actor_rollout_ref.actor.fsdp_config."
_MODEL = "actor_rollout_ref.model."
_ROLLOUT = "actor_rollout_ref.rollout."
ENTROPY_CHUNKING = _ACTOR + "entropy_from_logits_with_chunking"
_CHUNK_SIZE = _ACTOR + "entropy_from_logits_chunk_size"
LOG_PROB_MAX_TOKENS = _ROLLOUT + "log_prob_max_token_len_per_gpu"
BUCKET_MEGABYTES = _ROLLOUT + "checkpoint_engine.update_weights_bucket_megabytes"
ADAPTER_BUCKET_MEGABYTES = 256
"""The engine's choice on GPUs if it sends adapters to vLLM, which have a few MB. VeRL's default of 2048 is
for whole models."""

# Only for FSDP2 on GPUs. Tests compare them with VeRL's composed configuration.
VERL_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        _FSDP + "model_dtype": "fp32",
        _FSDP + "fsdp_size": -1,
        _FSDP + "param_offload": False,
        _FSDP + "optimizer_offload": False,
        _FSDP + "offload_policy": False,
        _FSDP + "use_torch_compile": True,
        _FSDP + "ulysses_sequence_parallel_size": 1,
        _FSDP + "use_no_sync_for_gradient_accumulation": False,
        ENTROPY_CHUNKING: False,
        _CHUNK_SIZE: 2048,
        _MODEL + "enable_gradient_checkpointing": True,
        _MODEL + "use_remove_padding": True,
        _MODEL + "use_fused_kernels": False,
        _ROLLOUT + "enforce_eager": False,
        _ROLLOUT + "free_cache_engine": True,
        LOG_PROB_MAX_TOKENS: None,
        BUCKET_MEGABYTES: ADAPTER_BUCKET_MEGABYTES,
    }
)
"""Defaults of keys that neither the configuration nor the hyper-parameters set. None means the same value as
the actor's."""
_DTYPES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}
_SERVER_TOKENS = 8192


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Memory-related settings of one phase on one slot, named as in VeRL's configuration."""

    gpu_bytes: float
    """Bytes of one GPU that processes can use."""
    n_gpus: int
    """Number of GPUs of the slot."""
    fsdp_size: int = -1
    weight_bytes: int = 4
    """Bytes of one base or adapter parameter in its FSDP shard (`model_dtype`)."""
    param_offload: bool = False
    optimizer_offload: bool = False
    offload_policy: bool = False
    gradient_checkpointing: bool = True
    remove_padding: bool = True
    fused_kernels: bool = False
    torch_compile: bool = True
    no_sync: bool = False
    """Whether gradients stay unsharded until the last micro batch."""
    entropy_chunk: int | None = None
    """Tokens per chunk when the entropy is computed. If None, it is computed all at once."""
    entropy_coeff: float = 0.0
    temperature: float = 1.0
    dynamic_bsz: bool = False
    max_tokens: int = 16_384
    """Maximum tokens of a packed micro batch of the update on one GPU."""
    log_prob_max_tokens: int = 16_384
    micro_batch: int = 1
    """Sequences in a micro batch of the update."""
    log_prob_micro_batch: int = 1
    """Sequences in a micro batch for log-probs: of the policy or the reference, whichever is larger."""
    prompt: int = 1024
    response: int = 1024
    ulysses: int = 1
    """Number of GPUs that share one sequence."""
    lora_rank: int = 16
    serves_merged: bool = False
    """Whether vLLM has merged weights and no separate adapter."""
    target_modules: str = "all-linear"
    tensor_parallel: int = 1
    utilization: float = 0.5
    """Share of the GPU that vLLM may use."""
    max_model_len: int = 2048
    max_num_seqs: int = 256
    max_num_batched_tokens: int = _SERVER_TOKENS
    enforce_eager: bool = False
    sleeps: bool = True
    """Whether vLLM releases its memory while the policy trains (`free_cache_engine`)."""
    bucket_bytes: float = 2048 * 2.0**20
    """Size of the buffer through which weights are sent to vLLM."""

    @property
    def shards(self) -> int:
        """Number of GPUs over which one copy of the parameters is sharded."""
        return self.n_gpus if self.fsdp_size < 1 else min(self.fsdp_size, self.n_gpus)

    @property
    def sequence(self) -> int:
        """Maximum total tokens of prompt and response."""
        return self.prompt + self.response

    def update_tokens(self) -> Range:
        """Tokens of one micro batch of the update on one GPU."""
        return self._tokens(self.micro_batch, self.max_tokens)

    def log_prob_tokens(self) -> Range:
        """Tokens of one micro batch on one GPU when computing log-probs."""
        return self._tokens(self.log_prob_micro_batch, self.log_prob_max_tokens)

    def _tokens(self, micro_batch: int, budget: int) -> Range:
        """Tokens of one micro batch on one GPU. In a micro batch of fixed size, all sequences may reach their
        cap, which happens at some time in a phase; the low estimate is half of that. A token budget is
        strict: `rearrange_micro_batches` splits until every micro batch is within it."""
        if self.dynamic_bsz:
            return Range(0.8, 1.0, 1.0) * budget
        return Range(0.5, 1.0, 1.0) * (micro_batch * self.sequence / self.ulysses)


def setup_of(config: SearchConfig, hyperparameters: Hyperparameters, *, gpu_gib: float) -> Setup:
    """Setup of a phase with these complete hyper-parameters on GPUs of `gpu_gib` GiB each.

    Raises:
        ConfigError: a value in `engine.overrides` has the wrong type.
    """
    engine, n_gpus = config.engine, config.slots.n_gpus
    fixed = {key.lstrip("+"): value for key, value in engine.overrides.items()}
    # The engine's own choice on several machines.
    shards = {_FSDP + "fsdp_size": config.slots.gpus_per_node} if config.slots.nodes > 1 else {}
    bucket = {BUCKET_MEGABYTES: 2048} if engine.serve_merged else {}  # VeRL's, for whole weights
    keys = _Keys({**VERL_DEFAULTS, **shards, **bucket, **fixed, **resolve(hyperparameters, n_gpus=n_gpus)})
    longest = max(engine.max_response_length, config.eval.max_response_length)
    max_model_len = engine.max_prompt_length + longest
    max_tokens = keys.whole(MAX_TOKENS)
    log_prob_tokens = keys.get(LOG_PROB_MAX_TOKENS)
    # In VeRL's configuration, the inner keys default to the outer ones.
    chunking = keys.get(_FSDP + "entropy_from_logits_with_chunking", keys[ENTROPY_CHUNKING])
    chunk = keys.get(_FSDP + "entropy_from_logits_chunk_size", keys[_CHUNK_SIZE])
    return Setup(
        gpu_bytes=gpu_gib * GIB,
        n_gpus=n_gpus,
        fsdp_size=keys.whole(_FSDP + "fsdp_size"),
        weight_bytes=_DTYPES.get(str(keys.get(_FSDP + "model_dtype")), 4),
        param_offload=keys.flag(_FSDP + "param_offload"),
        optimizer_offload=keys.flag(_FSDP + "optimizer_offload"),
        offload_policy=keys.flag(_FSDP + "offload_policy"),
        gradient_checkpointing=keys.flag(_MODEL + "enable_gradient_checkpointing"),
        remove_padding=keys.flag(_MODEL + "use_remove_padding"),
        fused_kernels=keys.flag(_MODEL + "use_fused_kernels"),
        torch_compile=keys.flag(_FSDP + "use_torch_compile"),
        no_sync=keys.flag(_FSDP + "use_no_sync_for_gradient_accumulation"),
        entropy_chunk=int(chunk) if chunking else None,
        entropy_coeff=keys.number(_ACTOR + "entropy_coeff"),
        temperature=keys.number(_ROLLOUT + "temperature"),
        dynamic_bsz=keys.flag(_ACTOR + "use_dynamic_bsz"),
        max_tokens=max_tokens,
        log_prob_max_tokens=max_tokens if log_prob_tokens is None else int(log_prob_tokens),
        micro_batch=keys.whole(_ACTOR + "ppo_micro_batch_size_per_gpu"),
        log_prob_micro_batch=keys.whole(_ROLLOUT + "log_prob_micro_batch_size_per_gpu"),
        prompt=keys.whole("data.max_prompt_length"),
        response=keys.whole("data.max_response_length"),
        ulysses=keys.whole(_FSDP + "ulysses_sequence_parallel_size"),
        lora_rank=keys.whole(_MODEL + "lora_rank"),
        serves_merged=engine.serve_merged,
        target_modules=str(keys.get(_MODEL + "target_modules")),
        tensor_parallel=keys.whole(_ROLLOUT + "tensor_model_parallel_size"),
        utilization=keys.number(_ROLLOUT + "gpu_memory_utilization"),
        max_model_len=max_model_len,
        max_num_seqs=keys.whole(_ROLLOUT + "max_num_seqs"),
        max_num_batched_tokens=int(
            keys.get(_ROLLOUT + "max_num_batched_tokens") or max(_SERVER_TOKENS, max_model_len)
        ),
        enforce_eager=keys.flag(_ROLLOUT + "enforce_eager"),
        sleeps=keys.flag(_ROLLOUT + "free_cache_engine"),
        bucket_bytes=keys.number(BUCKET_MEGABYTES) * 2.0**20,
    )


def _wrong(key: str, value: Any, allowed: str) -> ConfigError:
    return ConfigError(f"no memory estimate: {key} is {value!r}; must be {allowed}. Change engine.overrides.")


class _Keys(dict[str, Any]):
    """VeRL's keys with their values, read by type."""

    def flag(self, key: str) -> bool:
        # A null in the search space means VeRL's default.
        value = VERL_DEFAULTS[key] if self[key] is None else self[key]
        if not isinstance(value, bool):
            raise _wrong(key, value, "true or false")
        return value

    def whole(self, key: str) -> int:
        value = self[key]
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(key, value, "a whole number")
        return value

    def number(self, key: str) -> float:
        value = self[key]
        if not is_number(value):
            raise _wrong(key, value, "a number")
        return float(value)
