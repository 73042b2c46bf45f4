"""Size of a LoRA adapter, computed from the `config.json` of its base model; no model is loaded.

Not here: how many adapters a search saves (estimate.py), and adapters themselves (engines/).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_BYTES = 4
"""Of one parameter in a saved adapter."""


def adapter_size(model: Mapping[str, Any], *, rank: int, targets: str) -> int | None:
    """Bytes of one adapter of a model with this `config.json`, at 4 bytes a parameter.

    `targets` is `all-linear`, or a pattern over the names of modules, as PEFT has it. None: the layers are
    not those of a dense decoder with separate projections, so that nothing is known.
    """
    model = model.get("text_config") or model
    try:
        hidden, between, layers = (
            int(model[key]) for key in ("hidden_size", "intermediate_size", "num_hidden_layers")
        )
        heads = int(model["num_attention_heads"])
    except (KeyError, TypeError, ValueError):
        return None
    if any(key in model for key in ("num_experts", "num_local_experts", "n_routed_experts")):
        return None
    head = int(model.get("head_dim") or hidden // heads)
    keys = int(model.get("num_key_value_heads") or heads) * head
    shapes = {
        "self_attn.q_proj": hidden + heads * head,
        "self_attn.k_proj": hidden + keys,
        "self_attn.v_proj": hidden + keys,
        "self_attn.o_proj": heads * head + hidden,
        "mlp.gate_proj": hidden + between,
        "mlp.up_proj": hidden + between,
        "mlp.down_proj": between + hidden,
    }
    chosen = sum(
        size
        for layer in range(layers)
        for name, size in shapes.items()
        if targets == "all-linear" or re.fullmatch(targets, f"model.layers.{layer}.{name}")
    )
    return rank * chosen * _BYTES if chosen else None
