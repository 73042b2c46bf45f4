"""VeRL's v1 trainer for one phase after another: on reserved bundles, streaming, stoppable, re-used warm.

Every override below adds to VeRL's own method or replaces one documented hook; the training step itself is
VeRL's.

Not here: processes and messages (host.py), the worker side (workers.py), judging what was read back
(effective.py).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
import transfer_queue as tq
from omegaconf import open_dict
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.single_controller.ray.base import ResourcePoolManager, SubRayResourcePool
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.utils import create_rl_dataset, need_reference_policy
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn
from verl.workers.rollout.replica import RolloutReplicaRegistry

from llmzero_ray.engines.verl.effective import expected_at_start, expected_of_rollouts, mismatches
from llmzero_ray.engines.verl.seeds import derive_seed
from llmzero_ray.engines.verl.settings import VerlSettings
from llmzero_ray.engines.verl.workers import ROW_KEY, PhaseAgentLoopManager, PhaseWorker, RecordingReplica
from llmzero_ray.errors import EffectiveConfigError, PhaseError
from llmzero_ray.records import Checkpoint, ItemOutcome, MetricPoint, PhaseSpec

MAX_ROLLOUT_KL = 0.1
"""Nats between vLLM's and the actor's log-probabilities of the same tokens at step 1. Seen: 0.000 in fp32 on
the CPU; beyond this, vLLM samples from another policy than the one that is trained."""

POLL_INTERVAL_S = 0.02
"""VeRL's replay buffer sleeps 2 s between looks, the floor of every small step, and offers no key for it."""

_MUST_BE_FINITE = ("actor/grad_norm", "actor/loss", "actor/pg_loss", "critic/rewards/mean")


class NonFiniteError(PhaseError):
    """A loss, gradient or reward was NaN or infinite: VeRL skips such updates silently, we end the phase."""


@dataclass
class PhaseState:
    """What one running phase has reported so far."""

    spec: PhaseSpec
    emit: Callable[[MetricPoint], None]
    saved: Callable[[Checkpoint], None]
    skip: tuple[str, ...] = ()
    stop_asked: Callable[[], str | None] = lambda: None
    """Reason of a stop that was asked for from outside."""
    began: float = field(default_factory=time.monotonic)
    ready: float | None = None
    train_began: float | None = None
    scores: dict[int, float] = field(default_factory=dict)
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    steps_done: int = 0
    stop_reason: str | None = None

    @property
    def best(self) -> tuple[int, float] | None:
        """(step, score) of the best validation after step 0; the earliest of equals."""
        scored = [(s, v) for s, v in self.scores.items() if s > 0]
        return max(scored, key=lambda sv: (sv[1], -sv[0])) if scored else None


class _ReservedBundles(ResourcePoolManager):
    """VeRL's pool on placement groups that somebody else reserved."""

    def __init__(self, settings: VerlSettings, groups: list[Any], mapping: dict[Any, str]) -> None:
        per_node = [settings.n_gpus_per_node] * settings.nnodes
        super().__init__(resource_pool_spec={"global_pool": per_node}, mapping=mapping)
        self._groups, self._per_node = groups, per_node

    def create_resource_pool(self) -> None:
        self.resource_pool_dict["global_pool"] = SubRayResourcePool(
            placement_groups=self._groups,
            start_bundle_index=0,
            subgroup_world_size=sum(self._per_node),
            process_on_nodes=self._per_node,
            use_gpu=True,
            max_colocate_count=self.max_colocate_count,
            name_prefix="llmzero",
        )


class _Rows(Dataset):
    """A data set whose `index` is the row's position, whatever its file says."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> Any:
        row = self._rows[i]
        row["index"] = i
        return row


class _Stream:
    """Looks like a logger to VeRL's Tracking."""

    def __init__(self, log: Callable[[dict[str, Any], int], None]) -> None:
        self._log = log

    def log(self, data: dict[str, Any], step: int) -> None:
        self._log(data, step)

    def finish(self) -> None:
        return None


@register_trainer("llmzero_phase")
class PhaseTrainer(PPOTrainerSync):
    """One warm VeRL: `start` once, then `begin_phase` + `train`, or `evaluate`, as often as wanted."""

    total_training_steps: int

    def __init__(self, config: Any, settings: VerlSettings, groups: list[Any]) -> None:
        RolloutReplicaRegistry.register("vllm", lambda: RecordingReplica)
        self.settings, self._groups = settings, groups
        self.phase: PhaseState | None = None
        self._items: tuple[ItemOutcome, ...] = ()
        self._responses: list[str] = []
        super().__init__(config)

    # --- life cycle ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Cold start: FSDP worker, vLLM, reward and agent-loop workers."""
        self.init()
        self.agent_loop_manager = PhaseAgentLoopManager.create(
            config=self.config,
            llm_client=self.get_llm_client(),
            teacher_client=None,
            reward_loop_worker_handles=self.get_reward_handles(),
        )

    def begin_phase(self, config: Any, phase: PhaseState) -> None:
        """Exchange everything a phase owns: data order, adapter, optimizer, loss, sampling, lengths.

        Raises:
            EffectiveConfigError: what now acts differs from what `phase.spec` asks for.
        """
        spec = phase.spec
        self.phase, self.config = phase, config
        self._use_config(config, phase.skip)
        if "adapter" not in phase.skip:
            self.actor_rollout_wg.load_adapter(spec.adapter, derive_seed(spec.seed, "adapter"))
        self.actor_rollout_wg.begin_phase(config.actor_rollout_ref, spec.seed % 2**31, phase.skip)
        if "weights" not in phase.skip:
            self._push_weights()
        if "sampling" not in phase.skip:
            cap = int(config.data.max_response_length)
            self._begin_rollouts(
                config, derive_seed(spec.seed, "rollouts"), cap, self.settings.eval_max_response_length
            )
        self._check_start()

    def _use_config(self, config: Any, skip: tuple[str, ...] = ()) -> None:
        self.use_reference_policy = need_reference_policy(config)
        if config.algorithm.use_kl_in_reward and "kl_in_reward" not in skip:
            self.kl_ctrl_in_reward = core_algos.get_kl_controller(config.algorithm.kl_ctrl)
        self._init_dump_executor()
        if "batch" not in skip:
            self._init_dataloader()
        self.replay_buffer = self._build_replay_buffer()
        self.global_steps = 0

    def _push_weights(self) -> None:
        self.checkpoint_manager.sleep_replicas()  # on GPUs a push wakes sleeping replicas
        self.checkpoint_manager.update_weights(0)

    def _begin_rollouts(self, config: Any, seed: int, train_max_tokens: int, eval_max_tokens: int) -> None:
        config = config.copy()
        with open_dict(config):
            # Requests carry their own cap; this one only bounds what the agent loop keeps of an answer.
            config.actor_rollout_ref.rollout.response_length = (
                self.settings.max_model_len - self.settings.max_prompt_length
            )
        workers = self.agent_loop_manager.agent_loop_workers
        ray.get([w.begin_phase.remote(config, seed, train_max_tokens, eval_max_tokens) for w in workers])

    def train(self) -> None:
        """Run the phase begun last to its end, a stop, or an error."""
        self.fit(self.agent_loop_manager)

    def evaluate(
        self, config: Any, adapter: str | None, parquet: str, max_tokens: int
    ) -> tuple[ItemOutcome, ...]:
        """Greedy outcomes of the rows of `parquet`, in row order, under `adapter` (None: the base model)."""
        self.phase, self.config = None, config
        self._use_config(config, skip=("batch",))
        # A fresh adapter has B = 0: exactly the base model.
        self.actor_rollout_wg.load_adapter(adapter, 0)
        self._push_weights()
        self._begin_rollouts(config, 0, max_tokens, max_tokens)
        self.val_dataset = self._read(parquet, is_train=False)
        self.val_dataloader = self._val_loader()
        self._validate()
        self._shutdown_dump_executor()
        items, self._items = self._items, ()
        return items

    def clear_queue(self) -> None:
        """Drop what an aborted step left behind in the TransferQueue."""
        for partition, items in (tq.kv_list() or {}).items():
            if items:
                tq.kv_clear(keys=list(items), partition_id=partition)

    # --- reserved hardware and data ------------------------------------------------------------------------

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in self.role_worker_mapping:
            self.role_worker_mapping[role] = ray.remote(PhaseWorker)
        self.resource_pool_manager = _ReservedBundles(self.settings, self._groups, self.mapping)

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = POLL_INTERVAL_S
        return buffer

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        self.val_dataset = _Rows(self.val_dataset)
        self.val_dataloader = self._val_loader()

    def _read(self, parquet: str, is_train: bool) -> _Rows:
        return _Rows(
            create_rl_dataset(parquet, self.config.data, self.tokenizer, self.processor, is_train=is_train)
        )

    def _val_loader(self) -> StatefulDataLoader:
        return StatefulDataLoader(
            dataset=self.val_dataset,
            batch_size=len(self.val_dataset),
            num_workers=0,
            shuffle=False,
            collate_fn=collate_fn,
        )

    def _fetch_one_gen_batch(self) -> Any:
        # VeRL names prompts by uuid4; a name made of step and place lets every later order follow from the
        # data alone.
        batch = super()._fetch_one_gen_batch()
        names = [f"s{self.global_steps:07d}x{i:05d}" for i in range(len(batch))]
        tu.assign_non_tensor_stack(batch, "uid", names)
        return batch

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        # Trajectories arrive as they finish; sorted, sums over the batch add in the same order every time.
        batch.reorder(sorted(range(len(batch.keys)), key=lambda i: _trajectory_order(batch.keys[i])))
        return super()._balance_batch(batch, metrics, *args, **kwargs)

    # --- what is read back ---------------------------------------------------------------------------------

    def _check_start(self) -> None:
        assert self.phase is not None
        spec = self.phase.spec
        wanted, acting = self.actor_rollout_wg.adapter_digest(
            spec.adapter, derive_seed(spec.seed, "adapter")
        )[0]
        seen = {**self.actor_rollout_wg.read_effective()[0], "adapter": acting}
        seen["data.train_batch_size"] = self.train_dataloader.batch_size
        seen["trainer.total_training_steps"] = self.total_training_steps
        seen["algorithm.norm_adv_by_std_in_grpo"] = self.config.algorithm.get("norm_adv_by_std_in_grpo", True)
        # VeRL's trainer reads these from its configuration at every step and sends them along.
        for key in ("ppo_epochs", "ppo_mini_batch_size"):
            seen[f"actor_rollout_ref.actor.{key}"] = self.config.actor_rollout_ref.actor[key]
        if self.config.algorithm.use_kl_in_reward:
            seen["algorithm.kl_ctrl.kl_coef"] = self.kl_ctrl_in_reward.value
        _refuse(mismatches({**expected_at_start(spec), "adapter": wanted}, seen))

    def prepare_step(self) -> Any:
        if self.global_steps == 1:
            self._servers("reset_record")
        return super().prepare_step()

    def on_sample_end(self) -> None:
        super().on_sample_end()
        if self.global_steps == 1 and self.phase is not None:
            _refuse(mismatches(*expected_of_rollouts(self.phase.spec, self._servers("read_record"))))

    def _servers(self, method: str) -> list[Any]:
        servers = [s for replica in self.llm_server_manager.get_replicas() for s in replica.servers]
        return list(ray.get([getattr(s, method).remote() for s in servers]))

    # --- hooks of the training loop ------------------------------------------------------------------------

    def on_validate_begin(self) -> None:
        self._attach_stream()

    def on_train_begin(self) -> None:
        self._attach_stream()
        if self.phase is not None:
            self.phase.train_began = time.monotonic()

    def _attach_stream(self) -> None:
        self.logger.logger.setdefault("llmzero", _Stream(self._log))

    def on_validate_end(self) -> None:
        phase = self.phase
        if phase is None or self.global_steps == 0:
            return
        step, score = self.global_steps, _mean_accuracy(self._items)
        best = phase.best
        phase.scores[step] = score
        if best is None or score > best[1]:
            self._save_checkpoint()
        if step in phase.checkpoints:
            phase.checkpoints[step] = Checkpoint(
                step=step, path=phase.checkpoints[step].path, val_score=score
            )

    def on_step_end(self) -> None:
        super().on_step_end()
        phase = self.phase
        assert phase is not None
        phase.stop_reason = phase.stop_reason or phase.stop_asked()
        limit = phase.spec.max_wall_s
        if (
            phase.stop_reason is None
            and limit is not None
            and time.monotonic() - (phase.train_began or 0) >= limit
        ):
            phase.stop_reason = "max_hours"
        if phase.stop_reason is not None and self.global_steps < self.total_training_steps:
            self._save_checkpoint()
            self.total_training_steps = self.global_steps  # VeRL's loop ends after this step is logged

    def _save_checkpoint(self) -> None:
        phase, step = self.phase, self.global_steps
        if phase is None or step in phase.checkpoints:
            return
        path = os.path.join(phase.spec.checkpoint_dir, f"step_{step:06d}")
        facts = {
            "search": phase.spec.search,
            "node": phase.spec.node,
            "step": step,
            "global_step": phase.spec.base_step + step,
        }
        self.actor_rollout_wg.save_adapter(path, facts)
        checkpoint = Checkpoint(step=step, path=path)
        phase.checkpoints[step] = checkpoint
        phase.saved(checkpoint)

    def _val_metrics_update(
        self, data_sources: Any, sample_uids: Any, reward_extra_infos_dict: Any, *args: Any, **kwargs: Any
    ) -> Any:
        rows = reward_extra_infos_dict.pop(ROW_KEY)
        accs = reward_extra_infos_dict.get("acc", reward_extra_infos_dict["reward"])
        outcomes = [
            ItemOutcome(
                index=int(row), data_source=str(source), score=float(score), acc=float(acc), response=text
            )
            for row, source, score, acc, text in zip(
                rows, data_sources, reward_extra_infos_dict["reward"], accs, self._responses, strict=True
            )
        ]
        self._items = tuple(sorted(outcomes, key=lambda o: o.index))
        self._responses = []
        return super()._val_metrics_update(
            data_sources, sample_uids, reward_extra_infos_dict, *args, **kwargs
        )

    def _maybe_log_val_generations(self, inputs: Any, outputs: Any, scores: Any) -> None:
        self._responses = list(outputs)
        super()._maybe_log_val_generations(inputs=inputs, outputs=outputs, scores=scores)

    def _log(self, data: dict[str, Any], step: int) -> None:
        phase = self.phase
        if phase is None:
            return
        metrics = {k: float(v) for k, v in data.items() if _is_scalar(v)}
        validated = bool(self._items)
        score = _mean_accuracy(self._items) if validated else None
        if step == 0 and score is not None:
            phase.scores[0] = score
        phase.steps_done = max(phase.steps_done, step)
        point = MetricPoint(
            node=phase.spec.node,
            attempt=phase.spec.attempt,
            step=step,
            global_step=phase.spec.base_step + step,
            wall_s=time.monotonic() - phase.began,
            metrics=metrics,
            val_score=score,
            items=self._items,
        )
        self._items = ()
        phase.emit(point)
        if step == 1 and abs(metrics.get("rollout_corr/kl", 0.0)) > MAX_ROLLOUT_KL:
            _refuse(
                [
                    f"vLLM's policy differs from the actor's by {metrics['rollout_corr/kl']:.3f} nats "
                    f"(at most {MAX_ROLLOUT_KL})"
                ]
            )
        broken = [k for k in _MUST_BE_FINITE if k in metrics and not math.isfinite(metrics[k])]
        if broken:
            raise NonFiniteError(f"step {step}: {', '.join(f'{k} is {metrics[k]}' for k in broken)}")


def _refuse(differences: list[str]) -> None:
    if differences:
        raise EffectiveConfigError(
            f"the phase would not train with what it was asked to: {'; '.join(differences)}. "
            "Nothing was trained with it"
        )


def _trajectory_order(key: str) -> tuple[str, int, int]:
    uid, session, index = key.rsplit("_", 2)
    return uid, int(session), int(index)


def _mean_accuracy(items: tuple[ItemOutcome, ...]) -> float:
    return sum(i.acc for i in items) / len(items)


def _is_scalar(value: Any) -> bool:
    if isinstance(value, bool | str | bytes) or value is None:
        return False
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
