"""Merged weights for a server without an adapter: base model plus adapter, tensor by tensor.

VeRL's own `lora.merge` merges in place: it keeps a second copy of the base model in every rank's host memory,
overwrites the base with the merged weights, and restores the copy. Here each merged tensor is new, so the
base is only read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from verl.utils.fsdp_utils import normalize_peft_param_name

from llmzero_ray.engines.verl.adapters import reshard, whole

_BASE = ".base_layer.weight"


@dataclass
class Rounding:
    """How much of the adapter is lost when merged weights are rounded to the server's precision."""

    lost: float = 0.0
    """Sum of squares of the difference between the adapter's change and that of the rounded weights."""
    change: float = 0.0
    """Sum of squares of the adapter's change to the weights."""

    @property
    def share(self) -> float:
        """Lost share of the change: 0 if nothing is lost, 1 if the loss is as large as the change."""
        return math.sqrt(self.lost / self.change) if self.change else 0.0

    def add(self, base: torch.Tensor, change: torch.Tensor, rounded: torch.Tensor) -> None:
        """Count one tensor. The rounding of the base alone is not counted, because the actor has it too."""
        moved = rounded.float() - base.to(rounded.dtype).float()
        self.lost += float((moved - change).square().sum())
        self.change += float(change.square().sum())


def merged_weights(
    module: torch.nn.Module, dtype: torch.dtype, rounding: Rounding
) -> Iterator[tuple[str, torch.Tensor]]:
    """(name in the model's files, tensor with the adapter merged in) of all tensors. All ranks must consume
    the iterator to its end. It updates `rounding` on the way.

    Raises:
        ValueError: the adapter is more than a product of two matrices added to a linear layer.
    """
    reshard(module)
    with torch.no_grad():
        yield from _merged(module, dtype, rounding)


def _merged(
    module: torch.nn.Module, dtype: torch.dtype, rounding: Rounding
) -> Iterator[tuple[str, torch.Tensor]]:
    tensors: dict[str, Any] = module.state_dict()
    names = {name for name, _ in module.named_parameters()}
    tied = {name for name, _ in module.named_parameters(remove_duplicate=False)} - names
    for name, tensor in tensors.items():
        if "lora_" in name or name in tied:
            continue
        if name not in names:  # a buffer
            found = tensor.detach().clone()
        elif not name.endswith(_BASE):
            found = whole(tensor).to(dtype, copy=True)
        else:
            layer = name.removesuffix(_BASE)
            scaling = _scaling(module.get_submodule(layer), layer)
            base = whole(tensor).float()
            a, b = (whole(tensors[f"{layer}.lora_{part}.default.weight"]).float() for part in "AB")
            change = (b @ a) * scaling
            found = (base + change).to(dtype)
            rounding.add(base, change, found)
        yield from normalize_peft_param_name({name: found}).items()


def _scaling(layer: Any, name: str) -> float:
    if not isinstance(layer.base_layer, torch.nn.Linear) or getattr(layer, "use_dora", {}).get("default"):
        raise ValueError(
            f"{name}: its adapter cannot be merged (a {type(layer.base_layer).__name__}, or DoRA); only "
            "plain LoRA of linear layers can. Set engine.serve_merged to false"
        )
    return float(layer.scaling["default"])
