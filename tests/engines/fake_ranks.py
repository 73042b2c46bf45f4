"""One rank of a group of many, without the others: torch's fake backend, whose collectives return at once.

What a rank does with its own shards is real; what it would receive from others is not.
"""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch


@contextmanager
def fake_rank(rank: int, world_size: int) -> Iterator[None]:
    """torch's default process group is of `world_size` ranks, this process is `rank`, and VeRL's platform is
    the CPU."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from verl.plugin.platform import get_platform, set_platform

    from llmzero_ray.engines.verl.cpu.platform import PlatformCPU

    before = get_platform()
    set_platform(PlatformCPU())
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()
        set_platform(before)


def on_ranks(function: Callable[..., Any], ranks: Sequence[int], *given: Any) -> list[Any]:
    """`function(rank, *given)` for each rank, each in a process of its own: torch keeps by mesh what differs
    by rank. Function, arguments and results must be picklable."""
    with tempfile.NamedTemporaryFile() as answers:
        done = subprocess.run(
            [sys.executable, "-m", "tests.engines.fake_ranks", answers.name],
            input=pickle.dumps((function, list(ranks), given)),
            cwd=Path(__file__).parents[2],
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
        found: list[Any] = pickle.load(answers)
    return found


def main(answers: str) -> None:
    """What `on_ranks` starts: the ranks are forked once everything is imported."""
    function, ranks, given = pickle.load(sys.stdin.buffer)
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        found = pool.starmap(function, [(rank, *given) for rank in ranks], chunksize=1)
    Path(answers).write_bytes(pickle.dumps(found))


def peft_qwen3(sizes: Mapping[str, Any], lora_rank: int) -> Any:
    """A Qwen3 of these sizes with an adapter on all linear layers, as VeRL asks PEFT for it."""
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import Qwen3Config, Qwen3ForCausalLM

    lora = LoraConfig(
        task_type=TaskType.CAUSAL_LM, r=lora_rank, lora_alpha=lora_rank, target_modules="all-linear"
    )
    return get_peft_model(Qwen3ForCausalLM(Qwen3Config(**sizes)), lora)


def sharded(module: Any, world_size: int, fsdp_size: int) -> Any:
    """The module under FSDP2 on VeRL's mesh, by VeRL's own wrapping and in the precision of the presets."""
    from torch.distributed.fsdp import MixedPrecisionPolicy
    from verl.utils.fsdp_utils import apply_fsdp2
    from verl.workers.engine.fsdp.utils import create_device_mesh

    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=True
    )
    given = {
        "mesh": create_device_mesh(world_size, fsdp_size),
        "mp_policy": policy,
        "offload_policy": None,
        "reshard_after_forward": True,
    }
    apply_fsdp2(module, given, {})
    return module


def worker_of(module: Any) -> Any:
    """The project's FSDP worker on this rank, whose engine is a sharded policy with an optimizer."""
    from llmzero_ray.engines.verl.workers import PhaseWorker

    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    engine = SimpleNamespace(module=module, optimizer=optimizer, lr_scheduler=scheduler)
    engine.load_checkpoint = lambda path, **given: engine.checkpoint_manager.load_checkpoint(path, **given)
    worker = object.__new__(PhaseWorker)
    worker.actor = SimpleNamespace(engine=engine)
    return worker


def shards(worker: Any) -> dict[str, Any]:
    """This rank's part of each LoRA tensor, as an array."""
    named = worker.actor.engine.module.named_parameters()
    return {name: p.to_local().detach().numpy().copy() for name, p in named if "lora_" in name}


if __name__ == "__main__":
    import llmzero_ray.engines.verl.workers  # noqa: F401  before the ranks are forked

    main(sys.argv[1])
