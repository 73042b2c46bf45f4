"""The command line itself: its help, words it does not know, and what an import of it costs."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import llmzero_ray
from llmzero_ray.cli.catalogue import subcommands
from llmzero_ray.cli.main import COMPLETE, _command, main
from llmzero_ray.cli.subcommand import Subcommand
from llmzero_ray.errors import CapacityError
from llmzero_ray.launch import actors
from llmzero_ray.storage.metric_files import write_parquet


def test_help_lists_every_command_with_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in subcommands())
    assert "end a search's processes for a while, give hardware back" in shown


SIGNALLED_TWICE = """
import os, signal
from rich.console import Console
from llmzero_ray.cli.interrupts import Terminated, leave_in_time, raise_on_termination

raise_on_termination(Console())
try:
    os.kill(os.getpid(), signal.SIGTERM)
except Terminated:
    leave_in_time(lambda: None, 0)
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_second_sigterm_while_a_command_leaves_shows_no_traceback() -> None:
    command = [sys.executable, "-c", SIGNALLED_TWICE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", subcommands())
def test_every_command_shows_its_own_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "-h"]) == 0
    assert f"Usage: llmzero {name} [OPTIONS]" in capsys.readouterr().out


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"llmzero {llmzero_ray.__version__}\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["serach"], "no such command: 'serach'; did you mean 'search'?"),
        (["zzzz"], "no such command: 'zzzz'. `llmzero --help` lists all."),
        (["--fast"], "no such option: --fast"),
        (["search"], "search: CONFIG is missing (search.yaml; or, before a SENTENCE, a folder of data). See"),
        (["search", "s.yaml", "--resme"], "search: no such option: --resme; did you mean --resume"),
        (["search", "s.yaml", "--set"], "--set needs a value"),
        (["search", "s.yaml", "more", "words"], "search: unexpected: words; it takes [OPTIONS] CONFIG"),
        (
            ["search", "s.yaml", "--seconds-per-step", "fast"],
            "--seconds-per-step is 'fast'; must be a number",
        ),
        (["clone", "s", "1", "--steps", "1.5"], "clone: --steps is '1.5'; must be a whole number"),
        (
            ["draft", "a", "b", "--out", "c", "--answer-form", "word"],
            "'word' is not one of 'letter', 'text'",
        ),
        (["score", "--jsonl", "f", "--reward", "mcq", "--task", "t"], "--reward and --task name two rewards"),
        (["serve", "model", "more"], "serve: unexpected 'more'; options of `vllm serve` follow a `--`"),
        (["set", "s"], "no setting is given; write for example budget.runs=24"),
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


@pytest.mark.parametrize("words", [["status", "LONG"], ["search", "LONG"], ["list", "--storage", "LONG"]])
def test_a_path_that_the_system_refuses_is_one_message(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.replace("LONG", "a" * 300) for word in words]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("llmzero: ") and "name too long" in shown and len(shown.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize(
    ("words", "streams", "code", "expected"),
    [
        ("list .", ">&-", 3, "llmzero: standard output is closed. Send it to a file, or to /dev/null.\n"),
        ("list .", ">/dev/full", 3, "cannot be written: No space left"),
        ("init --out -", ">/dev/full", 3, "cannot be written: No space left"),
        ("--version", ">/dev/full", 3, "cannot be written: No space left"),
        ("rm nowhere", "<&-", 2, "there is no search here"),
        ("list nowhere", "2>&-", 2, ""),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_stream_that_cannot_be_used_is_one_message(
    words: str, streams: str, code: int, expected: str, unbuffered: str, tmp_path: Path
) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": unbuffered}
    command = f"{shlex.quote(sys.executable)} -m llmzero_ray.cli {words} {streams}"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == bool(expected)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_characters_that_the_output_cannot_hold_are_replaced(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "a→b").mkdir()
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "llmzero_ray.cli", "list", "a→b"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode(encoding).endswith("a→b\n" if encoding == "utf-8" else "a?b\n")


def test_the_list_of_commands_imports_none_of_them() -> None:
    unwanted = ("pydantic", "rich", "numpy", "ray", "yaml", "llmzero_ray.config")
    code = (
        "import sys; from llmzero_ray.cli.main import main; main(['--help']); "
        f"print([m for m in {unwanted} if m in sys.modules], "
        "sorted(m for m in sys.modules if m.startswith('llmzero_ray.cli.')))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == (
        "[] ['llmzero_ray.cli.catalogue', 'llmzero_ray.cli.grammar', 'llmzero_ray.cli.main', "
        "'llmzero_ray.cli.subcommand']"
    )


HEAVY = (
    *("ray", "torch", "verl", "vllm", "transformers", "anthropic", "optuna", "scipy", "pandas", "matplotlib"),
    *(
        "huggingface_hub",
        "jinja2",
        "hydra",
        "datasets",
        "obstore",
        "llmzero_ray.api",
        "llmzero_ray.launch.actors",
    ),
)
READERS = (*HEAVY, "numpy", "pyarrow", "llmzero_ray.report", "llmzero_ray.agents.llm")


@pytest.mark.parametrize(
    ("words", "unwanted", "most"),
    [
        (["list", "--storage", "{runs}"], READERS, 520),
        (["status", "{runs}/demo"], READERS, 520),
        (["explain", "{runs}/demo"], READERS, 470),
        (["diff", "{runs}/demo:0", "{runs}/demo:3"], HEAVY, 600),
        (["show", "{runs}/demo", "3"], HEAVY, 600),
        (["init", "--out", "{out}/search.yaml"], READERS, 500),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_a_command_that_reads_files_loads_little(
    words: list[str], unwanted: tuple[str, ...], most: int, tmp_path: Path
) -> None:
    """Their first words come within a second even where the machine is slow: half of that is imports."""
    root = Path(__file__).parents[2]
    given = [word.format(runs=root / "tests/blackbox/runs", out=tmp_path) for word in words]
    code = (
        "import sys; from llmzero_ray.cli.main import main; code = main(sys.argv[1:]); "
        f"print(code, len(sys.modules), [m for m in {unwanted} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *given], cwd=root, capture_output=True, text=True, check=True
    )
    code_of, loaded, heavy = done.stdout.splitlines()[-1].split(" ", 2)
    assert (code_of, heavy) == ("0", "[]")
    assert int(loaded) <= most


def test_reading_metrics_does_not_load_pandas(tmp_path: Path) -> None:
    write_parquet(tmp_path / "metrics.parquet", {"step": [1, 2]})
    code = (
        "import sys; from pathlib import Path; from llmzero_ray.storage.metric_files import parquet_rows; "
        "print(parquet_rows(Path(sys.argv[1])), 'pandas' in sys.modules)"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "metrics.parquet")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[{'step': 1}, {'step': 2}] False"


def test_what_follows_two_dashes_is_for_vllm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {}

    def refuse(model: str, name: str, **options: Any) -> None:
        given.update(options, model=model, name=name)
        raise CapacityError("no GPU is free")

    head = SimpleNamespace(disconnecting=contextlib.nullcontext, join_if_there=lambda: True, start_text=str)
    monkeypatch.setattr(actors, "head", head, raising=False)
    monkeypatch.setattr(actors, "model_server", SimpleNamespace(start_server=refuse), raising=False)
    assert main(["serve", "org/model", "--gpus", "2", "--", "--max-model-len", "4096"]) == 4
    assert (given["model"], given["name"], given["gpus"]) == ("org/model", "model", 2)
    assert list(given["extra"]) == ["--max-model-len", "4096"]
    assert "llmzero: no GPU is free" in capsys.readouterr().err


# --- help, several settings, completion


@pytest.mark.parametrize("name", subcommands())
def test_every_help_says_the_purpose_and_ends_with_an_example_that_the_parser_takes(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert " ".join(subcommands()[name].help.split())[1:40] in " ".join(shown.split())
    assert subcommands()[name].examples
    command = _command()
    for example in subcommands()[name].examples:
        assert shown.rstrip().endswith(subcommands()[name].examples[-1])
        assert f"    {example}\n" in shown
        words = shlex.split(example.removeprefix('eval "$(').removesuffix(')"'))
        assert words[:2] == ["llmzero", name]
        parsed = command.get_command(None, name).make_context(name, words[2:])
        assert all("=" in text for text in parsed.params.get("settings") or ())


@pytest.mark.parametrize(
    ("words", "settings", "others"),
    [
        ("search s.yaml --set slots.count=1 seed=2 --resume", ["slots.count=1", "seed=2"], {"resume": True}),
        ("search s.yaml slots.count=1 seed=2", ["slots.count=1", "seed=2"], {"config": "s.yaml"}),
        ("search seed=1 s.yaml", ["seed=1"], {"config": "s.yaml"}),
        ("search s.yaml --set=seed=1 --set seed=2 seed=3", ["seed=1", "seed=2", "seed=3"], {}),
        ("search s.yaml runs=8 lr=1e-4", ["budget.runs=8", "root.overrides.lr=1e-4"], {}),
        ("search s.yaml --reward regex=a", [], {"reward": "regex=a"}),
        ("clone s 1 --set lr=1 --steps 4 n=2", ["lr=1", "n=2"], {"steps": 4, "search": "s", "node": "1"}),
        ("clone s:1 lr=1", ["lr=1"], {"search": ".", "node": "s:1"}),
        ("set s runs=1 count=2", ["budget.runs=1", "slots.count=2"], {"search": "s"}),
        ("set runs=1", ["budget.runs=1"], {"search": "."}),
        ("budget s --set runs=1", ["budget.runs=1"], {"search": "s"}),
        ("hint s lr=3", None, {"search": "s", "text": "lr=3"}),
        ("score --jsonl f --option a=b", None, {"jsonl": "f", "option": ["a=b"]}),
        ("serve m -- --set a=1 b=2", None, {"vllm_options": ["--set", "a=1", "b=2"]}),
        ("compare plan.yaml parallel=2", ["parallel=2"], {}),
        ("init n_steps=5 --model 4b", ["phase.n_steps=5"], {"model": "4b"}),
    ],
)
def test_settings_may_stand_anywhere_with_set_or_without(
    words: str, settings: list[str] | None, others: dict[str, Any]
) -> None:
    name, *rest = words.split()
    params = _command().get_command(None, name).make_context(name, rest).params
    assert params.get("settings") == settings
    assert {key: params[key] for key in others} == others


def test_several_values_after_one_set_are_all_applied(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "local", "--set", "seed=2", "budget.runs=1"]) == 2
    assert "budget.runs is 1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_shell_is_offered_commands_searches_and_options(tmp_path: Path) -> None:
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    (tmp_path / "runs" / "demo" / "search.yaml").touch()

    def offered(line: str) -> list[str]:
        env = {
            **os.environ,
            COMPLETE: "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(line.count(" ")),
        }
        words = [sys.executable, "-m", "llmzero_ray.cli"]
        env["PYTHONPATH"] = str(Path(__file__).parents[2])
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        return done.stdout.split()

    assert offered("llmzero rep") == ["report"]
    assert offered("llmzero status d") == ["demo"]
    assert offered("llmzero status demo --of") == ["--offline"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_a_shell_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert f"{COMPLETE}=complete_{shell}" in capsys.readouterr().out


# --- the first words of a start


def test_a_start_says_what_it_does_before_ray_is_imported(tmp_path: Path) -> None:
    """Importing and starting Ray takes seconds, in which a terminal would stay blank."""
    code = (
        "import sys, contextlib\n"
        "from llmzero_ray.launch import actors\n"
        "from llmzero_ray.cli.main import main\n"
        "import llmzero_ray.cli.serve\n"
        "class Seen:\n"
        "    def write(self, text):\n"
        "        if text.strip(): sys.__stdout__.write(f\"{'ray' in sys.modules} {text}\")\n"
        "    def flush(self): pass\n"
        "    def isatty(self): return False\n"
        "def refuse(): raise SystemExit(0)\n"
        "actors.head.disconnecting = contextlib.nullcontext; actors.head.join_if_there = refuse\n"
        "sys.stdout = Seen(); main(['serve', 'org/model'])\n"
    )
    root = Path(__file__).parents[2]
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("False starting Ray on this machine"), done.stderr


def test_joining_a_named_cluster_is_said_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert actors.head.start_text() == "joining the Ray cluster at 10.0.0.1:6379 ..."


def test_a_start_says_at_once_on_a_terminal_that_it_loads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main(["search", "nowhere.yaml"]) == 2
    assert main(["status", "nowhere"]) == 2
    assert main(["search", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("search: loading ...\nUsage: llmzero search")
    assert out.count("loading") == 1


def test_a_command_of_an_extension_stands_in_its_group_or_in_that_of_its_neighbour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def one(**more: Any) -> Subcommand:
        return Subcommand("package.module", "function", "do it", ("llmzero do",), **more)

    table = {"a": one(group="look"), "b": one(after="veto"), "c": one()}
    monkeypatch.setattr("llmzero_ray.cli.catalogue.points", lambda _: {"mine": None})
    monkeypatch.setattr("llmzero_ray.cli.catalogue.extension", lambda *_: table)
    subcommands.cache_clear()
    try:
        assert [subcommands()[name].group for name in table] == ["look", "steer", "research"]
    finally:
        subcommands.cache_clear()
