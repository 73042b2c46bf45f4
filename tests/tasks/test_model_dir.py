"""A base model is refused before VeRL and vLLM spend a minute on finding out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks import check_model_dir
from tests.tasks.builders import write_model


def refusal(directory: Path) -> str:
    with pytest.raises(TaskError) as caught:
        check_model_dir(directory)
    return str(caught.value)


def test_configuration_weights_tokenizer_and_chat_template_are_enough(tmp_path: Path) -> None:
    check_model_dir(write_model(tmp_path / "model"))


def test_a_name_of_the_hub_is_answered_with_the_command_to_download_it() -> None:
    assert "model directory Qwen/Qwen3-8B does not exist" in refusal(Path("Qwen/Qwen3-8B"))
    assert "hf download NAME --local-dir DIRECTORY" in refusal(Path("Qwen/Qwen3-8B"))


@pytest.mark.parametrize(
    ("without", "message"),
    [
        (
            "tokenizer.json",
            "has no tokenizer (it holds config.json, model.safetensors, tokenizer_config.json)",
        ),
        (
            "config.json",
            "has no config.json (it holds model.safetensors, tokenizer.json, tokenizer_config.json)",
        ),
        ("model.safetensors", "has no weights (it holds config.json, tokenizer.json, tokenizer_config.json)"),
        ("tokenizer_config.json", "has no chat template, and VeRL renders every prompt with one"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, without: str, message: str) -> None:
    assert message in refusal(write_model(tmp_path / "model", without))


def test_an_empty_directory_is_called_empty(tmp_path: Path) -> None:
    assert "has no tokenizer (it is empty)" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", "config.json cannot be read as JSON"),
        ("config.json", "[" * 100_000, "config.json cannot be read as JSON"),
        ("config.json", "[]", "config.json must hold a JSON object; it holds list"),
        ("config.json", "{}", "config.json names neither model_type nor architectures"),
        ("tokenizer_config.json", "{}", "has no chat template"),
        ("model.safetensors", "", "has no weights"),
        ("model.safetensors.index.json", "{}", "model.safetensors.index.json names no weight shards"),
    ],
)
def test_a_file_without_the_needed_content_is_refused(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (write_model(tmp_path / "model") / name).write_text(content)
    assert message in refusal(tmp_path / "model")


def test_every_shard_of_the_index_must_be_there(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", "model.safetensors")
    weight_map = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (model / "model-1.safetensors").write_text("weights")
    assert "misses 1 of 2 weight shards, e.g. model-2.safetensors" in refusal(model)
    (model / "model-2.safetensors").write_text("weights")
    check_model_dir(model)


@pytest.mark.parametrize("names", [("tokenizer.model",), ("vocab.json", "merges.txt")])
def test_older_tokenizer_files_are_tokenizers_too(tmp_path: Path, names: tuple[str, ...]) -> None:
    model = write_model(tmp_path / "model", "tokenizer.json")
    for name in names[1:]:
        (model / name).write_text("x")
        assert "has no tokenizer" in refusal(model)
    (model / names[0]).write_text("x")
    check_model_dir(model)


def test_a_chat_template_in_a_file_of_its_own_counts(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", "tokenizer_config.json")
    (model / "chat_template.jinja").write_text("{{ messages }}")
    check_model_dir(model)
