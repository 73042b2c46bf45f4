"""What stays the same for a whole search: model, data, hardware, serving limits. Plain values, picklable, no
VeRL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

SHIPPED_REWARDS = "llmzero_ray.tasks.rewards"
"""Package of the rewards that ship: each bounds its own work and raises nothing."""


OPTIMIZER_FILE = "optimizer.safetensors"
"""In a checkpoint's PEFT folder: the state of the adapter's optimizer, `<PEFT name>:<name of the state>`."""


@dataclass(frozen=True, kw_only=True)
class VerlSettings:
    """Everything the VeRL engine fixes at its cold start."""

    platform: Literal["cpu", "gpu"]
    model_path: str
    lora_rank: int
    lora_alpha: int
    target_modules: str | tuple[str, ...] = "all-linear"
    train_parquet: str
    val_parquet: str
    reward_source: str
    """Where the reward function is: `pkg://module`, imported where it is used, or a path, whose code runs in
    the sandbox alone."""
    reward_name: str
    reward_module: str | None = None
    """Of a path: the module in it, of which it is the top; None: it is a file of its own."""
    reward_sha256: str | None = None
    """Of a file: no other content of it is run."""
    reward_keys: tuple[str, ...] | None = None
    """Of a file: the keys of extra_info that it is shown; None: all."""
    reward_unsandboxed: bool = False
    """Whether a file may run where there is no sandbox."""
    max_prompt_length: int
    """Tokens; rows with longer prompts are left out on GPUs and an error on the CPU, never truncated."""
    max_response_length: int
    """Upper bound of every phase's own cap, tokens: vLLM starts with room for it."""
    eval_max_response_length: int
    """Cap of validations and evaluations, the same for the whole search, tokens."""
    n_gpus_per_node: int = 1
    nnodes: int = 1
    tensor_model_parallel_size: int = 1
    max_num_seqs: int = 256
    gpu_memory_utilization: float = 0.5
    kv_cache_bytes: int = 64 * 2**20
    """CPU only; on GPUs vLLM sizes its cache by `gpu_memory_utilization`."""
    micro_batch_limit: int = 16
    """Largest micro batch that an `auto` one becomes, sequences per GPU."""
    agent_workers: int = 1
    reward_workers: int = 1
    rollout_calls: Literal["batched", "per_request"] = "batched"
    """`batched`: a batch is answered and scored in a few calls where it needs no agent loop."""
    serve_merged: bool = False
    """Whether vLLM is given base weights with the adapter added in."""
    carry_optimizer: bool = False
    """Whether checkpoints hold the optimizer's state, and phases that resume from one take it over."""
    canary_every_push: bool = False
    """Whether vLLM is compared with the actor on a fixed text after every step, and not at a phase's start
    and before evaluations alone."""
    vllm_model_runner: Literal["auto", "v1", "v2"] = "auto"
    """Which of its two model runners vLLM uses; `auto`: its own choice. On GPUs alone."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Raw VeRL keys (a leading + adds one), fixed for the search; they win over everything but the phase."""
    search: str
    slot: int
    placement_groups: tuple[str, ...]
    """Hex ids, one per node."""
    start_id: str = ""
    """Differs with every cold start."""
    socket_dir: str = ""
    """Private directory of one cold start, for sockets and files by which its processes meet; empty: the slot
    is not all on the machine of its driver."""
    queue_dir: str = ""
    """The same directory where VeRL's TransferQueue listens in it too; empty: on TCP ports with keys."""
    log_path: str
    """File that receives what VeRL, vLLM and their Ray workers print."""
    start_timeout_s: float = 900.0
    stop_deadline_s: float = 300.0

    @property
    def n_gpus(self) -> int:
        """GPUs of the whole slot."""
        return self.n_gpus_per_node * self.nnodes

    @property
    def max_model_len(self) -> int:
        """Prompt plus response, tokens."""
        return self.max_prompt_length + max(self.max_response_length, self.eval_max_response_length)

    @property
    def confines_reward(self) -> bool:
        """Whether VeRL's processes never load the reward's code."""
        return not self.reward_source.startswith("pkg://")

    @property
    def scores_in_driver(self) -> bool:
        """Whether rewards are computed in the process that embeds VeRL: only those that ship with this
        project, called as VeRL's naive reward manager calls them."""
        changed = any(key.lstrip("+~").startswith("reward.") for key in self.overrides)
        shipped = self.reward_source.startswith(f"pkg://{SHIPPED_REWARDS}.")
        return self.rollout_calls == "batched" and shipped and not changed

    @property
    def holds_queue(self) -> bool:
        """Whether VeRL's queue is in the process that embeds it, where one rank trains, until agent loops are
        started."""
        return self.rollout_calls == "batched" and self.n_gpus == 1

    @property
    def slot_namespace(self) -> str:
        """The slot's own name on the cluster, the same for all its starts."""
        return f"llmzero-{self.search}-slot{self.slot}"

    @property
    def namespace(self) -> str:
        """Unique: names, sockets and queues of one start live in it."""
        return f"{self.slot_namespace}-{self.start_id}"
