"""Set-ups of phases on A100s of 40 GB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmzero_ray.config import SearchConfig, parse_config
from llmzero_ray.estimate.fit import Assessment, assess
from llmzero_ray.estimate.model_shape import KNOWN, ModelShape
from llmzero_ray.estimate.setup import Setup, setup_of
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.utils.text import GIB

ROOT = Path(__file__).parents[2]
SIZES = ("0.6B", "1.7B", "4B", "8B")
A100_40 = 39.4
FIXED_MICRO = ("micro_batch_size", "log_prob_micro_batch_size", "ref_micro_batch_size")
# The LLMZero paper, Table 12.
TABLE_12 = {
    "lr": 5e-5,
    "kl": 0.001,
    "temperature": 1.0,
    "clip_high": 0.28,
    "batch": 128,
    "n": 8,
    "resp": 6144,
    "grad_clip": 1.0,
    "weight_decay": 0.01,
    "adv_norm": False,
}


def shape(size: str) -> ModelShape:
    return KNOWN[f"qwen3-{size.lower()}"]


def setup(**changes: Any) -> Setup:
    given: dict[str, Any] = {"gpu_bytes": A100_40 * GIB, "n_gpus": 8, "lora_rank": 64}
    return Setup(**(given | changes))


def practitioner(*, micro_batch: int, max_prompt_length: int = 1024, **engine: Any) -> SearchConfig:
    """The paper's recipe on one node of 8 A100s; where the paper says nothing, VeRL's defaults."""
    return parse_config(
        {
            "name": "practitioner",
            "model": {"lora_rank": 64, "lora_alpha": 64},
            "root": {"overrides": {**TABLE_12, **dict.fromkeys(FIXED_MICRO, micro_batch)}},
            "eval": {"max_response_length": 8192},
            "engine": {
                "platform": "gpu",
                "max_prompt_length": max_prompt_length,
                "max_response_length": 8192,
                "gpu_memory_utilization": 0.5,
                "tensor_model_parallel_size": 2,
                "max_num_seqs": 256,
                **engine,
            },
            "slots": {"gpus_per_node": 8},
        }
    )


def preset(size: str) -> str:
    """Of the shipped preset, below the root of the checkout."""
    return f"jobs/configs/qwen3_{size.lower()}.yaml"


def judged(config: SearchConfig, size: str, gpu_gib: float = A100_40) -> Assessment:
    root = root_hyperparameters(config, 5000)
    return assess(shape(size), setup_of(config, root, gpu_gib=gpu_gib))
