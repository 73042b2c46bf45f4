"""VeRL's agent-loop worker and its manager, extended: every request carries its own seed and length, and the
manager passes batches that need no agent loop to batched_rollouts.py.

The worker is a plain class, so that it is pickled by reference; it becomes a Ray actor only where it is
started.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import ray
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils.config import omega_conf_to_dataclass

from llmzero_ray.engines.verl import patches
from llmzero_ray.engines.verl.cpu.batched_rollouts import (
    ROW_KEY,
    TOKENS_KEY,
    BatchedRollouts,
    rows_of,
    text_tokens,
)
from llmzero_ray.engines.verl.seeds import derive_seed

logger = logging.getLogger(__name__)

_AgentLoopWorker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class


class PhaseAgentLoopWorker(_AgentLoopWorker):
    """VeRL's agent-loop worker, in which every request carries its own seed and `max_tokens`."""

    def begin_phase(self, config: Any, seed: int, train_max_tokens: int, eval_max_tokens: int) -> None:
        """Use `config` (VeRL's complete configuration) and `seed` from now on. Caps are in tokens."""
        patches.collect_garbage_as_usual()
        self.config = config
        self.rollout_config = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        self.phase_seed, self.max_tokens = seed, {False: train_max_tokens, True: eval_max_tokens}

    async def _run_agent_loop(
        self,
        sampling_params: dict[str, Any],
        trajectory: dict[str, Any],
        *,
        agent_name: str,
        trace: bool = True,
        **kwargs: Any,
    ) -> Any:
        own = dict(sampling_params)
        own["max_tokens"] = self.max_tokens[bool(trajectory["validate"])]
        own["seed"] = derive_seed(
            self.phase_seed, trajectory["step"], trajectory["sample_index"], kwargs.get("session_id", 0)
        )
        return await super()._run_agent_loop(own, trajectory, agent_name=agent_name, trace=trace, **kwargs)

    async def _compute_score(self, outputs: list[Any], kwargs: dict[str, Any]) -> None:
        await super()._compute_score(outputs, kwargs=kwargs)
        info = outputs[-1].extra_fields.get("reward_extra_info")
        if info is not None:
            info[ROW_KEY] = int(kwargs["index"])
            ids, mask = outputs[-1].response_ids, outputs[-1].response_mask
            info[TOKENS_KEY] = text_tokens(ids, mask, self.tokenizer.all_special_ids)


class PhaseAgentLoopManager(AgentLoopManagerTQ):
    """VeRL's manager with our workers.

    With `batched`, it passes on batches that need no agent loop. The workers are then started for the first
    batch that needs one. Before that, `start_helpers` starts the actors that they call, and returns the vLLM
    servers' client and the handles of the reward workers.
    """

    def __init__(
        self,
        *args: Any,
        batched: BatchedRollouts | None = None,
        start_helpers: Callable[[], tuple[Any, list[Any]]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(PhaseAgentLoopWorker)
        self.agent_loop_workers: list[Any] = []
        self.batched, self._start_helpers = batched, start_helpers
        self._phase: tuple[Any, int, int, int] | None = None

    async def _init_agent_loop_workers(self) -> None:
        if self.batched is None:
            await super()._init_agent_loop_workers()

    def begin_phase(self, config: Any, seed: int, train_max_tokens: int, eval_max_tokens: int) -> None:
        """Use `config` (VeRL's complete configuration) and `seed` for rollouts from now on. Caps are in
        tokens."""
        self._phase = (config, seed, train_max_tokens, eval_max_tokens)
        if self.batched is not None:
            self.batched.begin_phase(*self._phase)
        ray.get([worker.begin_phase.remote(*self._phase) for worker in self.agent_loop_workers])

    def generate_sequences(self, prompts: Any) -> None:
        """Start answering and scoring a batch of prompts without waiting. Results go into the queue."""
        if self.batched is not None:
            rows = rows_of(prompts)
            reason = self.batched.refusal(rows)
            if reason is None:
                self.batched.start(rows)
                return
            self._start_workers(reason)
        super().generate_sequences(prompts)

    def _start_workers(self, reason: str) -> None:
        if self.agent_loop_workers or self._start_helpers is None:
            return
        logger.warning("VeRL's agent loops are started, because %s", reason)
        self.llm_client, self.reward_loop_worker_handles = self._start_helpers()
        asyncio.run(super()._init_agent_loop_workers())
        if self._phase is not None:
            ray.get([worker.begin_phase.remote(*self._phase) for worker in self.agent_loop_workers])

    def look_once_ended(self, replay_buffer: Any) -> None:
        """Make a VeRL replay buffer poll as soon as a batch in flight has ended, not at fixed intervals."""
        assert self.batched is not None
        batched, next_poll = self.batched, replay_buffer._wait_for_next_poll
        idle_s, replay_buffer.poll_interval = replay_buffer.poll_interval, 0

        def _wait_for_next_poll(*args: Any) -> Any:
            batched.wait(idle_s)
            return next_poll(*args)

        replay_buffer._wait_for_next_poll = _wait_for_next_poll
