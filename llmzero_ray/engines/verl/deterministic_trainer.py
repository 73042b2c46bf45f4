"""VeRL's synchronous trainer, made deterministic and fast for small steps: prompts are named by step and
position, trajectories are sorted whatever order they finish in, and workers get only the columns they use."""

from __future__ import annotations

from typing import Any

from verl.trainer.distillation import is_distillation_enabled
from verl.trainer.ppo.v1 import PPOTrainerSync
from verl.utils import tensordict_utils as tu

from llmzero_ray.engines.verl.workers import AND_REFERENCE

POLL_INTERVAL_S = {"cpu": 0.02, "gpu": 0.5}
"""Seconds between two polls of VeRL's replay buffer. VeRL sleeps 2 s, which no step can undercut, and has no
key to change that. On GPUs rollouts take minutes, and each poll lists all answers."""

LOG_PROB_FIELDS = ("prompts", "responses", "response_mask", "loss_mask", "input_ids", "position_ids")
"""Columns of a batch that the log-probability passes of a text model read."""
UPDATE_FIELDS = (
    *LOG_PROB_FIELDS,
    "old_log_probs",
    "advantages",
    "ref_log_prob",
    "rollout_log_probs",
    "rollout_is_weights",
)
"""Columns that the update reads, if the batch has them."""


class DeterministicTrainer(PPOTrainerSync):
    """Trainer with reproducible results: equal data, seeds and weights give equal numbers."""

    few_calls = False
    """Whether a step combines VeRL's worker calls into as few as possible."""
    poll_interval_s = POLL_INTERVAL_S["cpu"]

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = self.poll_interval_s
        return buffer

    def _fetch_one_gen_batch(self) -> Any:
        # VeRL names prompts by uuid4. With names made of step and position, every later order depends on the
        # data alone.
        batch = super()._fetch_one_gen_batch()
        names = [f"s{self.global_steps:07d}x{i:05d}" for i in range(len(batch))]
        tu.assign_non_tensor_stack(batch, "uid", names)
        return batch

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        # Trajectories arrive as they finish. Once sorted, sums over the batch always add in the same order.
        batch.reorder(sorted(range(len(batch.keys)), key=lambda i: _trajectory_order(batch.keys[i])))
        return super()._balance_batch(batch, metrics, *args, **kwargs)

    # VeRL sends every column of a batch to workers. Each pass computes only with tensors, but rebuilds the
    # other columns object by object.

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        if self._computes_with_text_columns_alone:
            batch.fields = list(LOG_PROB_FIELDS)
        if self._asks_for_both_log_probs:
            batch.extra_info[AND_REFERENCE] = True
        return super()._compute_old_log_prob(batch, metrics)

    def _compute_ref_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        if self._asks_for_both_log_probs:
            return batch  # the workers put these into the queue together with the policy's
        if self._computes_with_text_columns_alone:
            batch.fields = list(LOG_PROB_FIELDS)
        return super()._compute_ref_log_prob(batch, metrics)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        if self._computes_with_text_columns_alone and batch.fields is not None:
            batch.fields = [field for field in UPDATE_FIELDS if field in batch.fields]
        return super()._update_actor(batch, metrics)

    @property
    def _asks_for_both_log_probs(self) -> bool:
        """Whether one worker call returns the log-probabilities of both policy and reference, which are the
        same module with and without its adapter."""
        correction = self.config.algorithm.get("rollout_correction") or {}
        return (
            self.few_calls
            and self.use_reference_policy
            and self.ref_in_actor
            and not correction.get("bypass_mode", False)
        )

    @property
    def _computes_with_text_columns_alone(self) -> bool:
        rollout = self.config.actor_rollout_ref.rollout
        return (
            self.processor is None
            and not rollout.get("enable_rollout_routing_replay", False)
            and not is_distillation_enabled(self.config.get("distillation"))
        )


def _trajectory_order(key: str) -> tuple[str, int, int]:
    uid, session, index = key.rsplit("_", 2)
    return uid, int(session), int(index)
