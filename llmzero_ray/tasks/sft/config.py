"""The configuration of a warm start: `warm_start.yaml`, every field with default, bound, unit and meaning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from llmzero_ray.config import presets
from llmzero_ray.config.yaml_text import LocalPath, StrictModel, expanded, load_file, setting

_MAX_SEED = 2**31 - 1
REMOVED = {
    "checkpoints_kept": "the newest full checkpoint is kept until the end. Remove the key.",
    "dtype": "weights are bfloat16 on GPUs and float32 on CPUs. Remove the key.",
    "final_lr_share": "the learning rate falls to 5% of its peak. Remove the key.",
    "gold_response": "the form of right answers belongs to the task. Write it as reward.gold_response in the "
    "task's manifest.json.",
    "lora.merge": "the result is always a whole model, with the adapter merged. Remove the key.",
    "lora.targets": "an adapter is on all linear layers. Remove the key.",
    "max_failures": "a warm start continues three times after a lost worker. Remove the key.",
    "max_grad_norm": "gradients are clipped to the norm 1. Remove the key.",
    "n_val": "the held-out loss is that of the first 512 validation rows. Remove the key.",
    "rationale": "only the right answer is learnt. Remove the key.",
    "start_timeout_s": "a warm start waits until the cluster has room for it. Remove the key.",
    "weight_decay": "it is .01. Remove the key.",
}
"""Setting of version 0.1 that no longer exists -> what holds instead, and what to do."""


class LoraSettings(StrictModel):
    """The adapter on all linear layers that is trained instead of the weights."""

    rank: int = setting(16, "LoRA rank", ge=1, le=1024)
    """Rank of the adapter."""
    alpha: int = setting(32, "LoRA alpha", ge=1, le=4096)
    """Scale of the adapter, alpha / rank."""


class SftConfig(StrictModel):
    """warm_start.yaml."""

    task: LocalPath = Field(min_length=1)
    """Directory of the prepared task; its training prompts and gold answers are learnt."""
    model: LocalPath | None = None
    """Directory of the base model; null: the tiny model that `prepare` made for the task."""
    output: LocalPath = Field(min_length=1)
    """Directory for checkpoints and result; every machine must see it under this name."""

    lora: LoraSettings | None = None
    """Train an adapter; null: train all weights."""
    n_steps: int | None = setting(None, "training steps", ge=1)
    """Length of the training; null: n_epochs decides."""
    n_epochs: int | None = setting(None, "epochs", ge=1)
    """Passes over the training items, the last batch filled up from the next pass; null: n_steps decides."""
    batch_size: int = setting(64, "items", ge=1)
    """Items per training step, all workers together."""
    micro_batch_size: int = setting(8, "items", ge=1)
    """Items that pass the model together on one worker; memory grows with it, results do not depend on it."""
    lr: float = setting(1e-5, "learning rate", gt=0, le=1)
    """Peak learning rate of AdamW."""
    warmup_steps: int = setting(10, "training steps", ge=0)
    """Steps until the peak, to which the learning rate rises linearly; it falls linearly after it."""
    max_length: int = setting(2048, "tokens", ge=2)
    """Longest prompt and response together; longer items are left out and counted."""
    seed: int = Field(0, ge=0, le=_MAX_SEED)
    """Seed of the order of the items, and of the adapter's initial weights."""

    workers: int = setting(1, "workers", ge=1)
    """Training processes; each takes cpus_per_worker CPUs, and one GPU with use_gpu."""
    use_gpu: bool = False
    """Train on GPUs in bfloat16 with NCCL. If false, on CPUs in float32 with gloo."""
    cpus_per_worker: int = setting(1, "CPUs", ge=1)
    """CPUs, and on CPUs also threads, of one worker."""
    zero_stage: Literal[0, 1, 2, 3] = 2
    """State that DeepSpeed shards over the workers: 0 nothing, 1 optimizer states, 2 also gradients, 3 also
    weights."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them: less memory, about a third more time."""
    checkpoint_every: int = setting(100, "training steps", ge=1)
    """Steps between two full checkpoints, from which an interrupted warm start continues."""

    @model_validator(mode="after")
    def _consistent(self) -> SftConfig:
        if (self.n_steps is None) == (self.n_epochs is None):
            given = "neither" if self.n_steps is None else f"{self.n_steps} and {self.n_epochs}"
            raise ValueError(f"n_steps and n_epochs: one of the two must be given; given: {given}.")
        once = self.workers * self.micro_batch_size
        if self.batch_size % once:
            raise ValueError(
                f"batch_size is {self.batch_size} (items); must be a multiple of workers x micro_batch_size, "
                f"which is {self.workers} x {self.micro_batch_size} = {once}."
            )
        return self

    def steps(self, n_train: int) -> int:
        """Training steps on `n_train` items."""
        return self.n_steps or -(-(self.n_epochs or 1) * n_train // self.batch_size)


def load_sft(path: str | Path, settings: Mapping[str, Any] | None = None) -> SftConfig:
    """The warm start in a YAML file, with dotted keys replaced; relative paths count from the current
    directory, as in search.yaml, and are made absolute.

    Raises:
        ConfigError: no such file, broken YAML, or everything that is wrong in it.
    """
    config = load_file(SftConfig, presets.path_of(str(path)), settings, removed=REMOVED)
    paths = {name: getattr(config, name) for name in ("task", "model", "output")}
    absolute = {name: str(expanded(given).absolute()) for name, given in paths.items() if given}
    return config.model_copy(update=absolute)
