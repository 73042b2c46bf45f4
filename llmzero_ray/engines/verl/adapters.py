"""LoRA tensors between the live module and PEFT folders, on every rank alike.

Not here: when they are exchanged (workers.py), what else a full checkpoint holds
(workers.py, full_checkpoint.py).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import torch

from llmzero_ray.engines.verl.seeds import derive_seed
from llmzero_ray.failpoints import reach
from llmzero_ray.files import replace_directory
from llmzero_ray.manifests import write_manifest


def reshard(module: torch.nn.Module) -> None:
    """Back to sharded parameters: after a forward pass FSDP2 may still hold gathered ones."""
    for part in module.modules():
        if hasattr(part, "reshard"):
            part.reshard()


def write(parameter: torch.nn.Parameter, full: torch.Tensor) -> None:
    """Copy a full tensor into a parameter, sharded (DTensor) or plain."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    full = full.to(dtype=parameter.dtype)
    if isinstance(parameter, DTensor):
        # Every rank holds the same full tensor: shard locally, no communication.
        shard = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.to_local().copy_(shard.to_local())
    else:
        parameter.copy_(full)


def fresh_lora(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """PEFT's default start (A Kaiming-uniform, B zero), drawn per tensor from `seed`: the same warm, cold, on
    any rank count."""
    if "lora_A" not in name:
        return torch.zeros(shape)
    generator = torch.Generator().manual_seed(derive_seed(seed, name))
    bound = 1.0 / math.sqrt(shape[1])  # kaiming_uniform with a = sqrt(5), fan_in = shape[1]
    return (torch.rand(shape, generator=generator) * 2 - 1) * bound


def gathered(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A copy of the live adapter, whole and on the CPU, by PEFT name; all ranks take part.

    Base weights stay where they are: where they are offloaded, a GPU that vLLM uses has no room for them.
    """
    from torch.distributed.tensor import DTensor

    reshard(module)
    found = {}
    for name, parameter in module.named_parameters():
        if "lora_" not in name:
            continue
        tensor = parameter.detach()
        if isinstance(tensor, DTensor):
            tensor = tensor.to(tensor.device_mesh.device_type).full_tensor()
        found[peft_name(name)] = tensor.to("cpu", copy=True)
    return found


def peft_name(live_name: str) -> str:
    """A PEFT file's name of a tensor of the live module."""
    return live_name.replace(".default.", ".")


def live_name(peft_name: str) -> str:
    """The live module's name of a tensor in a PEFT file."""
    head, _, tail = peft_name.rpartition(".")
    return f"{head}.default.{tail}"


def digest_of(tensors: dict[str, torch.Tensor]) -> str:
    """16 hex digits that differ when any value or name does; values count as float32."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().float().numpy().tobytes())
    return digest.hexdigest()[:16]


def read_adapter(path: str) -> dict[str, torch.Tensor]:
    """The tensors of a PEFT folder, by PEFT name."""
    from safetensors.torch import load_file

    return dict(load_file(os.path.join(path, "adapter_model.safetensors")))


def save_peft(path: Path, tensors: dict[str, torch.Tensor], peft_config: Any, facts: dict[str, Any]) -> None:
    """Write a PEFT folder with its manifest; complete, or not there at all."""
    from safetensors.torch import save_file

    config = {
        k: sorted(v) if isinstance(v, set) else getattr(v, "value", v) for k, v in dict(peft_config).items()
    }
    config["inference_mode"] = True
    with replace_directory(path) as folder:
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, default=str))
        reach("checkpoint.saved")
        write_manifest(folder, facts)  # a folder without it is no checkpoint
