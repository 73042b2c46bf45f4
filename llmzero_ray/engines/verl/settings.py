"""Settings that are constant during a search: model, data, hardware, serving limits. Plain values, picklable,
no VeRL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from llmzero_ray.prepared.shipped_rewards import is_shipped


@dataclass(frozen=True, kw_only=True)
class VerlSettings:
    """Everything that the VeRL engine fixes at its cold start."""

    platform: Literal["cpu", "gpu"]
    model_path: str
    lora_rank: int
    lora_alpha: int
    target_modules: str | tuple[str, ...] = "all-linear"
    train_parquet: str
    val_parquet: str
    reward_source: str
    """Location of the reward function: `pkg://module`, which is imported, or a path, whose code runs only in
    the sandbox."""
    reward_name: str
    reward_module: str | None = None
    """Module inside `reward_source`, if that path is the top directory of a package. If None, the path is a
    single file."""
    reward_sha256: str | None = None
    """SHA-256 of the reward file. Other content is never run."""
    reward_keys: tuple[str, ...] | None = None
    """Keys of extra_info that a reward file can see. If None, all."""
    reward_unsandboxed: bool = False
    """Whether a reward file may run on a machine without a sandbox."""
    max_prompt_length: int
    """Maximum tokens of a prompt. Rows with longer prompts are dropped on GPUs and raise an error on the CPU;
    they are never truncated."""
    max_response_length: int
    """Upper bound in tokens of every phase's own cap. vLLM is started for this length."""
    eval_max_response_length: int
    """Maximum tokens of a response in validations and evaluations, constant during the search."""
    n_gpus_per_node: int = 1
    nnodes: int = 1
    tensor_model_parallel_size: int = 1
    max_num_seqs: int = 256
    gpu_memory_utilization: float = 0.5
    kv_cache_bytes: int = 64 * 2**20
    """Size of vLLM's KV cache on the CPU. On GPUs vLLM sizes it by `gpu_memory_utilization`."""
    micro_batch_limit: int = 16
    """Maximum micro batch that `auto` chooses, in sequences per GPU."""
    agent_workers: int = 1
    reward_workers: int = 1
    rollout_calls: Literal["batched", "per_request"] = "batched"
    """How rollouts are requested. `batched`: a few calls answer and score a batch without an agent loop."""
    serve_merged: bool = False
    """Whether vLLM gets merged weights (base plus adapter)."""
    canary_every_push: bool = False
    """Whether vLLM is compared with the actor on a fixed text after every step. If False, only at a phase's
    start and before evaluations."""
    vllm_model_runner: Literal["auto", "v1", "v2"] = "auto"
    """Model runner of vLLM, on GPUs only. `auto` leaves the choice to vLLM."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Raw VeRL keys (a leading + adds one), fixed for the search. They override everything except the
    phase."""
    search: str
    slot: int
    placement_groups: tuple[str, ...]
    """Ray placement group ids (hex), one per node."""
    start_id: str = ""
    """Id that is unique for every cold start."""
    socket_dir: str = ""
    """Private directory of one cold start, for sockets and rendezvous files. Empty if the slot is not
    entirely on its driver's machine."""
    queue_dir: str = ""
    """`socket_dir` if the sockets of VeRL's TransferQueue are also in it. If empty, it uses TCP ports with
    keys."""
    log_path: str
    """Log file for the output of VeRL, vLLM and their Ray workers."""
    start_timeout_s: float = 900.0

    @property
    def n_gpus(self) -> int:
        """GPUs of the whole slot."""
        return self.n_gpus_per_node * self.nnodes

    @property
    def max_model_len(self) -> int:
        """Maximum tokens of prompt plus response."""
        return self.max_prompt_length + max(self.max_response_length, self.eval_max_response_length)

    @property
    def confines_reward(self) -> bool:
        """Whether the reward runs in the sandbox, so that VeRL's processes never load its code."""
        return not self.reward_source.startswith("pkg://")

    @property
    def scores_in_driver(self) -> bool:
        """Whether rewards are computed in the process that embeds VeRL: only shipped ones, called like VeRL's
        naive reward manager does."""
        changed = any(key.lstrip("+~").startswith("reward.") for key in self.overrides)
        shipped = is_shipped(self.reward_source.removeprefix("pkg://"))
        return self.rollout_calls == "batched" and shipped and not changed

    @property
    def holds_queue(self) -> bool:
        """Whether VeRL's queue starts in the process that embeds VeRL (if one rank trains). It moves out once
        agent loops start."""
        return self.rollout_calls == "batched" and self.n_gpus == 1

    @property
    def slot_namespace(self) -> str:
        """Name of the slot on the cluster, constant over its starts."""
        return f"llmzero-{self.search}-slot{self.slot}"

    @property
    def namespace(self) -> str:
        """Unique namespace for names, sockets and queues of one start."""
        return f"{self.slot_namespace}-{self.start_id}"
