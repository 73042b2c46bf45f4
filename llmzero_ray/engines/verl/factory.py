"""Creates a VeRL engine for a slot from the configuration of a search. All mapping of fields is here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from llmzero_ray.engines.base import Slot
from llmzero_ray.engines.verl.engine import VerlEngine
from llmzero_ray.engines.verl.overrides import all_overrides, compose
from llmzero_ray.engines.verl.settings import VerlSettings
from llmzero_ray.errors import ConfigError
from llmzero_ray.estimate import Estimate, resolve_platform
from llmzero_ray.hyperparameters import is_hot, resolve
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.records import Hyperparameters, PhaseSpec

if TYPE_CHECKING:
    from llmzero_ray.config import SearchConfig
    from llmzero_ray.prepared import PreparedTask

MICRO_BATCH_LIMIT = {"cpu": 128, "gpu": 16}
"""Maximum sequences per GPU in a micro batch: large for tiny models on the CPU, which are fastest in one
pass, small for GPUs, which must fit long sequences."""


def resolve_rollout_calls(asked: str, platform: str) -> Literal["batched", "per_request"]:
    """`asked`, with `auto` resolved: `batched` on the CPU, where calls cost more than the work, `per_request`
    on GPUs, where the first answers are scored while the last ones are generated."""
    if asked in ("batched", "per_request"):
        return cast(Literal["batched", "per_request"], asked)
    return "batched" if platform == "cpu" else "per_request"


def make_verl_engine(config: SearchConfig, task: PreparedTask, slot: Slot, log_dir: str) -> VerlEngine:
    """Engine that has not started anything yet. Its log is `log_dir`/engine.log."""
    settings = verl_settings(config, task, slot, log_dir)
    estimate = Estimate(config, task)

    def stop_deadline_s(spec: PhaseSpec) -> float:
        return estimate.time_limits(spec.hyperparameters).stop_s

    idle = idle_spec(config, task.n_train, log_dir)
    return VerlEngine(settings, task.n_train, idle, is_hot, stop_deadline_s)


def verl_settings(config: SearchConfig, task: PreparedTask, slot: Slot, log_dir: str) -> VerlSettings:
    """Settings that are constant during the search on this slot."""
    model_path = config.model.path or task.model_path
    if model_path is None:
        raise ConfigError(
            "model.path is null and the task brings no model; set model.path to a model directory"
        )
    engine, platform = config.engine, resolve_platform(config.engine.platform)
    return VerlSettings(
        platform=platform,
        model_path=model_path,
        lora_rank=config.model.lora_rank,
        lora_alpha=config.model.lora_alpha,
        target_modules=config.model.target_modules,
        train_parquet=task.train,
        val_parquet=task.val,
        reward_source=_reward_source(task),
        reward_module=task.reward_module if task.reward_top else None,
        reward_name=task.reward_name,
        reward_sha256=task.reward_sha256,
        reward_keys=task.reward_keys,
        reward_unsandboxed=task.reward_unsandboxed,
        max_prompt_length=engine.max_prompt_length,
        max_response_length=engine.max_response_length,
        eval_max_response_length=config.eval.max_response_length,
        n_gpus_per_node=slot.gpus_per_node,
        nnodes=max(1, len(slot.placement_groups)),
        tensor_model_parallel_size=engine.tensor_model_parallel_size,
        max_num_seqs=engine.sequences_at_once,
        gpu_memory_utilization=engine.server_share,
        kv_cache_bytes=engine.kv_cache_bytes,
        micro_batch_limit=MICRO_BATCH_LIMIT[platform],
        agent_workers=engine.agent_workers,
        reward_workers=engine.reward_workers,
        rollout_calls=resolve_rollout_calls(engine.rollout_calls, platform),
        serve_merged=engine.serve_merged,
        canary_every_push=platform == "gpu" or engine.serve_merged,
        vllm_model_runner=engine.vllm_model_runner,
        overrides=engine.overrides,
        search=slot.search,
        slot=slot.index,
        placement_groups=slot.placement_groups,
        log_path=str(Path(log_dir) / "engine.log"),
        start_timeout_s=engine.start_timeout_s,
    )


def _reward_source(task: PreparedTask) -> str:
    if task.reward_module is not None and task.reward_top is None:
        return f"pkg://{task.reward_module}"
    return task.reward_top or task.reward_path


def idle_spec(config: SearchConfig, n_train: int, log_dir: str) -> PhaseSpec:
    """The root's configuration as a phase that is never trained, for scoring policies."""
    return _spec(config.name, root_hyperparameters(config, n_train), log_dir)


def check_root(config: SearchConfig, task: PreparedTask, hyperparameters: Hyperparameters) -> None:
    """Check, before anything starts, that VeRL accepts the root's configuration.

    Raises:
        ConfigError: it does not; the message has the key and VeRL's reason.
    """
    slot = Slot(
        search=config.name,
        index=0,
        placement_groups=("",) * config.slots.nodes,
        gpus_per_node=config.slots.gpus_per_node,
        cpus_per_gpu=config.slots.cpus_per_gpu,
    )
    settings = verl_settings(config, task, slot, ".")
    full: Mapping[str, Any] = resolve(
        hyperparameters, n_gpus=settings.n_gpus, micro_batch_limit=settings.micro_batch_limit
    )
    compose(all_overrides(settings, _spec(config.name, full, "."), task.n_train))


def _spec(search: str, hyperparameters: Hyperparameters, log_dir: str) -> PhaseSpec:
    return PhaseSpec(
        search=search,
        node=0,
        kind="root",
        parent=None,
        resume_from=None,
        adapter=None,
        base_step=0,
        n_steps=1,
        hyperparameters=hyperparameters,
        seed=0,
        save_freq=1,
        test_freq=1,
        checkpoint_dir=log_dir,
    )
