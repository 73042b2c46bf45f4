"""Tokenizer, configuration and weights must agree on the vocabulary; padded and unused tokens do no harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared import check_model_dir
from tests.tasks.builders import write_model

TEMPLATE = "{% for m in messages %}{{ m.content }}<end>{% endfor %}"
TIED = {"model.embed_tokens.weight": [10, 4]}
UNTIED = {**TIED, "lm_head.weight": [10, 4]}


def model(
    directory: Path,
    weights: dict[str, list[int]] = TIED,
    added: dict[str, int] | None = None,
    n_tokens: int = 9,
    template: str = TEMPLATE,
    settings: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """A directory with weights of these shapes, `n_tokens` usual tokens, end token 9, and `added` ones."""
    write_model(directory)
    shards = {
        name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in weights.items()
    }
    header = json.dumps(shards).encode()
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    tokens = {"<end>": 9, **(added or {})}
    special = [{"id": id_, "content": text, "special": True} for text, id_ in tokens.items()]
    usual = {f"t{id_}": id_ if id_ < 9 else id_ + 1 for id_ in range(n_tokens)}
    files = {
        "tokenizer.json": {"added_tokens": special, "model": {"vocab": usual}},
        "tokenizer_config.json": {"chat_template": template, "eos_token": "<end>", **(settings or {})},
        "config.json": {"model_type": "llama", "vocab_size": 10, "eos_token_id": 9, **config},
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize(
    "made",
    [
        pytest.param({}, id="whole"),
        pytest.param({"weights": {"model.embed_tokens.weight": [32, 4]}, "vocab_size": 32}, id="padded"),
        pytest.param({"weights": UNTIED, "tie_word_embeddings": False}, id="not tied"),
        pytest.param({"tie_word_embeddings": True}, id="tied"),
        pytest.param({"weights": {"wte": [3, 4]}, "tie_word_embeddings": False}, id="other names"),
        pytest.param({"added": {"<image>": 10}}, id="a token of images, which no chat holds"),
        pytest.param({"settings": {"pad_token": None}}, id="no padding token"),
        pytest.param({"settings": {"pad_token": "<end>"}, "pad_token_id": 9}, id="padded with the end token"),
        pytest.param({"pad_token_id": -1}, id="no padding token, as in old configurations"),
        pytest.param({"vocab_size": None, "text_config": {"vocab_size": 10}}, id="size in a part"),
        pytest.param({"vocab_size": None}, id="size not named"),
    ],
)
def test_a_sound_vocabulary_is_fine(tmp_path: Path, made: dict[str, Any]) -> None:
    assert check_model_dir(model(tmp_path / "model", **made)) == ()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"vocab_size": 12}, "has 10 rows, and config.json names a vocabulary of 12 tokens"),
        ({"tie_word_embeddings": False}, "hold no lm_head.weight, and tie_word_embeddings is false"),
        ({"n_tokens": 11}, "lies the token 11 of tokenizer.json"),
        ({"added": {"<a>": 10}, "template": "<a>" + TEMPLATE}, "lies <a> (10), which chats hold"),
        ({"added": {"<end>": 10}, "eos_token_id": 10}, "lies <end> (10), which chats hold"),
        ({"pad_token_id": 10}, "lies pad_token_id 10"),
    ],
)
def test_what_training_would_fail_on_is_refused(tmp_path: Path, made: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError) as caught:
        check_model_dir(model(tmp_path / "model", **made))
    assert message in str(caught.value)


@pytest.mark.parametrize("added", [{"<pad>": 10}, {}])
def test_a_padding_token_outside_the_vocabulary_is_noted(tmp_path: Path, added: dict[str, int]) -> None:
    made = model(tmp_path / "model", added=added, settings={"pad_token": "<pad>"})
    (note,) = check_model_dir(made)
    assert "the padding token <pad> (10) lies outside the vocabulary of 10 tokens" in note


@pytest.mark.parametrize(
    "template", [" ", "hello", "{% for m in messages %}{{ m.content[0].text }}{% endfor %}"]
)
def test_a_template_without_the_question_is_refused(tmp_path: Path, template: str) -> None:
    with pytest.raises(TaskError, match="leaves the question out"):
        check_model_dir(model(tmp_path / "model", template=template))
