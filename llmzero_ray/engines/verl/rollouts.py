"""VeRL's rollout side, extended: the agent-loop worker, the vLLM server, and where vLLM fetches weights.

Plain classes that travel by reference and are wrapped by Ray late. They give every request its own seed and
length, keep a record of what vLLM was really asked for, and say whether its engine lives.

Not here: the trainer that drives them (trainer.py), what the values should be (config_check.py).
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import ray
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from llmzero_ray.engines.verl.seeds import derive_seed

logger = logging.getLogger(__name__)

ROW_KEY = "llmzero_row"
"""Rides in the reward's extra information from the agent loop to the validation: the row's position."""


_AgentLoopWorker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class


class PhaseAgentLoopWorker(_AgentLoopWorker):
    """VeRL's agent-loop worker; every request carries its own seed and `max_tokens`."""

    def begin_phase(self, config: Any, seed: int, train_max_tokens: int, eval_max_tokens: int) -> None:
        """Use `config` (whole) from now on; caps in tokens."""
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
            info[ROW_KEY] = int(kwargs.get("index", -1))


class PhaseAgentLoopManager(AgentLoopManagerTQ):
    """VeRL's manager with our workers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(PhaseAgentLoopWorker)


class RecordingServer(vLLMHttpServer):
    """VeRL's vLLM server that counts what the engine was really asked for: the SamplingParams objects
    themselves."""

    def _get_worker_extension_cls(self) -> str:
        return "llmzero_ray.engines.verl.weight_receiver.WeightReceiver"

    async def launch_server(self, *args: Any, **kwargs: Any) -> Any:
        """VeRL's, with every later call of `generate` recorded."""
        result = await super().launch_server(*args, **kwargs)
        self.reset_record()
        engine = getattr(self, "engine", None)
        if engine is not None:
            generate = engine.generate

            def recorded(*a: Any, **kw: Any) -> Any:
                if (
                    "prompt" in kw and "sampling_params" in kw
                ):  # VeRL's calls; the HTTP endpoints pass them by position
                    self._record(kw["prompt"], kw["sampling_params"])
                return generate(*a, **kw)

            engine.generate = recorded
        return result

    async def check_engine(self) -> str | None:
        """Why vLLM's engine can answer no more; None: it can."""
        engine = getattr(self, "engine", None)
        if engine is None:
            return None
        try:
            await engine.check_health()
        except Exception as error:
            logger.warning("vLLM's engine is not healthy", exc_info=True)
            return f"{type(error).__name__}: {error}".splitlines()[0]
        return None

    def _record(self, prompt: Any, params: Any) -> None:
        self._params[(params.temperature, params.top_p, params.top_k, params.max_tokens)] += 1
        self._prompts[tuple(prompt["prompt_token_ids"])] += 1
        self._seeds.add(params.seed)

    def reset_record(self) -> None:
        """Forget all requests seen so far."""
        self._params: Counter[tuple[Any, ...]] = Counter()
        self._prompts: Counter[tuple[int, ...]] = Counter()
        self._seeds: set[int | None] = set()

    def read_record(self) -> dict[str, Any]:
        """Requests since the last reset: sampling parameters with counts, (prompt digest, count) pairs,
        distinct seeds."""
        return {
            "params": [(*key, count) for key, count in self._params.items()],
            "prompts": [(derive_seed(*prompt), count) for prompt, count in self._prompts.items()],
            "seeds": len(self._seeds - {None}),
            "requests": sum(self._prompts.values()),
        }


class RecordingReplica(vLLMReplica):
    """VeRL's replica with the recording server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(RecordingServer)
