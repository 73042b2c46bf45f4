"""What a server bills for the check at the start is in the books, also when the start then fails."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmzero_ray.agents.llm.prices import Price, cost, probe_worst_case
from llmzero_ray.cli.main import main
from llmzero_ray.launch.start_checks import StartChecks
from llmzero_ray.records.events import AgentCalled
from llmzero_ray.storage import SearchStorage
from tests.agents.llm.messages_server import KEY, Answer, Fail, Hang, MessagesServer
from tests.searches import scripted_search
from tests.waiting import wait_until

OK = Answer(content=[{"type": "text", "text": "ok"}], output_tokens=1)
PRICE = [1e3, 1e3, 1e3, 1e3]
"""Dollars per million tokens: the check costs cents."""
CALL = AgentCalled(node=0, agent="check", call="", outcome="ok", model="m", prompt="", dollars=0.5)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MessagesServer]:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.delenv("ANTHROPIC_API_KEY_FILE", raising=False)
    with MessagesServer(models_endpoint=False, models=("one", "another")) as server:
        yield server


@pytest.fixture
def config(tmp_path: Path, task_dir: Path, server: MessagesServer) -> Path:
    """Two models are checked, one after the other."""
    agents: dict[str, Any] = {
        "backend": "claude",
        "model": "one",
        "base_url": server.base_url,
        "price": PRICE,
        "visual": False,
        "per_agent": {"early_stopper": {"model": "another", "price": PRICE}},
    }
    content = scripted_search(tmp_path, task_dir, agents=agents, budget={"runs": 2, "dollars": 100.0})
    path = tmp_path / "search.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_failed_start_is_counted_by_the_next_one(
    config: Path, server: MessagesServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = StartChecks(SearchStorage(str(tmp_path / "runs"), "demo").paths)
    server.play([OK, Fail(status=400, message="not this one")])
    assert main(["search", str(config)]) != 0
    assert "not this one" in capsys.readouterr().err
    booked = checks.not_journalled(())
    assert [call.outcome for call in booked] == ["ok", "bad_request"]
    first, refused = booked
    assert first.dollars > 0 == refused.dollars
    assert len(server.messages) == 2

    server.play([OK])
    worst = cost(probe_worst_case(None), Price.of(PRICE))
    cap, gone = f"budget.dollars={worst + first.dollars / 2}", f"task.dir={tmp_path}/gone"
    assert main(["search", str(config), "--set", cap, "--set", gone]) != 0
    assert "gone" in capsys.readouterr().err
    assert len(server.messages) == 2, "nothing is left for another check"
    assert checks.not_journalled(()) == booked


@pytest.mark.slow
def test_a_command_that_is_killed_while_the_server_answers_has_booked_the_worst_case(
    config: Path, server: MessagesServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = StartChecks(SearchStorage(str(tmp_path / "runs"), "demo").paths)
    worst = cost(probe_worst_case(None), Price.of(PRICE))
    server.play([Hang()])
    with subprocess.Popen([sys.executable, "-m", "llmzero_ray.cli", "search", str(config)]) as command:
        wait_until(lambda: server.messages)
        command.kill()
    (lost,) = checks.not_journalled(())
    assert (lost.outcome, lost.estimated, lost.model) == ("lost", True, "one")
    assert lost.dollars == pytest.approx(worst)

    server.play([OK])
    assert main(["search", str(config), "--set", f"budget.dollars={1.5 * worst}", "--set", "task.dir=x"]) != 0
    assert len(server.messages) == 1, "nothing is left for another check"
    assert checks.not_journalled(()) == (lost,)


def test_calls_wait_until_they_are_in_the_journal(tmp_path: Path) -> None:
    checks = StartChecks(SearchStorage(str(tmp_path), "s").paths)
    assert checks.not_journalled(()) == ()
    calls = [dataclasses.replace(CALL, source=f"check:{number}") for number in range(3)]
    for call in calls:
        checks.book(call)
    assert checks.not_journalled(()) == tuple(calls)
    assert checks.not_journalled([CALL, calls[1]]) == (calls[0], calls[2])


def test_a_bill_takes_the_place_of_the_worst_case(tmp_path: Path) -> None:
    checks = StartChecks(SearchStorage(str(tmp_path), "s").paths)
    lost, other = (dataclasses.replace(CALL, source=f"check:{n}", outcome="lost") for n in range(2))
    billed = dataclasses.replace(lost, outcome="ok", dollars=0.1)
    for call in (lost, other, billed):
        checks.book(call)
    assert checks.not_journalled(()) == (billed, other)
    assert checks.not_journalled([lost]) == (other,), "one that was journalled as lost is not counted twice"


def test_a_line_that_a_killed_command_left_does_not_hide_the_others(tmp_path: Path) -> None:
    paths = SearchStorage(str(tmp_path), "s").paths
    StartChecks(paths).book(dataclasses.replace(CALL, source="check:1"))
    with paths.start_checks.open("a") as file:
        file.write('{"type": "Agent')
    assert len(StartChecks(paths).not_journalled(())) == 1
