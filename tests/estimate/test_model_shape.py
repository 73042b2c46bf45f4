"""Sizes that follow from a model's `config.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.errors import ConfigError
from llmzero_ray.estimate.model_shape import ModelShape, model_shape, read_shape

from .builders import SIZES, shape

TRUE_COUNTS = {"0.6B": 596_049_920, "1.7B": 1_720_574_976, "4B": 4_022_468_096, "8B": 8_190_735_360}


def config_of(shape: ModelShape, **changes: Any) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied,
        **changes,
    }


@pytest.mark.parametrize("size", SIZES)
def test_parameters_of_the_known_models_are_the_published_ones(size: str) -> None:
    assert shape(size).parameters == TRUE_COUNTS[size]


@pytest.mark.parametrize("size", SIZES)
def test_transformers_builds_as_many_parameters(size: str) -> None:
    from accelerate import init_empty_weights
    from transformers import Qwen3Config, Qwen3ForCausalLM

    with init_empty_weights():
        model = Qwen3ForCausalLM(Qwen3Config(**config_of(shape(size))))
    model.tie_weights()
    assert sum(p.numel() for p in model.parameters()) == shape(size).parameters


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_other_dense_families_are_counted_as_transformers_builds_them(family: str) -> None:
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    config = config_of(shape("0.6B"), model_type=family)
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    model.tie_weights()
    assert model_shape(config, name="m").parameters == sum(p.numel() for p in model.parameters())


def test_peft_adds_as_many_parameters_as_the_adapter_is_said_to_have() -> None:
    from accelerate import init_empty_weights
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3Config, Qwen3ForCausalLM

    with init_empty_weights():
        model = Qwen3ForCausalLM(Qwen3Config(**config_of(shape("4B"))))
        lora = LoraConfig(r=64, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM")
        adapted = get_peft_model(model, lora)
    added = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert shape("4B").lora_parameters(64) == added == 132_120_576


def test_cache_of_a_token_is_a_key_and_a_value_of_every_head_and_layer() -> None:
    # 36 layers x 8 heads x 128 x (key, value) x 2 bytes.
    assert shape("8B").kv_bytes_per_token == 36 * 8 * 128 * 2 * 2 == 144 * 1024
    assert shape("0.6B").kv_bytes_per_token == 112 * 1024


def test_a_readable_config_goes_before_the_name(tmp_path: Path) -> None:
    place = tmp_path / "Qwen3-4B"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config_of(shape("8B"))))
    assert read_shape(str(place)).parameters == TRUE_COUNTS["8B"]
    assert read_shape("/nowhere/Qwen3-4B") == shape("4B")


def test_head_sizes_that_are_left_out_follow_from_the_hidden_size() -> None:
    config = config_of(shape("0.6B"), model_type="llama")
    del config["head_dim"], config["num_key_value_heads"]
    found = model_shape(config, name="m")
    assert (found.kv_heads, found.head_dim) == (16, 64)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba'"),
        ({"model_type": None}, "model_type None"),
        ({"num_experts": 128}, "a mixture of experts"),
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"head_dim": True}, "head_dim"),
    ],
)
def test_what_cannot_be_estimated_is_said(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=f"no memory estimate for m: .*{expected}"):
        model_shape(config_of(shape("4B"), **changes), name="m")


@pytest.mark.parametrize(("text", "expected"), [("{", "is not JSON"), ("[1]", "no mapping")])
def test_a_broken_config_is_said(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=expected):
        read_shape(str(tmp_path))


def test_without_a_config_or_a_known_name_there_is_no_estimate(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read.*Qwen3-8B"):
        read_shape(str(tmp_path / "other"))
