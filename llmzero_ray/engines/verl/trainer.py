"""VeRL's v1 trainer, reused for one phase after another: on reserved bundles, streaming metrics, stoppable.

Every override extends VeRL's own method or replaces one documented hook. The training step itself is VeRL's.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ray
import transfer_queue as tq
from omegaconf import open_dict
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.trainer.ppo.utils import create_rl_dataset, need_reference_policy
from verl.trainer.ppo.v1 import register_trainer
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import collate_fn
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder
from verl.workers.rollout.replica import RolloutReplicaRegistry

from llmzero_ray.engines.verl import canary, config_check, full_checkpoint, patches
from llmzero_ray.engines.verl.agent_loops import PhaseAgentLoopManager
from llmzero_ray.engines.verl.canary import LogProbs
from llmzero_ray.engines.verl.config_check import expected_of_rollouts, mismatches
from llmzero_ray.engines.verl.cpu.batched_rollouts import TOKENS_KEY, BatchedRollouts, validated
from llmzero_ray.engines.verl.cpu.local_queue import ByValueWorkerGroup, LocalQueue
from llmzero_ray.engines.verl.deterministic_trainer import POLL_INTERVAL_S, DeterministicTrainer
from llmzero_ray.engines.verl.helper_placement import nodes_of, place_helpers_on
from llmzero_ray.engines.verl.phase import PhaseState
from llmzero_ray.engines.verl.reward_calls import (
    BatchRewardWorker,
    refuse_unscored,
    score_here,
    score_in_workers,
    take_unscored,
)
from llmzero_ray.engines.verl.rollout_server import RecordingReplica, launch_servers
from llmzero_ray.engines.verl.seeds import derive_seed
from llmzero_ray.engines.verl.settings import VerlSettings
from llmzero_ray.engines.verl.verl_hooks import (
    SAMPLED_FIELDS,
    CallbackLogger,
    NumberedRows,
    ReservedBundles,
    group_metrics,
    mean_accuracy,
    outcomes_of,
    places_to_show,
    sampled_answers,
    scalars,
    tell_of_answers,
    with_numbered_rows,
    with_wrong,
)
from llmzero_ray.engines.verl.workers import PhaseWorker
from llmzero_ray.hyperparameters.compute import ComputeClock
from llmzero_ray.records import Answer, Checkpoint, ItemOutcome, MetricPoint
from llmzero_ray.records.metrics import MERGE_ROUNDING, VAL_TOKENS
from llmzero_ray.utils.failpoints import reach

logger = logging.getLogger(__name__)


class _StopHeard(Exception):  # noqa: N818  not an error
    """Ends VeRL's loop within a step. Carries the reason for the stop."""


@register_trainer("llmzero_phase")
class PhaseTrainer(DeterministicTrainer):
    """VeRL that stays warm: call `start` once, then `begin_phase` + `train`, or `evaluate`, as often as
    needed."""

    total_training_steps: int
    train_dataloader: StatefulDataLoader
    actor_rollout_wg: Any

    def __init__(
        self,
        config: Any,
        settings: VerlSettings,
        groups: list[Any],
        queue: LocalQueue | None = None,
        servers: Mapping[int, Any] | None = None,
    ) -> None:
        """`queue` replaces VeRL's TransferQueue; if None, VeRL's own must be running. `servers` holds handles
        of vLLM servers that were started early, by replica rank."""
        RolloutReplicaRegistry.register("vllm", lambda: RecordingReplica)
        self.settings, self._groups, self._queue = settings, groups, queue
        self._servers_started = servers or {}
        self.few_calls = settings.rollout_calls == "batched"
        self.poll_interval_s = POLL_INTERVAL_S[settings.platform]
        self.phase: PhaseState | None = None
        self.helpers_started: Callable[[], None] = lambda: None
        """Callback for when further processes have been started after `start`."""
        self.progressed: Callable[[], None] = lambda: None
        """Callback for answers that arrive while the trainer waits for a batch."""
        self.canary_passed = False
        """Whether the last canary check passed on every server. False if it could not be made."""
        self._base_of_servers: list[LogProbs | None] = []
        """Log-probabilities of servers with merged weights, from before the first adapter was merged."""
        self._items: tuple[ItemOutcome, ...] = ()
        self._sampled: tuple[Answer, ...] = ()
        self._responses: list[str] = []
        self._eval_max_tokens = settings.eval_max_response_length
        super().__init__(config)

    # --- life cycle ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Cold start of the FSDP workers, vLLM, and those reward and agent-loop workers needed at once."""
        batched = self.few_calls
        if batched:
            self._start_load_balancer = patches.postpone_load_balancer()
        patches.start_reward_workers_of(BatchRewardWorker)
        patches.leave_one_rank_unbalanced()
        nodes = nodes_of(self._groups)
        place_helpers_on(nodes)
        if self._servers_started:
            early = launch_servers(self._servers_started, self.config.actor_rollout_ref)
            RolloutReplicaRegistry.register("vllm", lambda: partial(RecordingReplica, early=early))
        self.init()
        if self._queue is not None:
            self.actor_rollout_wg = ByValueWorkerGroup(self.actor_rollout_wg, self._queue)
            if self.use_critic or not self.ref_in_actor:  # these workers read the queue themselves
                self._queue.migrate_to_package()
        if self.settings.serve_merged and len(self._canary_ids) >= 2:
            # VeRL has pushed a fresh adapter, which does not change the base model.
            self._base_of_servers = self.ask_servers("canary_log_probs", self._canary_ids)
        self.agent_loop_manager = PhaseAgentLoopManager.create(
            config=self.config,
            llm_client=self.get_llm_client(),
            teacher_client=None,
            reward_loop_worker_handles=self.get_reward_handles(),
            batched=self._batched_rollouts() if batched else None,
            start_helpers=self._start_helpers,
        )

    def _init_tokenizer(self) -> None:
        model = omega_conf_to_dataclass(self.config.actor_rollout_ref.model)
        self.tokenizer, self.processor = model.tokenizer, model.processor
        self._hf_model_type = getattr(model.hf_config, "model_type", None)
        text = self.tokenizer(canary.TEXT, add_special_tokens=False)["input_ids"]
        room = min(canary.MOST_TOKENS, self.settings.max_model_len - 1)
        self._canary_ids = tuple(int(token) for token in text[:room])

    def _batched_rollouts(self) -> BatchedRollouts:
        builder = create_continuous_token_builder(  # as in VeRL's agent loop
            self.tokenizer,
            hf_model_type=self._hf_model_type,
            chat_template_kwargs=self.config.data.get("apply_chat_template_kwargs", {}),
            mm_processor_kwargs=self.config.data.get("mm_processor_kwargs", {}),
            processor=self.processor,
        )
        if self.settings.scores_in_driver:
            score = partial(score_here, get_custom_reward_fn(self.config))
        else:
            score = partial(score_in_workers, self.get_reward_handles())
        servers = [partial(_ask_server, handle) for handle in self.llm_server_manager.server_handles]
        has_processor = self.processor is not None
        return BatchedRollouts(
            self.tokenizer, builder, servers, score, _put_into_queue, has_processor=has_processor
        )

    def _start_helpers(self) -> tuple[Any, list[Any]]:
        """Start what VeRL's agent loops call: the queue, the load balancer and the reward workers. Returns
        (client of the servers, handles of the reward workers)."""
        if self._queue is not None:
            self._queue.migrate_to_package()
        asyncio.run(self._start_load_balancer(self.llm_server_manager))
        rewards = self.reward_loop_manager
        if not rewards.reward_loop_workers:
            with open_dict(rewards.config):
                rewards.config.reward.num_workers = self.settings.reward_workers
            rewards._init_reward_loop_workers()
        self.helpers_started()
        return self.get_llm_client(), self.get_reward_handles()

    def begin_phase(self, config: Any, phase: PhaseState) -> None:
        """Exchange everything that belongs to a phase: data order, adapter, optimizer, loss, sampling,
        lengths. Then restore its full checkpoint, if it has one.

        Raises:
            EffectiveConfigError: the values in effect differ from `phase.spec`.
        """
        spec = phase.spec
        self.phase, self.config, self._sampled = phase, config, ()
        if "weights" not in phase.skip:
            self.checkpoint_manager.sleep_replicas()  # the exchange may need the GPUs' memory
        self._use_config(config, phase.skip)
        if "adapter" not in phase.skip:
            self.actor_rollout_wg.load_adapter(spec.adapter, derive_seed(spec.seed, "adapter"))
        reach("engine.switching")
        self.actor_rollout_wg.begin_phase(config.actor_rollout_ref, spec.seed % 2**31, phase.skip)
        config_check.check_start(self, spec)
        if phase.restore is not None:
            full_checkpoint.restore(self, phase)
        actor = None if "canary" in phase.skip else self._canary_of_actor()
        if "weights" not in phase.skip:
            self._push_weights()
        self._check_canary(actor)
        if "sampling" not in phase.skip:
            cap = int(config.data.max_response_length)
            self._begin_rollouts(
                config, derive_seed(spec.seed, "rollouts"), cap, self.settings.eval_max_response_length
            )

    def _use_config(self, config: Any, skip: tuple[str, ...] = ()) -> None:
        self.use_reference_policy = need_reference_policy(config)
        if config.algorithm.use_kl_in_reward and "kl_in_reward" not in skip:
            self.kl_ctrl_in_reward = core_algos.get_kl_controller(config.algorithm.kl_ctrl)
        self._init_dump_executor()
        if "batch" not in skip:
            self._init_dataloader()
        self.replay_buffer = self._build_replay_buffer()
        tell_of_answers(self.replay_buffer, self.progressed)
        if self.few_calls:
            self.agent_loop_manager.look_once_ended(self.replay_buffer)
        self._check_rewards_of(self.replay_buffer)
        ray.get([worker.begin_phase.remote() for worker in self.get_reward_handles() or ()])
        self.global_steps = 0

    def _check_rewards_of(self, replay_buffer: Any) -> None:
        """Check each batch before the trainer takes it, because VeRL drops answers without a score."""
        take, self._unscored = replay_buffer.sample, 0

        def sample(**asked: Any) -> Any:
            batch, metrics = take(**asked)
            rollout = self.config.actor_rollout_ref.rollout
            n = int(rollout.val_kwargs.n if asked["partition_id"] == "val" else rollout.n)
            n_scored = len({key.rsplit("_", 1)[0] for key in batch.keys})
            self._check_scored(n_scored, n * asked["batch_size"])
            return batch, metrics

        replay_buffer.sample = sample

    def _check_scored(self, n_scored: int, n_answers: int) -> None:
        """Like `refuse_unscored`, with the counts of the reward workers."""
        self._unscored = 0
        if n_scored < n_answers:
            unscored = take_unscored(self.get_reward_handles() or ())
            refuse_unscored(unscored, n_answers)
            self._unscored = n_answers - n_scored

    def _push_weights(self) -> None:
        self.checkpoint_manager.update_weights(self.global_steps)  # on GPUs this wakes sleeping replicas

    def _canary_of_actor(self) -> LogProbs | None:
        """The trained policy's log-probabilities of a fixed text, or None if they cannot be computed."""
        if len(self._canary_ids) < 2:
            return None
        found: LogProbs | None = self.actor_rollout_wg.canary_log_probs(self._canary_ids)[0]
        return found

    def _check_canary(self, actor: LogProbs | None) -> None:
        """Check after a push of weights that every vLLM server serves the trained policy.

        Raises:
            EffectiveConfigError: a server does not.
        """
        self.canary_passed = False
        if actor is None:
            return
        servers = self.ask_servers("canary_log_probs", self._canary_ids)
        merged = self.settings.serve_merged
        if merged:
            servers = [
                None if server is None or base is None else replace(server, base=base.policy)
                for server, base in zip(servers, self._base_of_servers, strict=True)
            ]
        found = [server for server in servers if server is not None]
        config_check.check_canary(actor, found, merged=merged)
        self.canary_passed = bool(found) and all(map(math.isfinite, actor.policy))

    def _begin_rollouts(self, config: Any, seed: int, train_max_tokens: int, eval_max_tokens: int) -> None:
        self._eval_max_tokens = eval_max_tokens
        config = config.copy()
        with open_dict(config):
            # Requests carry their own cap. This one only limits how much of an answer the agent loop keeps.
            config.actor_rollout_ref.rollout.response_length = (
                self.settings.max_model_len - self.settings.max_prompt_length
            )
        self.agent_loop_manager.begin_phase(config, seed, train_max_tokens, eval_max_tokens)

    def train(self) -> None:
        """Run the current phase until its end, a stop, or an error.

        Stops take effect between a step's rollout and its update, and at the step's end. Between rollout and
        update, the rollout is dropped and the phase ends with the previous step.
        """
        try:
            self.fit(self.agent_loop_manager)
        except _StopHeard as stop:
            assert self.phase is not None
            self.phase.stop_reason = str(stop)
            self.clear_queue()
            self.global_steps -= 1
            self._save_checkpoint()
            self._shutdown_dump_executor()

    def evaluate(
        self, config: Any, adapter: str | None, parquet: str, max_tokens: int
    ) -> tuple[ItemOutcome, ...]:
        """Outcomes of greedy answers to the rows of `parquet`, in row order, with `adapter` (None: the base
        model)."""
        self.phase, self.config = None, config
        self._use_config(config, skip=("batch",))
        self.checkpoint_manager.sleep_replicas()
        # A fresh adapter has B = 0, so it is exactly the base model.
        self.actor_rollout_wg.load_adapter(adapter, 0)
        actor = self._canary_of_actor()
        self._push_weights()
        self._check_canary(actor)
        self._begin_rollouts(config, 0, max_tokens, max_tokens)
        self.val_dataset = NumberedRows(
            create_rl_dataset(parquet, self.config.data, self.tokenizer, self.processor, is_train=False)
        )
        self.val_dataloader = self._val_loader()
        self._validate()
        self._shutdown_dump_executor()
        items, self._items = self._items, ()
        return items

    def clear_queue(self) -> None:
        """Remove everything that an aborted step left in the TransferQueue."""
        for partition, items in (tq.kv_list() or {}).items():
            if items:
                tq.kv_clear(keys=list(items), partition_id=partition)

    # --- reserved hardware and data ------------------------------------------------------------------------

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in self.role_worker_mapping:
            self.role_worker_mapping[role] = ray.remote(PhaseWorker)
        self.resource_pool_manager = ReservedBundles(self.settings, self._groups, self.mapping)

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        # Seeds of requests follow from the index, which in many files repeats or is missing.
        self.train_dataloader = with_numbered_rows(self.train_dataloader)
        self.val_dataset = NumberedRows(self.val_dataset)
        self.val_dataloader = self._val_loader()

    def _val_loader(self) -> StatefulDataLoader:
        return StatefulDataLoader(
            dataset=self.val_dataset,
            batch_size=len(self.val_dataset),
            num_workers=0,
            shuffle=False,
            collate_fn=collate_fn,
        )

    # --- what is read back ---------------------------------------------------------------------------------

    def prepare_step(self) -> Any:
        if self._is_first_step:
            self.ask_servers("reset_record")
        return super().prepare_step()

    def on_sample_end(self) -> None:
        super().on_sample_end()
        if self._is_first_step and self.phase is not None:
            records = self.ask_servers("read_record")
            config_check.refuse(mismatches(*expected_of_rollouts(self.phase.spec, records)))
        phase = self.phase
        if phase is not None and phase.progress.steps_done > 0 and (reason := phase.stop_asked()) is not None:
            raise _StopHeard(reason)
        self._enter("update")

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        tags = zip(batch.keys, batch.tags, strict=True)
        answers = {key: tag for key, tag in tags if not tag.get("is_padding", False)}
        rewards = self._columns_of(batch, answers, "rm_scores")["rm_scores"]
        scores = rewards.sum(dim=1).tolist()
        metrics.update(group_metrics(list(answers), scores))
        every = self.config.trainer.test_freq
        if self.global_steps >= self.total_training_steps or (every > 0 and self.global_steps % every == 0):
            try:
                self._sampled = self._answers_to_show(batch, answers, scores)
            except Exception:
                logger.exception("step %d: its sampled answers cannot be shown", self.global_steps)
        return super()._compute_advantage(batch, metrics)

    def _answers_to_show(
        self, batch: Any, answers: Mapping[str, Any], scores: Sequence[float]
    ) -> tuple[Answer, ...]:
        """A few sample answers of a step, with their texts."""
        cap = int(self.config.data.max_response_length)
        cut = [tag["response_len"] >= cap for tag in answers.values()]
        keys, places = list(answers), places_to_show(scores, cut)
        columns = self._columns_of(batch, [keys[i] for i in places], *SAMPLED_FIELDS)
        judged = [(scores[i], cut[i]) for i in places]
        return sampled_answers(columns, judged, self.tokenizer, self.global_steps)

    def _columns_of(self, batch: Any, keys: Iterable[str], *names: str) -> Any:
        return tq.kv_batch_get(keys=list(keys), partition_id=batch.partition_id, select_fields=list(names))

    @property
    def _is_first_step(self) -> bool:
        return self.global_steps == (1 if self.phase is None else self.phase.first_step)

    def servers(self) -> list[Any]:
        """Handles of all vLLM servers."""
        return [s for replica in self.llm_server_manager.get_replicas() for s in replica.servers]

    def ask_servers(self, method: str, *given: Any) -> list[Any]:
        """Result of a RecordingServer method from each vLLM server."""
        return list(ray.get([getattr(s, method).remote(*given) for s in self.servers()]))

    # --- hooks of the training loop ------------------------------------------------------------------------

    def _enter(self, stage: str) -> None:
        if self.phase is not None:
            self.phase.stage(stage)

    def on_validate_begin(self) -> None:
        self._attach_stream()
        self._enter("validation")

    def on_train_begin(self) -> None:
        self._attach_stream()
        if self.phase is not None:
            self.phase.train_began = time.monotonic()

    def on_step_begin(self) -> None:
        super().on_step_begin()
        self._enter("rollout")

    def _attach_stream(self) -> None:
        self.logger.logger.setdefault("llmzero", CallbackLogger(self._log))

    def on_validate_end(self) -> None:
        phase = self.phase
        if phase is not None and self.global_steps > 0:
            step, score = self.global_steps, mean_accuracy(self._items)
            best = phase.progress.best
            phase.progress.scores[step] = score
            if best is None or score > best[1]:
                self._save_checkpoint()
        self._enter("metrics")

    def on_step_end(self) -> None:
        self._enter("weights")
        phase = self.phase
        assert phase is not None
        checks = self.settings.canary_every_push and "canary" not in phase.skip
        actor = self._canary_of_actor() if checks else None
        super().on_step_end()
        self._check_canary(actor)
        phase.stop_reason = phase.stop_reason or phase.stop_asked()
        recorded = phase.spec.stop_after
        if phase.stop_reason is None and recorded is not None and self.global_steps >= recorded.step:
            phase.stop_reason = recorded.reason
        limit = phase.spec.max_wall_s
        if phase.stop_reason is None and limit is not None and phase.train_wall_s >= limit:
            phase.stop_reason = "max_hours"
        if phase.stop_reason is not None and self.global_steps < self.total_training_steps:
            self._save_checkpoint()
            self.total_training_steps = self.global_steps  # VeRL's loop ends after this step is logged
        self._enter("metrics")

    def _save_checkpoint(self) -> None:
        phase, step = self.phase, self.global_steps
        if phase is None or step in phase.progress.saved:
            return
        phase.stage("save")
        path = phase.spec.adapter_dir(step)
        facts = {
            "search": phase.spec.search,
            "node": phase.spec.node,
            "step": step,
            "global_step": phase.spec.base_step + step,
        }
        self.actor_rollout_wg.save_adapter(path, facts)
        phase.progress.saved[step] = path
        phase.saved(Checkpoint(step=step, path=path))

    def _validate(self) -> Any:
        batched, trainer = self.agent_loop_manager.batched, self.config.trainer
        if batched is None or trainer.get("validation_data_dir") or trainer.log_val_generations:
            return super()._validate()
        own = {"global_steps": self.global_steps, "validate": True}
        rows = [{**row, **own, "uid": str(i)} for i, row in enumerate(self.val_dataset.rows())]
        if batched.refusal(rows) is not None:
            return super()._validate()
        samples = batched.validate(rows)
        self.progressed()
        found = validated(samples)
        self._check_scored(len(found.uids), len(samples))
        if not found.uids:
            raise RuntimeError(f"no validation answer has a score, the first because {samples[0].error}")
        self._responses = found.texts
        n = len(samples) // len(rows)
        return self._val_metrics_update(
            found.data_sources,
            found.uids,
            found.infos,
            found.turns,
            expected_acc_counts={(str(row.get("data_source", "unknown")), row["uid"]): n for row in rows},
        )

    def _val_metrics_update(
        self, data_sources: Any, sample_uids: Any, reward_extra_infos_dict: Any, *args: Any, **kwargs: Any
    ) -> Any:
        lengths, cap = self._lengths(self._responses), self._eval_max_tokens
        # Not by `lengths`: a text may be spelled in fewer tokens than were generated.
        cut = [tokens >= cap for tokens in reward_extra_infos_dict.pop(TOKENS_KEY)]
        self._items = outcomes_of(data_sources, reward_extra_infos_dict, self._responses, cut)
        if self._unscored:
            # Left out, they would count as if they were as good as the others.
            scored = {item.index for item in self._items}
            rows = [row for row in self.val_dataset.rows() if row["index"] not in scored]
            self._items = with_wrong(self._items, {row["index"]: row["data_source"] for row in rows})
            logger.warning("%d validation answers could not be scored; they count as wrong", len(rows))
        # Each answer has a final token that its text does not show.
        sampled, self._responses = sum(lengths) + len(lengths), []
        found = super()._val_metrics_update(
            data_sources, sample_uids, reward_extra_infos_dict, *args, **kwargs
        )
        return {**found, VAL_TOKENS: float(sampled)}

    def _lengths(self, answers: list[str]) -> list[int]:
        """Tokens of each answer's text."""
        if not answers:
            return []
        return [len(ids) for ids in self.tokenizer(answers, add_special_tokens=False)["input_ids"]]

    def _maybe_log_val_generations(self, inputs: Any, outputs: Any, scores: Any) -> None:
        self._responses = list(outputs)
        super()._maybe_log_val_generations(inputs=inputs, outputs=outputs, scores=scores)

    def _log(self, data: dict[str, Any], step: int) -> None:
        phase = self.phase
        if phase is None:
            return
        metrics = scalars(data)
        if self.settings.serve_merged:
            metrics[MERGE_ROUNDING] = self.actor_rollout_wg.merge_rounding()[0]
        point = MetricPoint(
            node=phase.spec.node,
            attempt=phase.spec.attempt,
            step=step,
            global_step=phase.spec.base_step + step,
            wall_s=phase.wall_s,
            metrics=metrics,
            val_score=mean_accuracy(self._items) if self._items else None,
            items=self._items,
            sampled=self._sampled if self._items else (),
        )
        self._items = ()
        phase.progress.saw(point)
        phase.emit(point)
        self._end_by_compute(phase, step, metrics)
        config_check.check_finite(metrics, step)
        merged = self.settings.serve_merged
        config_check.check_rollout_kl(metrics, phase.spec.hyperparameters, step, merged=merged)
        full_checkpoint.save_if_due(self, phase, step)

    def _end_by_compute(self, phase: PhaseState, step: int, metrics: dict[str, float]) -> None:
        """End the phase with this step or the next one if its compute is used up."""
        spec = phase.spec
        if spec.compute is None:
            return
        if phase.clock is None:
            progress, known = phase.progress, spec.known_start
            validation = progress.val_tokens or (0.0 if known is None else known.val_tokens)
            phase.clock = ComputeClock(spec.compute, spec.hyperparameters, progress.compute, validation)
        following = phase.clock.take(step, metrics)
        phase.progress.compute = phase.clock.used
        if following == "go on" or self.global_steps >= self.total_training_steps:
            return
        if following == "end":
            self._save_checkpoint()
        phase.stop_reason = phase.stop_reason or "compute"
        self.total_training_steps = self.global_steps + (following == "last step")


def _ask_server(handle: Any, prompts: Any, seeds: Any, sampling: Any) -> Callable[[], Any]:
    return partial(ray.get, handle.generate_many.remote(prompts, seeds, dict(sampling)))


def _put_into_queue(keys: list[str], partition: str, tags: list[dict[str, Any]], fields: Any) -> None:
    tq.kv_batch_put(keys=keys, partition_id=partition, tags=tags, fields=fields)
