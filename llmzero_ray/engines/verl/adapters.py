"""Transfers LoRA tensors between the live module and PEFT folders, identically on every rank."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import torch

from llmzero_ray.engines.verl.seeds import derive_seed
from llmzero_ray.storage.manifests import write_manifest
from llmzero_ray.utils.failpoints import reach
from llmzero_ray.utils.files import replace_directory


def reshard(module: torch.nn.Module) -> None:
    """Reshard the parameters, because FSDP2 may still hold gathered ones after a forward pass."""
    for part in module.modules():
        if hasattr(part, "reshard"):
            part.reshard()


def write(parameter: torch.nn.Parameter, full: torch.Tensor) -> None:
    """Copy a full tensor into a parameter, sharded (DTensor) or plain."""
    placed = _placed(full.to(dtype=parameter.dtype), parameter)
    local_part(parameter).copy_(local_part(placed))


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a sharded tensor (DTensor). A plain tensor is returned unchanged."""
    from torch.distributed.tensor import DTensor

    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _placed(full: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Full tensor, sharded like the parameter. Every rank holds it, so no communication is needed."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(parameter, DTensor):
        return full
    return distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)


def fresh_lora(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Tensor with PEFT's default initialisation (A Kaiming-uniform, B zero). It depends only on `seed`, name
    and shape, so it is identical in warm and cold starts and for any number of ranks."""
    if "lora_A" not in name:
        return torch.zeros(shape)
    generator = torch.Generator().manual_seed(derive_seed(seed, name))
    bound = 1.0 / math.sqrt(shape[1])  # kaiming_uniform with a = sqrt(5), fan_in = shape[1]
    return (torch.rand(shape, generator=generator) * 2 - 1) * bound


def gathered(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Complete CPU copy of the live adapter, by PEFT name. All ranks take part.

    Base weights are not moved: if they are offloaded, the GPU that vLLM also uses has no memory for them.
    """
    reshard(module)
    return {
        peft_name(name): whole(p).to("cpu", copy=True)
        for name, p in module.named_parameters()
        if "lora_" in name
    }


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Complete tensor from all ranks' shards; an offloaded shard is moved to the device first. All ranks take
    part."""
    from torch.distributed.tensor import DTensor

    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        return tensor.to(tensor.device_mesh.device_type).full_tensor()
    return tensor


def peft_name(live_name: str) -> str:
    """Name in a PEFT file of a tensor of the live module."""
    return live_name.replace(".default.", ".")


def live_name(peft_name: str) -> str:
    """Name in the live module of a tensor in a PEFT file."""
    head, _, tail = peft_name.rpartition(".")
    return f"{head}.default.{tail}"


def digest_of(tensors: dict[str, torch.Tensor]) -> str:
    """Digest of 16 hex digits over all names and values (as float32)."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().float().numpy().tobytes())
    return digest.hexdigest()[:16]


def read_adapter(path: str) -> dict[str, torch.Tensor]:
    """Tensors of a PEFT folder, by PEFT name."""
    from safetensors.torch import load_file

    return dict(load_file(os.path.join(path, "adapter_model.safetensors")))


def save_peft(path: Path, tensors: dict[str, torch.Tensor], peft_config: Any, facts: dict[str, Any]) -> None:
    """Write a PEFT folder with its manifest. Atomic: the folder is complete or missing."""
    from safetensors.torch import save_file

    config = {
        k: sorted(v) if isinstance(v, set) else getattr(v, "value", v) for k, v in dict(peft_config).items()
    }
    config["inference_mode"] = True
    with replace_directory(path) as folder:
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, default=str))
        reach("checkpoint.saved")
        write_manifest(folder, facts)  # a folder without a manifest is not a checkpoint
