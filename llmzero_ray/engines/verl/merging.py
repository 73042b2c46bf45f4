"""Weights for a server that is given no adapter: base model and adapter as one, tensor by tensor.

VeRL's own way (`lora.merge`) merges in place: it keeps a second copy of the base model on every rank's host,
writes the merged weights over the base, and puts the copy back. Here each merged tensor is a new one, so that
the base is only read. Not here: when weights are sent (workers.py), whether the server then serves the policy
(canary.py).
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
    """How much of the adapter is lost where the sum is rounded to the server's precision."""

    lost: float = 0.0
    """Sum of squares of what the rounded weights lack of the adapter's change."""
    change: float = 0.0
    """Sum of squares of the adapter's change of the weights."""

    @property
    def share(self) -> float:
        """0: nothing is lost; 1: as much as the adapter changes."""
        return math.sqrt(self.lost / self.change) if self.change else 0.0

    def add(self, base: torch.Tensor, change: torch.Tensor, rounded: torch.Tensor) -> None:
        """Count one tensor; what rounding the base alone changes is the actor's, too."""
        moved = rounded.float() - base.to(rounded.dtype).float()
        self.lost += float((moved - change).square().sum())
        self.change += float(change.square().sum())


def merged_weights(
    module: torch.nn.Module, dtype: torch.dtype, rounding: Rounding
) -> Iterator[tuple[str, torch.Tensor]]:
    """The whole model's tensors by their names in the model's own files, with the adapter merged in; all
    ranks take part, to the end. Adds to `rounding` while it is read.

    Raises:
        ValueError: the adapter is not one that is a product of two matrices beside a linear layer.
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
