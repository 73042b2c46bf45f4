"""VeRL's configuration for settings and a phase, as hydra overrides. Pure.

A phase's hyper-parameters already have VeRL's keys. This module adds the rest: paths, lengths, frequencies,
the LoRA set-up, and the differences of a machine without GPUs. `compose` passes them to VeRL's own hydra
configuration, which rejects unknown keys.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmzero_ray.engines.capacity import QUEUE_UNITS
from llmzero_ray.engines.verl import confined_reward
from llmzero_ray.engines.verl.settings import VerlSettings
from llmzero_ray.errors import ConfigError
from llmzero_ray.estimate import ADAPTER_BUCKET_MEGABYTES, BUCKET_MEGABYTES
from llmzero_ray.hyperparameters import VERL_SPACE, clip_is_inert
from llmzero_ray.hyperparameters.verl_keys import MINI_BATCH, PPO_EPOCHS, TRAIN_BATCH
from llmzero_ray.records import HyperparameterValue, PhaseSpec
from llmzero_ray.utils.text import is_number

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"
MICRO = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
_STRATEGIES = (f"{ACTOR}.strategy", f"{ACTOR}.fsdp_config.strategy", f"{REF}.strategy")

BYPASS = "algorithm.rollout_correction.bypass_mode"
"""VeRL's switch to use vLLM's log-probabilities as the old ones, so that the actor's are not computed before
the update."""

MERGE = f"{MODEL}.lora.merge"
"""VeRL's switch to send merged weights to vLLM, which then serves no adapter."""

_REWARD_OPTIONS = "custom_reward_function.reward_kwargs"
_FP32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}


def engine_overrides(settings: VerlSettings) -> dict[str, Any]:
    """VeRL keys that are constant during the search.

    Raises:
        ConfigError: `settings.overrides` has a key that is not supported.
    """
    keys: dict[str, Any] = {
        "algorithm.adv_estimator": "grpo",
        "data.train_files": settings.train_parquet,
        "data.val_files": settings.val_parquet,
        "data.max_prompt_length": settings.max_prompt_length,
        "data.validation_shuffle": False,
        "data.truncation": "error",
        "data.dataloader_num_workers": 0,
        f"{MODEL}.path": settings.model_path,
        f"{MODEL}.lora_rank": settings.lora_rank,
        f"{MODEL}.lora_alpha": settings.lora_alpha,
        f"{MODEL}.target_modules": settings.target_modules,
        # FSDP1, VeRL's default, does not work on the CPU and does not allow an adapter to be swapped in
        # place.
        f"{ACTOR}.strategy": "fsdp2",
        f"{REF}.strategy": "fsdp2",
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.load_format": "safetensors",
        f"{ROLLOUT}.tensor_model_parallel_size": settings.tensor_model_parallel_size,
        f"{ROLLOUT}.max_model_len": settings.max_model_len,
        f"{ROLLOUT}.max_num_seqs": settings.max_num_seqs,
        f"{ROLLOUT}.max_num_batched_tokens": max(8192, settings.max_model_len),
        f"{ROLLOUT}.agent.num_workers": settings.agent_workers,
        f"{ROLLOUT}.calculate_log_probs": True,  # the read-back compares vLLM with the actor
        f"{ROLLOUT}.val_kwargs.n": 1,
        f"{ROLLOUT}.val_kwargs.do_sample": False,
        f"{ROLLOUT}.val_kwargs.temperature": 0,
        "reward.num_workers": 0 if settings.scores_in_driver else settings.reward_workers,
        **_reward_function(settings),
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": QUEUE_UNITS[settings.platform],
        "trainer.n_gpus_per_node": settings.n_gpus_per_node,
        "trainer.nnodes": settings.nnodes,
        "trainer.logger": [],
        "trainer.project_name": "llmzero_ray",
        "trainer.resume_mode": "disable",
        "trainer.use_v1": True,
        "trainer.v1.trainer_mode": "sync",
    }
    if settings.platform == "cpu":
        keys |= _cpu_overrides(settings)
    else:
        keys |= {
            # A longer prompt would leave less room for the response than the phase's cap, or none.
            "data.filter_overlong_prompts": True,
            # With any workers, `datasets` forks the driver, whose torch and Ray threads may hold locks.
            "data.filter_overlong_prompts_workers": None,
            f"{ROLLOUT}.gpu_memory_utilization": settings.gpu_memory_utilization,
            f"{MODEL}.use_shm": False,
        }
        if settings.nnodes > 1:
            # Shard within a machine and replicate across machines: an adapter's gradients are small, gathered
            # weights are not.
            keys[f"{ACTOR}.fsdp_config.fsdp_size"] = settings.n_gpus_per_node
        if not settings.serve_merged:
            keys[BUCKET_MEGABYTES] = ADAPTER_BUCKET_MEGABYTES
    if settings.serve_merged:
        keys[MERGE] = True
        _refuse_beside_merging(settings.overrides)
    _refuse_unsupported(settings.overrides)
    return keys | dict(settings.overrides)


def _refuse_unsupported(overrides: Mapping[str, Any]) -> None:
    """Reject a critic, FSDP1, merged weights (a setting of their own), and a reward function, which would run
    unvalidated and outside the sandbox."""
    for key, value in overrides.items():
        if key.lstrip("+") in _STRATEGIES and value != "fsdp2":
            raise ConfigError(
                f"engine.overrides sets {key} to {value!r}; phases exchange the adapter tensor by tensor, "
                "which FSDP2 alone allows. Remove the key"
            )
        if key.lstrip("+~").startswith("critic"):
            raise ConfigError(
                f"engine.overrides sets {key}; a critic is not supported: phases exchange, save and "
                "resume the policy's adapter alone. Remove the key"
            )
        if _merges(key, value) is not None:
            raise ConfigError(
                f"engine.overrides sets {key} to {value!r}; whether merged weights are served is a setting "
                "of its own, which the memory estimate and the checks of vLLM know. Set "
                "engine.serve_merged to true or false, and remove the key"
            )
        name = key.lstrip("+~").removeprefix("reward.")
        if name.startswith("custom_reward_function") and not name.startswith(_REWARD_OPTIONS):
            raise ConfigError(
                f"engine.overrides sets {key}; the reward is the task's. Name it in the task's manifest.json "
                "or task.yaml, where it is tried and confined, and remove the key"
            )


def _merges(key: str, value: Any) -> Any:
    """Value that an override gives to MERGE, or None if it does not set it."""
    name = key.lstrip("+")
    if name == MERGE:
        return value
    if MERGE.startswith(f"{name}.") and isinstance(value, Mapping):
        for part in MERGE.removeprefix(f"{name}.").split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value
    return None


def _refuse_beside_merging(overrides: Mapping[str, Any]) -> None:
    """Reject overrides that do not work with merged weights: quantization in the server, a load format other
    than safetensors, and sequences split over GPUs, for which the server cannot be compared with the
    policy."""
    for key, value in overrides.items():
        name = key.lstrip("+")
        quantized = name.startswith(f"{ROLLOUT}.quantization") and value
        split = name.endswith("ulysses_sequence_parallel_size") and value != 1
        dummy = name == f"{ROLLOUT}.load_format" and value != "safetensors"
        if quantized or split or dummy:
            raise ConfigError(
                f"engine.serve_merged is true, and engine.overrides sets {key} to {value!r}; merged weights "
                "are sent to a server that loaded the base model as it is, and are compared with the policy "
                "by whole sequences on one GPU. Remove one of the two"
            )


def _reward_function(settings: VerlSettings) -> dict[str, Any]:
    function = "reward.custom_reward_function"
    if not settings.confines_reward:
        return {f"{function}.path": settings.reward_source, f"{function}.name": settings.reward_name}
    return {
        f"{function}.path": confined_reward.SOURCE,
        f"{function}.name": confined_reward.compute_score.__name__,
        f"+{function}.reward_kwargs": confined_reward.kwargs_of(settings),
    }


def _cpu_overrides(settings: VerlSettings) -> dict[str, Any]:
    """VeRL keys for a machine without GPUs: fp32, no sleep mode, no compiled kernels, a small fixed KV cache,
    one process less."""
    return {
        "trainer.device": "cpu",
        f"+{MODEL}.override_config.attn_implementation": "sdpa",
        f"{MODEL}.use_remove_padding": False,
        f"{MODEL}.enable_gradient_checkpointing": False,
        f"{ACTOR}.use_torch_compile": False,
        f"{ACTOR}.fsdp_config.use_torch_compile": False,
        f"+{ACTOR}.fsdp_config.mixed_precision": _FP32,
        f"{ROLLOUT}.dtype": "float32",
        f"{ROLLOUT}.free_cache_engine": False,
        f"+{ROLLOUT}.enable_sleep_mode": False,
        f"{ROLLOUT}.enforce_eager": True,
        f"+{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes": settings.kv_cache_bytes,
        f"+{ROLLOUT}.engine_kwargs.vllm.distributed_executor_backend": (
            "uni" if settings.tensor_model_parallel_size == 1 else "mp"
        ),
        # Maximum size of a tensor. It is shared memory, of which only the part that is written is allocated.
        BUCKET_MEGABYTES: 1024 if settings.serve_merged else 8,
    }


def phase_overrides(spec: PhaseSpec, n_train: int) -> dict[str, Any]:
    """VeRL keys of one phase: its hyper-parameters and keys derived from them.

    `n_train` (rows) only bounds VeRL's epoch counter, so that `n_steps` is what ends the phase.
    """
    keys: dict[str, Any] = {
        key: value for key, value in spec.hyperparameters.items() if not _left_out(key, value)
    }
    micro = keys.get(MICRO)
    if micro is not None:
        # VeRL scores and trains the same rows. One micro-batch size for all three passes keeps splits even.
        keys.setdefault(f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", micro)
        keys.setdefault(f"{REF}.log_prob_micro_batch_size_per_gpu", micro)
    batch = int(_number(keys, "data.train_batch_size"))
    steps_per_epoch = max(1, n_train // batch)
    return keys | {
        "data.seed": spec.seed % 2**31,
        "trainer.total_training_steps": spec.n_steps,
        "trainer.total_epochs": math.ceil(spec.n_steps / steps_per_epoch) + 1,
        "trainer.save_freq": spec.save_freq,
        "trainer.test_freq": spec.test_freq,
        "trainer.val_before_train": True,
        "trainer.default_local_dir": spec.checkpoint_dir,
        "trainer.experiment_name": f"{spec.search}-{spec.node}",
    }


def _left_out(key: str, value: HyperparameterValue) -> bool:
    """Whether a value is the null that leaves a key to the engine or VeRL."""
    row = VERL_SPACE.bounds(key)
    return value is None and row is not None and row.nullable


def all_overrides(settings: VerlSettings, spec: PhaseSpec, n_train: int) -> dict[str, Any]:
    """`engine_overrides` and `phase_overrides`. The phase's value wins.

    Raises:
        ConfigError: keys that are not supported, alone or together.
    """
    merged = engine_overrides(settings)
    for key, value in phase_overrides(spec, n_train).items():
        merged.pop(f"+{key}", None)
        merged[key] = value
    if merged.get(BYPASS) and not clip_is_inert(spec.hyperparameters):
        raise ConfigError(
            f"{BYPASS} is true, and a step makes several updates ({MINI_BATCH} is "
            f"{merged.get(MINI_BATCH)} of {TRAIN_BATCH} {merged.get(TRAIN_BATCH)}, {PPO_EPOCHS} "
            f"{merged.get(PPO_EPOCHS, 1)}): nothing would show then whether vLLM samples from the policy "
            "that is trained. Make them one update, or leave the key out"
        )
    if settings.platform == "gpu":
        # Filtering may leave few rows. An epoch has at least one step, and n_steps must end the phase.
        merged["trainer.total_epochs"] = spec.n_steps + 1
    return merged


def _number(keys: Mapping[str, HyperparameterValue], key: str) -> float:
    value = keys.get(key)
    if not is_number(value):
        raise ConfigError(f"{key} is {value!r}; must be a number, and every phase must set it")
    return value


def hydra_literal(value: Any) -> str:
    """`value` as a literal of hydra's override grammar.

    Raises:
        ConfigError: hydra overrides cannot express values of this type.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # Hydra takes a backslash literally, except before a quote or at the end, where it must be doubled.
        escaped = re.sub(r"(\\*)'", lambda found: found[1] * 2 + "\\'", value)
        return "'" + re.sub(r"\\+$", lambda found: found[0] * 2, escaped) + "'"
    if isinstance(value, list | tuple):
        return "[" + ",".join(hydra_literal(v) for v in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}:{hydra_literal(v)}" for k, v in value.items()) + "}"
    raise ConfigError(f"a VeRL override cannot be a {type(value).__name__}: {value!r}")


def config_dir() -> Path:
    """Folder of the installed VeRL's hydra configuration, found without importing VeRL.

    Raises:
        ConfigError: VeRL is not installed here.
    """
    found = importlib.util.find_spec("verl")
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            "VeRL is not installed in this environment; install the `verl` extra (docs/install.md)"
        )
    return Path(next(iter(found.submodule_search_locations))) / "trainer" / "config"


def compose(overrides: Mapping[str, Any]) -> Any:
    """VeRL's resolved configuration (OmegaConf) with `overrides`, from VeRL's own hydra files. The caller
    gets its own copy.

    Raises:
        ConfigError: VeRL does not know a key, or hydra rejects a value; the message names it.
    """
    lines = tuple(f"{key}={hydra_literal(value)}" for key, value in overrides.items())
    return copy.deepcopy(_composed(lines))


@functools.lru_cache(maxsize=8)
def _composed(lines: tuple[str, ...]) -> Any:
    """VeRL's configuration with these `key=value` lines. It is cached, because reading the files takes as
    long as a step of a small model, and evaluations repeat the same lines."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_dir(str(config_dir()), version_base=None):
            config = hydra_compose("ppo_trainer", overrides=list(lines))
        OmegaConf.resolve(config)
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ or error
        detail = " ".join(str(cause).split())
        raise ConfigError(
            f"VeRL's configuration refuses an override: {detail}; check the key against VeRL's trainer/config"
        ) from error
    return config
