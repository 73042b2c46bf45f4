"""`llmzero search FOLDER SENTENCE` up to the start: what is drafted, asked, journalled, billed, refused."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic  # noqa: F401 - its first import takes seconds, which no deadline below should pay
import pytest
import yaml
from rich.console import Console

from llmzero_ray.cli.main import main
from llmzero_ray.config import SearchConfig
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.journal import Journal
from llmzero_ray.prepared import load_task
from llmzero_ray.prepared.task import task_facts
from llmzero_ray.records import events as ev
from llmzero_ray.storage import SearchStorage
from llmzero_ray.tasks.commands.initialize import config_of_folder
from tests.agents.drafting.folders import questions, write_rows
from tests.agents.drafting.scripts import judged, model
from tests.agents.llm.conftest import messages_server
from tests.agents.llm.messages_server import KEY, Fail, MessagesServer
from tests.builders import Driver
from tests.searches import scripted_search

__all__ = ["messages_server"]
SENTENCE = "Name the city"
UNCLEAR = [{"left": f"a {i}", "middle": f"b {i}", "right": f"c {i}"} for i in range(40)]


class Terminal(io.StringIO):
    """Standard input where a person sits."""

    def isatty(self) -> bool:
        return True


class Folder:
    """A folder of data, and the command on it."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path, self.path, self.base = tmp_path, tmp_path / "cities", tmp_path / "base.yaml"
        self.storage = SearchStorage(tmp_path / "runs", "cities")
        write_rows(self.path / "rows.jsonl", questions())
        content = scripted_search(tmp_path, tmp_path / "unused")
        self.base.write_text(yaml.safe_dump({key: content[key] for key in content if key != "name"}))
        self.settings: list[str] = []

    @property
    def drafted(self) -> Path:
        return self.storage.paths.initialization

    def run(self, *options: str, sentence: str = SENTENCE) -> int:
        """The whole command; it may not get as far as Ray."""
        given = [part for setting in self.settings for part in ("--set", setting)]
        return main(["search", str(self.path), sentence, "--base", str(self.base), *given, *options])

    def initialize(self, *, yes: bool = True, **choices: Any) -> SearchConfig:
        """The part of the command before the search itself."""
        return config_of_folder(
            self.settings,
            Console(width=200),
            folder=str(self.path),
            sentence=SENTENCE,
            base=str(self.base),
            repairs=2,
            yes=yes,
            **{"options": (), "reward": None, **choices},
        )

    def events(self, kind: type[ev.Event]) -> list[Any]:
        follower = Follower(self.storage)
        follower.poll()
        return [event for event in follower.events if isinstance(event, kind)]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())


@pytest.fixture
def asks_the_model(folder: Folder, messages_server: MessagesServer) -> Callable[..., None]:
    """Let a language model with these answers initialize the search."""

    def ask(**answers: Any) -> None:
        messages_server.play(model(**answers))
        folder.settings += ["agents.backend=claude", f"agents.base_url={messages_server.base_url}"]
        folder.settings += ["agents.visual=false"]

    return ask


def n_asked(server: MessagesServer) -> int:
    return len(server.messages)


def test_without_a_terminal_and_without_yes_everything_is_drafted_and_nothing_started(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert folder.run() == 2
    shown = capsys.readouterr()
    assert "there is no terminal" in shown.err and "with --yes" in shown.err
    assert "the answer is taken from answer" in shown.out
    assert "data: 40 rows in 1 file: question, answer" in shown.out
    assert "at most 32 train, 4 val, 4 test; reward exact_match" in shown.out
    names = {path.name for path in folder.drafted.iterdir()}
    assert names == {"task.yaml", "search.yaml", "description.md", "draft.json"}
    assert not folder.storage.paths.task.exists()
    follower = Follower.of(folder.storage, started=False)
    assert [type(event) for event in follower.events] == [ev.InitializationStarted, ev.TaskDrafted]
    assert follower.core.stage == "initializing"


def test_what_is_confirmed_is_prepared_and_its_description_reaches_the_agents(folder: Folder) -> None:
    config = folder.initialize()
    (confirmed,) = folder.events(ev.InitializationConfirmed)
    assert confirmed.by == "yes"
    assert set(confirmed.files) == {"task.yaml", "search.yaml", "description.md"}
    task = load_task(config.task.dir)
    assert (task.n_train, task.n_val, task.n_test) == (32, 4, 4)
    assert task_facts(task)["description"].startswith("# cities\n\nName the city")
    assert config.name == "cities" and config.budget.runs == 2


def test_what_the_user_set_counts_more_than_what_was_drafted(folder: Folder) -> None:
    folder.settings += ["budget.runs=5"]
    config = folder.initialize()
    assert config.root.overrides["train_batch_size"] == 16 and "batch" not in config.root.overrides
    assert config.root.overrides["lr"] == 1e-3
    assert config.root.overrides["resp"] == 32 == config.eval.max_response_length
    drafted = yaml.safe_load((folder.drafted / "search.yaml").read_text())
    assert drafted["root"]["overrides"]["resp"] == 32
    assert config.engine.backend == "tests.fakes:make_engine" and config.budget.runs == 5


def test_at_a_terminal_the_user_is_asked_and_may_decline(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer in ("", "n\n", "\n"):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        with pytest.raises(LlmzeroError, match="not confirmed, and nothing was started"):
            folder.initialize(yes=False)
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    folder.initialize(yes=False)
    assert [event.by for event in folder.events(ev.InitializationConfirmed)] == ["terminal"]
    assert len(folder.events(ev.TaskDrafted)) == 1
    folder.initialize(yes=False)  # nobody is asked again
    assert len(folder.events(ev.InitializationConfirmed)) == 1


def test_answers_at_the_terminal_are_kept_for_the_next_time(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(folder.path / "rows.jsonl", UNCLEAR)
    monkeypatch.setattr("sys.stdin", Terminal("left\nright\n\nn\n"))
    with pytest.raises(LlmzeroError, match="not confirmed"):
        folder.initialize(yes=False)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    folder.initialize()
    begun = folder.events(ev.InitializationStarted)
    assert [dict(event.choices) for event in begun] == [{}, {"question": "left", "answer": "right"}]
    assert "answer: right" in (folder.drafted / "task.yaml").read_text()


def test_open_questions_are_listed_with_their_options_and_the_options_close_them(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(folder.path / "rows.jsonl", UNCLEAR)
    assert folder.run("--yes") == 2
    message = capsys.readouterr().err
    assert "One of: left, middle, right. Answer with --question-field." in message
    assert "Answer with --answer-field." in message
    folder.initialize(question="left", answer="right")
    assert len(folder.events(ev.InitializationConfirmed)) == 1


def test_edits_of_the_draft_are_what_is_trained(folder: Folder) -> None:
    folder.run()
    task = folder.drafted / "task.yaml"
    task.write_text(task.read_text().replace("n_train: 32", "n_train: 20"))
    assert load_task(folder.initialize().task.dir).n_train == 20
    (drafted,) = folder.events(ev.TaskDrafted)
    (confirmed,) = folder.events(ev.InitializationConfirmed)
    assert confirmed.files["task.yaml"] != drafted.files["task.yaml"]


def test_another_draft_never_replaces_edits(folder: Folder) -> None:
    folder.run()
    task = folder.drafted / "task.yaml"
    task.write_text(task.read_text() + "# mine\n")
    with pytest.raises(LlmzeroError, match=r"task\.yaml .* were edited"):
        folder.initialize(reward="math")
    assert task.read_text().endswith("# mine\n")
    task.unlink()
    folder.initialize(reward="exact_match")
    assert len(folder.events(ev.TaskDrafted)) == 2


def test_the_models_calls_are_journalled_kept_and_in_the_summary(
    folder: Folder,
    asks_the_model: Callable[..., None],
    messages_server: MessagesServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asks_the_model()
    folder.initialize()
    calls = folder.events(ev.AgentCalled)
    assert [call.agent for call in calls] == ["task_descriptor", "reward_writer", "tool_selector"]
    assert {call.outcome for call in calls} == {"ok"}
    core = Follower.of(folder.storage, started=False).core
    assert core.n_calls == 3 == n_asked(messages_server)
    assert core.dollars == pytest.approx(sum(call.dollars for call in calls)) and core.dollars > 0
    for call in calls:
        assert call.prompt in (folder.storage.paths.agents(0) / f"{call.call}.call.json").read_text()
    assert f"so far 3 calls, ${core.dollars:.4f}" in capsys.readouterr().out
    texts = [path.read_bytes() for path in folder.storage.paths.root.rglob("*") if path.is_file()]
    assert not any(KEY.encode() in text for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize("n_kept", [1, 2, 4])  # before and after the refused answer, and all
def test_an_interrupted_initialization_asks_and_bills_nothing_twice(
    folder: Folder, asks_the_model: Callable[..., None], messages_server: MessagesServer, n_kept: int
) -> None:
    refused = judged(kind="regex", pattern="(", gold="{answer}")  # goes back once, as a second turn
    asks_the_model(reward=[refused, judged()])
    assert folder.run() == 2
    whole = folder.events(ev.AgentCalled)
    assert len(whole) == 4 == n_asked(messages_server)
    begun, folders = folder.events(ev.InitializationStarted), folder.storage.paths.agents(0)
    # The process was killed after so many calls.
    shutil.rmtree(folder.storage.paths.journal)
    shutil.rmtree(folder.drafted)
    journal = Journal(folder.storage.paths.journal)
    for event in (*begun, *whole[:n_kept]):
        journal.append(event)
    for event in whole[n_kept:]:
        (folders / f"{event.call}.call.json").unlink()
    messages_server.play(model(reward=judged() if n_kept >= 2 else [refused, judged()]))
    folder.initialize()
    assert n_asked(messages_server) - 4 == 4 - n_kept
    calls = folder.events(ev.AgentCalled)
    assert [(call.call, call.prompt) for call in calls] == [(call.call, call.prompt) for call in whole]
    core = Follower.of(folder.storage, started=False).core
    assert core.dollars == pytest.approx(sum(call.dollars for call in calls))


def test_an_answer_that_was_kept_and_not_journalled_is_billed_at_its_worst_case_and_not_asked_again(
    folder: Folder, asks_the_model: Callable[..., None], messages_server: MessagesServer
) -> None:
    asks_the_model()
    folder.run()
    before = [*folder.events(ev.InitializationStarted), *folder.events(ev.CallReserved)]
    shutil.rmtree(folder.storage.paths.journal)
    journal = Journal(folder.storage.paths.journal)
    for event in before:  # the command died before it journalled a call
        journal.append(event)
    n_before = n_asked(messages_server)
    folder.initialize()
    calls = folder.events(ev.AgentCalled)
    assert {call.outcome for call in calls} == {"lost"}
    assert [call.dollars for call in calls] == [held.dollars for held in folder.events(ev.CallReserved)]
    assert n_asked(messages_server) == n_before


def test_a_call_in_which_the_command_died_is_billed_at_its_worst_case(
    folder: Folder, asks_the_model: Callable[..., None]
) -> None:
    asks_the_model()
    folder.run()
    spent = Follower.of(folder.storage, started=False).core.dollars
    held = ev.CallReserved(
        node=0, agent="reward_writer", holder="coordinator", reservation="r", output_tokens=9, dollars=0.25
    )
    Journal(folder.storage.paths.journal).append(held)
    folder.initialize()
    (lost,) = [call for call in folder.events(ev.AgentCalled) if call.outcome == "lost"]
    assert (lost.agent, lost.reservations, lost.estimated) == ("reward_writer", ("r",), True)
    assert Follower.of(folder.storage, started=False).core.dollars == pytest.approx(spent + 0.25)
    folder.initialize()
    assert len(folder.events(ev.AgentCalled)) == 4


def test_recorded_answers_initialize_again_without_a_network(
    folder: Folder, asks_the_model: Callable[..., None], messages_server: MessagesServer
) -> None:
    asks_the_model()
    first = folder.initialize()
    asked = [(call.agent, call.prompt) for call in folder.events(ev.AgentCalled)]
    n_before = len(messages_server.requests)
    messages_server.play([Fail(status=500)])
    folder.settings = ["name=again", "agents.backend=recorded"]
    folder.settings.append(f"agents.recorded_from={folder.storage.paths.root}")
    again = folder.initialize()
    folder.storage = SearchStorage(folder.storage.paths.root.parent, "again")
    assert len(messages_server.requests) == n_before
    assert [(call.agent, call.prompt) for call in folder.events(ev.AgentCalled)] == asked
    assert Follower.of(folder.storage, started=False).core.dollars == 0
    assert again.root.overrides == first.root.overrides
    assert task_facts(load_task(again.task.dir))["sha256"] == task_facts(load_task(first.task.dir))["sha256"]


def test_calls_end_at_the_searchs_own_cap(
    folder: Folder,
    asks_the_model: Callable[..., None],
    messages_server: MessagesServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asks_the_model()
    folder.settings.append("budget.dollars=0.001")
    folder.initialize()
    assert "budget.dollars 0.001 does not allow another call" in capsys.readouterr().out
    assert Follower.of(folder.storage, started=False).core.dollars <= 0.001
    folder.settings += ["name=stops", "agents.on_cap=stop"]
    with pytest.raises(LlmzeroError, match=r"Raise budget\.dollars"):
        folder.initialize()
    assert n_asked(messages_server) == 0


def test_a_start_that_failed_keeps_the_initialization(folder: Folder) -> None:
    folder.initialize()
    before = Follower.of(folder.storage, started=False).events
    journal = Journal(folder.storage.paths.journal)
    journal.append(Driver().journal[0])  # SearchStarted
    folder.storage.start_over()
    after = Follower.of(folder.storage, started=False).events
    assert after == before
    assert folder.initialize().name == "cities"
    assert len(folder.events(ev.TaskDrafted)) == 1


# --- wrong input --------------------------------------------------------------------------------------------


SPOILED: dict[str, tuple[Callable[[Folder], Any], str]] = {
    "no folder": (lambda f: shutil.rmtree(f.path), "is not a directory; name the folder that holds the data"),
    "empty folder": (lambda f: (f.path / "rows.jsonl").unlink(), "holds no rows that can be read"),
    "empty file": (lambda f: (f.path / "rows.jsonl").write_text(""), "rows.jsonl is empty"),
    "binary file": (lambda f: (f.path / "rows.jsonl").write_bytes(b"\x00\x01"), "is binary, not text"),
    "no model": (lambda f: f.settings.extend(["model={}", "engine={}"]), "no base model is named"),
    "unknown key": (lambda f: f.settings.append("budget.rnus=3"), "unknown key 'rnus' in budget"),
    "unknown price": (
        lambda f: f.settings.extend(["agents.backend=claude", "agents.model=nobody"]),
        "the price of 'nobody' is unknown",
    ),
    "broken base": (lambda f: f.base.write_text("nmae: x"), "unknown key 'nmae'"),
    "no base": (lambda f: f.base.unlink(), "base.yaml: cannot be read"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_wrong_input_is_one_message_and_leaves_nothing(
    folder: Folder, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    spoil, message = SPOILED[what]
    spoil(folder)
    assert folder.run("--yes") == 2
    shown = capsys.readouterr().err
    assert message in shown and "Traceback" not in shown
    assert not folder.storage.paths.root.exists()


def test_an_empty_sentence_is_refused(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert folder.run("--yes", sentence="  ") == 2
    assert "the sentence is empty" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--resume", "--dry-run"])
def test_options_of_other_searches_are_refused(
    folder: Folder, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert folder.run(option) == 2
    assert "not a folder with a sentence" in capsys.readouterr().err


def test_a_folder_without_a_sentence_is_told_what_is_missing(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", str(folder.path)]) == 2
    assert "Add a sentence that says what the model must learn" in capsys.readouterr().err


def test_a_name_that_was_begun_otherwise_is_refused(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.run()
    assert folder.run("--yes", sentence="Name the river") == 2
    assert "was begun with the folder" in capsys.readouterr().err
    root = folder.storage.paths.root
    for command in (["search", str(root / "search.yaml")], ["resume", str(root)], ["stop", str(root)]):
        assert main(command) == 2
        assert "the search has not started" in capsys.readouterr().err
    assert main(["explain", str(root)]) == 2
    assert "the search has not started" in capsys.readouterr().err


def test_the_name_of_a_search_with_a_configuration_is_refused(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(folder.storage.paths.journal)
    journal.append(Driver().journal[0])
    assert folder.run("--yes") == 2
    assert "was begun with a configuration" in capsys.readouterr().err


def test_a_reward_that_validation_refuses_can_be_corrected(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = folder.tmp_path / "mine.py"
    mine.write_text("def score(**row):\n    return {'score': 1.0, 'acc': 1.0}\n")
    assert folder.run("--yes", "--reward", f"{mine}:score") == 2
    message = capsys.readouterr().err
    assert "the task cannot be trained yet" in message and "does not work yet" in message
    folder.initialize(reward="exact_match")
    assert len(folder.events(ev.InitializationConfirmed)) == 1


def test_status_says_how_far_it_is(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.run()
    capsys.readouterr()
    assert main(["status", str(folder.storage.paths.root), "--log"]) == 0
    shown = capsys.readouterr().out
    assert "initializing" in shown and "the task is drafted: it works" in shown
    assert "data: 40 rows" in shown
