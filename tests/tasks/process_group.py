"""A process group of one process, as Ray Train gives it to a single worker."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A process group of this process alone, on the CPU, for the length of the block."""
    import torch.distributed as dist

    given = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "DS_ACCELERATOR": "cpu"}
    changed = (*given, "ACCELERATE_USE_DEEPSPEED")
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(given)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        import deepspeed
        from accelerate.state import AcceleratorState
        from transformers.integrations.deepspeed import unset_hf_deepspeed_config

        if deepspeed.comm.is_initialized():
            deepspeed.comm.destroy_process_group()
        if dist.is_initialized():
            dist.destroy_process_group()
        AcceleratorState._reset_state(reset_partial_state=True)
        unset_hf_deepspeed_config()
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
