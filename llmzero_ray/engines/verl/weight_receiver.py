"""Where vLLM's worker processes fetch new weights; loaded by vLLM itself, by name.

A module of its own, because those processes import nothing else of VeRL's trainer.
"""

from __future__ import annotations

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from llmzero_ray.engines.verl.internals import weight_socket


class WeightReceiver(vLLMColocateWorkerExtension):
    """VeRL's extension of a vLLM worker, at this engine's socket."""

    def _get_zmq_handle(self) -> str:
        return weight_socket(super()._get_zmq_handle())
