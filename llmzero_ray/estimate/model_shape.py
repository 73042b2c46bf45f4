"""Shape of a dense decoder from its `config.json`, and the sizes of parameters, LoRA adapter and KV cache.

No weights are loaded. Not here: memory during training (stages.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from llmzero_ray.errors import ConfigError
from llmzero_ray.utils.files import small_text

_FAMILIES = {"qwen3": (True, False), "qwen2": (False, True), "llama": (False, False)}
"""`model_type` -> (whether queries and keys are normalised, whether the query, key and value projections have
biases)."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a dense decoder with separate projections and a SwiGLU MLP."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    """Whether the output layer is the embedding."""
    qk_norm: bool = True
    qkv_bias: bool = False

    @property
    def queries(self) -> int:
        """Total width of all query heads."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Total width of all key heads, which is also that of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Parameters of one decoder layer."""
        attention = self.hidden * (2 * self.queries + 2 * self.keys)
        biases = (self.queries + 2 * self.keys) * self.qkv_bias
        norms = 2 * self.hidden + 2 * self.head_dim * self.qk_norm
        return attention + biases + 3 * self.hidden * self.intermediate + norms

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding. An untied output layer has as many."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        ends = self.embedding_parameters * (1 if self.tied else 2)
        return ends + self.layers * self.layer_parameters + self.hidden

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes per token of vLLM's KV cache at 2 bytes per value, over all layers, without tensor
        parallelism."""
        return 2 * self.layers * self.keys * 2

    def lora_parameters(self, rank: int, targets: str = "all-linear") -> int:
        """Parameters of an adapter on the projections in `targets`: `all-linear`, or a pattern of names."""
        return rank * _adapted_widths(
            self.hidden, self.intermediate, self.layers, self.queries, self.keys, targets
        )


def adapter_bytes(model: Mapping[str, Any], *, rank: int, targets: str) -> int | None:
    """Bytes of one saved LoRA adapter of a model with this `config.json`, at 4 bytes per parameter.

    `targets` is `all-linear` or a pattern of module names, as in PEFT. None unless the model is a dense
    decoder with separate projections.
    """
    model = model.get("text_config") or model
    try:
        hidden, intermediate, layers, heads = (
            int(model[key])
            for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        )
    except (KeyError, TypeError, ValueError):
        return None
    if any(key in model for key in _EXPERTS):
        return None
    head = int(model.get("head_dim") or hidden // heads)
    keys = int(model.get("num_key_value_heads") or heads) * head
    return 4 * rank * _adapted_widths(hidden, intermediate, layers, heads * head, keys, targets) or None


def _adapted_widths(
    hidden: int, intermediate: int, layers: int, queries: int, keys: int, targets: str
) -> int:
    """Parameters of an adapter of rank 1: the sum of inputs and outputs of all projections in `targets`."""
    widths = {
        "self_attn.q_proj": hidden + queries,
        "self_attn.k_proj": hidden + keys,
        "self_attn.v_proj": hidden + keys,
        "self_attn.o_proj": queries + hidden,
        "mlp.gate_proj": hidden + intermediate,
        "mlp.up_proj": hidden + intermediate,
        "mlp.down_proj": intermediate + hidden,
    }
    return sum(
        width
        for layer in range(layers)
        for name, width in widths.items()
        if targets == "all-linear" or re.fullmatch(targets, f"model.layers.{layer}.{name}")
    )


def model_shape(config: Mapping[str, Any], *, name: str) -> ModelShape:
    """Model shape according to a `config.json`.

    Raises:
        ConfigError: the architecture is not supported, has experts, or sizes are missing.
    """
    family = config.get("model_type")
    if family not in _FAMILIES or any(key in config for key in _EXPERTS):
        what = "a mixture of experts" if any(key in config for key in _EXPERTS) else f"model_type {family!r}"
        raise ConfigError(
            f"no memory estimate for {name}: it is {what}; known are dense decoders of model_type "
            f"{', '.join(_FAMILIES)}. Train a few steps with `llmzero doctor` and read "
            "perf/max_memory_reserved_gb instead."
        )
    sizes = _sizes(config, name)
    qk_norm, qkv_bias = _FAMILIES[family]
    heads, hidden = sizes["num_attention_heads"], sizes["hidden_size"]
    return ModelShape(
        name=name,
        hidden=hidden,
        intermediate=sizes["intermediate_size"],
        layers=sizes["num_hidden_layers"],
        heads=heads,
        kv_heads=sizes.get("num_key_value_heads", heads),
        head_dim=sizes.get("head_dim", hidden // heads),
        vocab=sizes["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
        qk_norm=qk_norm,
        qkv_bias=qkv_bias or bool(config.get("attention_bias")),
    )


_REQUIRED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_OPTIONAL = ("num_key_value_heads", "head_dim")


def _sizes(config: Mapping[str, Any], name: str) -> dict[str, int]:
    found = {key: config[key] for key in (*_REQUIRED, *_OPTIONAL) if config.get(key) is not None}
    wrong = [key for key in _REQUIRED if key not in found]
    wrong += [k for k, v in found.items() if isinstance(v, bool) or not isinstance(v, int) or v < 1]
    if wrong:
        raise ConfigError(
            f"no memory estimate for {name}: its config.json has no usable {', '.join(wrong)} (whole numbers "
            ">= 1). Copy the model again."
        )
    return found


def read_shape(path: str) -> ModelShape:
    """Shape of the model in the directory `path`. If that has no readable `config.json`, the last part of the
    path is looked up in `KNOWN`.

    Raises:
        ConfigError: there is no readable `config.json` and the name is not known; or as `model_shape`.
    """
    name, file = Path(path).name.partition("@")[0], Path(path) / "config.json"
    try:
        config = json.loads(small_text(file))
    except OSError as error:
        if name.lower() in KNOWN:
            return KNOWN[name.lower()]
        raise ConfigError(
            f"no memory estimate: {file} cannot be read ({error.strerror}), and the name is none of "
            f"{', '.join(shape.name for shape in KNOWN.values())}. Run this where model.path is mounted."
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"no memory estimate: {file} is not JSON ({error}). Copy the model again."
        ) from error
    if not isinstance(config, Mapping):
        raise ConfigError(f"no memory estimate: {file} holds no mapping of settings. Copy the model again.")
    return model_shape(config, name=name)


def _qwen3(name: str, hidden: int, intermediate: int, layers: int, heads: int, *, tied: bool) -> ModelShape:
    return ModelShape(
        name=name,
        hidden=hidden,
        intermediate=intermediate,
        layers=layers,
        heads=heads,
        kv_heads=8,
        head_dim=128,
        vocab=151_936,
        tied=tied,
    )


# Published sizes of these models. Tests compare the parameter counts with transformers' own modules.
KNOWN: Mapping[str, ModelShape] = MappingProxyType(
    {
        shape.name.lower(): shape
        for shape in (
            _qwen3("Qwen3-0.6B", 1024, 3072, 28, 16, tied=True),
            _qwen3("Qwen3-1.7B", 2048, 6144, 28, 16, tied=True),
            _qwen3("Qwen3-4B", 2560, 9728, 36, 32, tied=True),
            _qwen3("Qwen3-8B", 4096, 12_288, 36, 32, tied=False),
            ModelShape(
                name="SmolLM2-135M-Instruct",
                hidden=576,
                intermediate=1536,
                layers=30,
                heads=9,
                kv_heads=3,
                head_dim=64,
                vocab=49_152,
                tied=True,
                qk_norm=False,
            ),
        )
    }
)
"""Lower-case name -> shape, for models that can be estimated without their `config.json`."""
