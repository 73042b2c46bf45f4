"""A base model is refused before VeRL and vLLM spend a minute on finding out."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared import check_model_dir
from tests.tasks.builders import WEIGHTS, write_model


def refusal(directory: Path) -> str:
    with pytest.raises(TaskError) as caught:
        check_model_dir(directory)
    return str(caught.value)


def test_configuration_weights_tokenizer_and_chat_template_are_enough(tmp_path: Path) -> None:
    check_model_dir(write_model(tmp_path / "model"))


def test_a_name_of_the_hub_is_answered_with_the_command_to_download_it() -> None:
    said = refusal(Path("Qwen/Qwen3-8B"))
    assert f"Qwen/Qwen3-8B does not exist (looked for {Path.cwd() / 'Qwen/Qwen3-8B'})" in said
    assert "hf download OWNER/NAME --local-dir DIRECTORY" in said and "hf://OWNER/NAME" in said


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
    (model / "model-1.safetensors").write_text(WEIGHTS)
    assert "misses 1 of 2 weight shards, e.g. model-2.safetensors" in refusal(model)
    (model / "model-2.safetensors").write_text(WEIGHTS)
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


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "config.json",
        "generation_config.json",
        "chat_template.jinja",
        "model.safetensors.index.json",
        "special_tokens_map.json",
    ],
)
def test_a_git_lfs_pointer_is_named_with_what_fetches_the_file(tmp_path: Path, name: str) -> None:
    model = write_model(tmp_path / "model")
    (model / name).write_text(POINTER)
    assert f"{name} is a git-lfs pointer of {len(POINTER)} bytes" in refusal(model)
    assert f"run `git lfs pull` in {model}" in refusal(model)


@pytest.mark.parametrize(
    ("names", "pointer"),
    [
        (("tokenizer.model",), "tokenizer.model"),
        (("vocab.json", "merges.txt"), "merges.txt"),
        (("model-1.safetensors", "model-2.safetensors"), "model-2.safetensors"),
        (("pytorch_model.bin",), "pytorch_model.bin"),
    ],
)
def test_pointers_are_found_in_older_tokenizers_shards_and_torch_files(
    tmp_path: Path, names: tuple[str, ...], pointer: str
) -> None:
    weights = names[0].startswith(("model-", "pytorch"))
    model = write_model(tmp_path / "model", "model.safetensors" if weights else "tokenizer.json")
    for name in names:
        (model / name).write_text(POINTER if name == pointer else WEIGHTS)
    if names[0].startswith("model-"):
        weight_map = {str(n): name for n, name in enumerate(names)}
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert f"{pointer} is a git-lfs pointer" in refusal(model)


def test_a_pointer_beside_the_files_that_are_used_does_not_matter(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    for name in ("pytorch_model.bin", "tokenizer.model", "README.md", "training_args.bin"):
        (model / name).write_text(POINTER)
    assert check_model_dir(model) == ()


@pytest.mark.parametrize(
    ("kept", "message"),
    [(40, "is cut off"), (5, "is cut off"), (-1, "must have 86 bytes; it has 85"), (-16, "it has 70 bytes")],
)
def test_weights_that_are_cut_off_are_found_by_their_header(tmp_path: Path, kept: int, message: str) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    whole = len(header).to_bytes(8, "little") + header + bytes(16)
    model = write_model(tmp_path / "model")
    (model / "model.safetensors").write_bytes(whole)
    assert check_model_dir(model) == ()
    (model / "model.safetensors").write_bytes(whole[:kept])
    assert message in refusal(model)


@pytest.mark.parametrize("content", [b"<html>Access denied</html>", b"\xff" * 100, b"weights"])
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, content: bytes) -> None:
    model = write_model(tmp_path / "model")
    (model / "model.safetensors").write_bytes(content)
    assert "model.safetensors is cut off, or no safetensors file" in refusal(model)


def test_torch_files_are_whole_archives_or_of_the_older_format(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", "model.safetensors")
    with zipfile.ZipFile(model / "pytorch_model.bin", "w") as archive:
        archive.writestr("data.pkl", "x" * 1000)
    assert check_model_dir(model) == ()
    content = (model / "pytorch_model.bin").read_bytes()
    (model / "pytorch_model.bin").write_bytes(content[:500])
    assert "pytorch_model.bin is cut off, or no file that torch.save has written" in refusal(model)
    (model / "pytorch_model.bin").write_bytes(b"\x80\x02" + content)
    assert check_model_dir(model) == ()


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "tokenizer_config.json"])
def test_an_empty_file_is_called_empty(tmp_path: Path, name: str) -> None:
    model = write_model(tmp_path / "model")
    (model / name).write_text("")
    assert f"{name} is empty; copy or download the model again" in refusal(model)
