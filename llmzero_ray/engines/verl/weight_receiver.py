"""Weight receiver for vLLM's worker processes; vLLM loads it by name. It has its own module, because those
processes import nothing else of VeRL's trainer. On the CPU it also patches LoRA operations to be faster, or
linear layers to accept new weights."""

from __future__ import annotations

import os

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from llmzero_ray.engines.verl import patches
from llmzero_ray.engines.verl.environment import NEW_WEIGHTS_ENV
from llmzero_ray.engines.verl.internals import weight_socket

if os.environ.get("VERL_PLATFORM") == "cpu":
    patches.multiply_by_single_lora_slot()
    if os.environ.get(NEW_WEIGHTS_ENV):
        patches.keep_linear_weights()
patches.collect_garbage_as_usual()  # the process has imported what it needs


class WeightReceiver(vLLMColocateWorkerExtension):
    """VeRL's extension of a vLLM worker, with this engine's socket."""

    def _get_zmq_handle(self) -> str:
        return weight_socket(super()._get_zmq_handle())
