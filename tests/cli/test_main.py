"""The command line itself: its help, words it does not know, and what an import of it costs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import llmzero_ray
from llmzero_ray import _actors
from llmzero_ray.cli.main import SUBCOMMANDS, main
from llmzero_ray.errors import CapacityError


def test_help_lists_every_command_with_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in SUBCOMMANDS)
    assert "end a search's processes, give hardware back; resume goes on" in shown


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_command_shows_its_own_help(name: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, flag]) == 0
    assert f"Usage: llmzero {name} [OPTIONS]" in capsys.readouterr().out


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"llmzero {llmzero_ray.__version__}\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "Missing COMMAND, one of prepare, search, doctor,"),
        (["serach"], "no such command: 'serach'; did you mean 'search'?"),
        (["zzzz"], "no such command: 'zzzz'. Commands: prepare, search,"),
        (["--fast"], "No such option: --fast"),
        (["search"], "search: Missing argument 'CONFIG'. See `llmzero search --help`."),
        (["search", "s.yaml", "--resme"], "search: No such option: --resme"),
        (["search", "s.yaml", "--set"], "Option '--set' requires an argument"),
        (["search", "s.yaml", "more", "words"], "search: Got unexpected extra argument(s) (words)"),
        (["search", "s.yaml", "--seconds-per-step", "fast"], "(given: 'fast')"),
        (["clone", "s", "1", "--steps", "1.5"], "clone: Invalid value for '--steps'"),
        (
            ["draft", "a", "b", "--out", "c", "--answer-form", "word"],
            "'word' is not one of 'letter', 'text'",
        ),
        (["score", "--jsonl", "f", "--reward", "mcq", "--task", "t"], "--reward and --task name two rewards"),
        (["serve", "model", "more"], "serve: unexpected 'more'; options of `vllm serve` follow a `--`"),
        (["set", "s"], "set: Missing argument 'KEY=VALUE'"),
    ],
)
def test_words_that_cannot_be_meant_are_one_message_and_exit_code_2(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("llmzero: ")
    assert expected in err
    assert len(err.splitlines()) == 1


def test_the_list_of_commands_imports_none_of_them() -> None:
    unwanted = ("pydantic", "rich", "numpy", "ray", "yaml", "llmzero_ray.config")
    code = (
        "import sys; from llmzero_ray.cli.main import main; main(['--help']); "
        f"print([m for m in {unwanted} if m in sys.modules], "
        "[m for m in sys.modules if m.startswith('llmzero_ray.cli.')])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] ['llmzero_ray.cli.main']"


def test_what_follows_two_dashes_is_for_vllm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {}

    def refuse(model: str, name: str, **options: Any) -> None:
        given.update(options, model=model, name=name)
        raise CapacityError("no GPU is free")

    head = SimpleNamespace(disconnecting=contextlib.nullcontext, join_if_there=lambda: True)
    monkeypatch.setattr(_actors, "head", head, raising=False)
    monkeypatch.setattr(_actors, "model_server", SimpleNamespace(start_server=refuse), raising=False)
    assert main(["serve", "org/model", "--gpus", "2", "--", "--max-model-len", "4096"]) == 4
    assert (given["model"], given["name"], given["gpus"]) == ("org/model", "model", 2)
    assert list(given["extra"]) == ["--max-model-len", "4096"]
    assert "llmzero: no GPU is free" in capsys.readouterr().err
