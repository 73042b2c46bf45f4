"""Merged weights for a server without an adapter: base model plus adapter, tensor by tensor.

VeRL's own way (`lora.merge`) merges in place: it keeps a second copy of the base model on every rank's host,
writes the merged weights over the base, and puts the copy back. Here each merged tensor is new, so the base
is only read.
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
    """Loss of the adapter when the sum is rounded to the server's precision."""

    lost: float = 0.0
    """Sum of squares of the part of the adapter's change that the rounded weights lack."""
    change: float = 0.0
    """Sum of squares of the adapter's change of the weights."""

    @property
    def share(self) -> float:
        """Lost share of the change: 0 for nothing, 1 for as much as the adapter changes."""
        return math.sqrt(self.lost / self.change) if self.change else 0.0

    def add(self, base: torch.Tensor, change: torch.Tensor, rounded: torch.Tensor) -> None:
        """Count one tensor. The rounding of the base alone is not counted, because the actor has it too."""
        moved = rounded.float() - base.to(rounded.dtype).float()
        self.lost += float((moved - change).square().sum())
        self.change += float(change.square().sum())


def merged_weights(
    module: torch.nn.Module, dtype: torch.dtype, rounding: Rounding
) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of the model by their names in its files, with the adapter merged in. All ranks take part,
    to the end. Updates `rounding` while it is consumed.

    Raises:
        ValueError: the adapter is not a product of two matrices added to a linear layer.
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
