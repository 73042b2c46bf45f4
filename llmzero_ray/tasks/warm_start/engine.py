"""DeepSpeed around a model: process group, optimizer, ZeRO.

Nothing is compiled: AdamW is torch's own, and DeepSpeed's shared-memory reduction for CPUs, which it would
build with a C++ compiler at first use, is left out. Not here: the training (training.py), what is kept of it
(checkpoints.py, models.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

from llmzero_ray.tasks.warm_start.plan import Plan

_BUCKET = 500_000_000
"""DeepSpeed's own number of elements that workers exchange at a time."""
_FAR = 2**31 - 1
"""A step that is not reached: DeepSpeed prints nothing before it."""


def accelerator(*, use_gpu: bool) -> dict[str, str]:
    """Environment that DeepSpeed must find when it is imported: what to run on, instead of its guess."""
    return {"DS_ACCELERATOR": "cuda" if use_gpu else "cpu"}


def make_engine(
    model: Any, plan: Plan, *, zero_stage: int, dtype: str, use_gpu: bool, n_workers: int = 1
) -> Any:
    """A DeepSpeed engine that trains the model's trainable weights; the process group must exist."""
    import torch

    deepspeed = _deepspeed(use_gpu=use_gpu)
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=plan.lr, weight_decay=plan.weight_decay)
    bucket = min(_BUCKET, sum(weight.numel() for weight in trainable))
    settings: dict[str, Any] = {
        "train_batch_size": plan.batch_size,
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.batch_size // plan.micro_batch_size // n_workers,
        "gradient_clipping": plan.max_grad_norm,
        "zero_optimization": {
            "stage": zero_stage,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
        },
        "bf16": {"enabled": dtype == "bfloat16"},
        "steps_per_print": _FAR,
    }
    if dtype == "bfloat16":
        # The losses of micro-batches are added up: in bfloat16 the small ones would vanish.
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    return deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]


def gathered(module: Any, *, trainable_only: bool, keep: bool) -> dict[str, Any]:
    """Name -> weight on the CPU, also where the weights are divided among the workers; all of them must call
    this, those that `keep` get the weights."""
    import deepspeed  # type: ignore[import-untyped]

    found = {}
    for name, weight in module.named_parameters():
        if trainable_only and not weight.requires_grad:
            continue
        with deepspeed.zero.GatheredParameters([weight], enabled=hasattr(weight, "ds_id")):
            if keep:
                found[name] = weight.detach().cpu().clone()
    if keep and not trainable_only:
        kept = module.state_dict().keys()
        found |= {name: held.detach().cpu() for name, held in module.named_buffers() if name in kept}
    return found


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A process group of this process alone, on the CPU, for the length of the block."""
    import torch.distributed as dist

    # DeepSpeed wants to know its place from the environment, as a launcher would tell it.
    told = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", **accelerator(use_gpu=False)}
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        deepspeed = _deepspeed(use_gpu=False)
        yield
        deepspeed.comm.destroy_process_group()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _deepspeed(*, use_gpu: bool) -> Any:
    """The library, on the process group that exists."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed
        from deepspeed.utils import logger  # type: ignore[import-untyped]
    logger.setLevel(logging.ERROR)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(
        dist_backend="nccl" if use_gpu else "gloo", auto_mpi_discovery=False, verbose=False
    )
    return deepspeed
