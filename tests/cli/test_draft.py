"""`llmzero draft`: its output, questions at a terminal, exit codes, and that `prepare` accepts the draft."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import anthropic  # noqa: F401 - its first import takes seconds, which no deadline below should pay
import pytest
import yaml

from llmzero_ray.cli.main import main
from llmzero_ray.prepared.sandbox import find_isolation
from llmzero_ray.prepared.task import load_task, task_facts
from tests.agents.drafting.folders import questions, write_rows
from tests.agents.drafting.scripts import model
from tests.agents.llm.conftest import messages_server
from tests.agents.llm.messages_server import KEY, MessagesServer

__all__ = ["messages_server"]
UNCLEAR = [{"left": f"a {i}", "middle": f"b {i}", "right": f"c {i}"} for i in range(40)]


class Terminal(io.StringIO):
    """Standard input where a person sits."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())


def draft(tmp_path: Path, *options: str, rows: Any = None) -> int:
    write_rows(tmp_path / "in" / "rows.jsonl", questions() if rows is None else rows)
    return main(["draft", str(tmp_path / "in"), "Name the city", "--out", str(tmp_path / "out"), *options])


def test_a_draft_tells_what_comes_next_and_that_is_what_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert draft(tmp_path) == 0
    message = capsys.readouterr().out
    task = tmp_path / "out" / "task.yaml"
    assert "the answer is taken from answer" in message and message.endswith(f"llmzero prepare {task}\n")
    assert not (tmp_path / "data").exists()
    assert main(["prepare", str(task), "--set", f"dir={tmp_path / 'task'}"]) == 0
    assert "32 train, 4 val, 4 test" in capsys.readouterr().out
    described = (tmp_path / "out" / "description.md").read_text()
    assert task_facts(load_task(str(tmp_path / "task")))["description"] == described


def test_the_commands_that_follow_may_be_copied_whatever_the_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert draft(tmp_path, "--out", str(tmp_path / "my out")) == 0
    task = tmp_path / "my out" / "task.yaml"
    assert capsys.readouterr().out.endswith(f"llmzero prepare '{task}'\n")
    assert main(["prepare", str(task), "--set", f"dir={tmp_path / 'a task, mine'}"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("to train on it"))
    assert yaml.safe_load(line.partition("search.yaml: ")[2]) == {
        "task": {"dir": str(tmp_path / "a task, mine")}
    }


def test_open_questions_end_with_their_flags_and_the_flags_close_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert draft(tmp_path, rows=UNCLEAR) == 2
    message = capsys.readouterr().out
    assert "One of: left, middle, right." in message
    assert "Answer with --question-field" in message and "Answer with --answer-field" in message
    answers = ("--question-field", "left", "--answer-field", "right", "--force")
    assert draft(tmp_path, *answers, rows=UNCLEAR) == 0


def test_at_a_terminal_the_questions_are_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("left\nnonsense\nright\n\n"))
    assert draft(tmp_path, rows=UNCLEAR) == 0
    message = capsys.readouterr().out
    assert "nonsense is none of them" in message
    assert "# the question is taken from left\n" in (tmp_path / "out" / "task.yaml").read_text()


def test_edits_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert draft(tmp_path) == 0
    (tmp_path / "out" / "task.yaml").write_text("mine")
    assert draft(tmp_path) == 3
    assert "holds other versions of task.yaml" in capsys.readouterr().err
    assert (tmp_path / "out" / "task.yaml").read_text() == "mine"
    assert draft(tmp_path, "--force") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--name", "No Name"), "--name No Name: must be"),
        (("--backend", "gpt"), "must be expert or claude"),
        (("--answer-field", "nowhere"), "has no column 'nowhere'"),
        (("--set", "budget.runs=3"), "settings of agents alone"),
        (("--backend", "claude", "--max-dollars", "0"), "must be a number > 0"),
    ],
)
def test_wrong_options_are_one_line(
    options: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert draft(tmp_path, *options) == 2
    output = capsys.readouterr().err
    assert message in output and len(output.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_without_a_key_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert draft(tmp_path, "--backend", "claude") == 1
    assert "No API key" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_reward_of_the_users_own_is_validated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text("def score(**row):\n    return {'score': 1.0, 'acc': 1.0}\n")
    assert draft(tmp_path, "--reward", f"{tmp_path / 'mine.py'}:score") == 2
    printed = capsys.readouterr().out
    if find_isolation().full:
        assert "does not work yet: reward" in printed
    else:
        assert "this machine has no sandbox for it" in printed
    assert (tmp_path / "out" / "task.yaml").exists()


def test_a_language_model_drafts_and_its_price_is_printed(
    messages_server: MessagesServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    messages_server.play(model())
    setting = f"agents.base_url={messages_server.base_url}"
    assert draft(tmp_path, "--backend", "claude", "--set", setting) == 0
    message = capsys.readouterr().out
    assert "calls: 3, 0.0" in message and "doubt: The rows look made up." in message
    files = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert set(files) == {"task.yaml", "description.md", "search.yaml", "draft.json"}
    assert all(KEY not in text for text in (*files.values(), message))


def test_the_job_is_the_command() -> None:
    import jobs.draft  # noqa: F401

    assert main(["draft", "--help"]) == 0
