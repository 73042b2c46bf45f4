"""`llmzero search FOLDER SENTENCE` to its end: real actors, scripted engine, a model behind a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from llmzero_ray.cli.main import main
from llmzero_ray.coordinator import check_decisions
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.records import events as ev
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.storage import SearchStorage
from llmzero_ray.ui.view import view
from tests.actors.test_model_search import sensible
from tests.agents.drafting.folders import questions, write_rows
from tests.agents.drafting.scripts import model
from tests.agents.llm.conftest import messages_server
from tests.agents.llm.messages_server import KEY, Fail, MessagesServer, Reply, Request
from tests.searches import CHECKOUT, scripted_search
from tests.waiting import PATIENCE_S

__all__ = ["messages_server"]
SENTENCE = "Name the city"

Run = Callable[..., str]


def every_agent() -> Callable[[Request], Reply]:
    """A model that drafts the task and proposes phases."""
    drafts = model()
    phases = ("propose_phase", "propose_fix", "give_verdict")
    return lambda request: sensible(request) if request.tool in phases else drafts(request)


@pytest.fixture
def run(tmp_path: Path, head: str) -> Run:
    """The command on a folder, with settings, on the head of the tests; its output."""
    write_rows(tmp_path / "cities" / "rows.jsonl", questions())
    base = scripted_search(
        tmp_path, tmp_path / "unused", {"step_s": 0.01}, final={"test": False, "default_recipe": False}
    )
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))

    def search(*settings: str) -> str:
        given = [part for setting in settings for part in ("--set", setting)]
        data, base = str(tmp_path / "cities"), str(tmp_path / "base.yaml")
        done = subprocess.run(
            [sys.executable, "-m", "jobs.search", data, SENTENCE, "--base", base, "--yes", *given],
            cwd=CHECKOUT,
            env={**os.environ, "RAY_ADDRESS": head, "RAY_AUTH_MODE": "disabled", "ANTHROPIC_API_KEY": KEY},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return search


def run_on_the_model(run: Run, tmp_path: Path, server: MessagesServer) -> Follower:
    asks = ["agents.backend=claude", f"agents.base_url={server.base_url}", "agents.visual=false"]
    assert "search cities has ended (budget) after 2 runs" in run(*asks, "budget.dollars=5")
    return Follower.of(SearchStorage(tmp_path / "runs", "cities"))


def agents_asked(search: Follower) -> list[str]:
    """All but the stopper, which is asked while a phase trains, so as often as the machine lets it."""
    calls = [event.agent for event in search.events if isinstance(event, ev.AgentCalled)]
    return [agent for agent in calls if agent != "early_stopper"]


@pytest.mark.slow
def test_a_folder_and_a_sentence_become_a_search_that_runs_again_without_a_network(
    run: Run, tmp_path: Path, messages_server: MessagesServer, capsys: pytest.CaptureFixture[str]
) -> None:
    messages_server.play(every_agent())
    first = run_on_the_model(run, tmp_path, messages_server)
    kinds = [type(event) for event in first.events if not isinstance(event, ev.CallReserved)]
    start = kinds.index(ev.SearchStarted)
    assert kinds[:start] == [
        ev.InitializationStarted, ev.AgentCalled, ev.AgentCalled, ev.AgentCalled, ev.TaskDrafted,
        ev.InitializationConfirmed,
    ]  # fmt: skip
    calls = [event for event in first.events if isinstance(event, ev.AgentCalled)]
    assert agents_asked(first) == ["task_descriptor", "reward_writer", "tool_selector", "proposer"]
    assert first.core.dollars == pytest.approx(sum(call.dollars for call in calls))
    proposals = [
        request for request in messages_server.messages if request.body["tools"][0]["name"] == "propose_phase"
    ]
    assert "Questions about numbers, each with one right answer." in proposals[0].system + proposals[0].text
    calls_table = view(SearchFacts(first.storage))["tables"]["calls"]["rows"]
    assert {row[:3] for row in calls_table} >= {("task descriptor", "1", "0"), ("proposer", "1", "0")}
    assert [check.differences for check in check_decisions(first.events, first.storage.paths.root)] == [
        ()
    ] * 3
    assert main(["explain", str(first.storage.paths.root)]) == 0
    assert "3 decisions replayed" in capsys.readouterr().out
    assert_runs_again_without_a_network(run, tmp_path, messages_server, first)


def assert_runs_again_without_a_network(
    run: Run, tmp_path: Path, server: MessagesServer, first: Follower
) -> None:
    n_requests = len(server.requests)
    server.play([Fail(status=500)])
    run_on_the_model(run, tmp_path, server)  # its outcome, again
    run("name=again", "agents.backend=recorded", f"agents.recorded_from={first.storage.paths.root}")
    again = Follower.of(SearchStorage(tmp_path / "runs", "again"))
    assert len(server.requests) == n_requests
    assert again.core.dollars == 0
    assert agents_asked(again) == agents_asked(first)
    for node, phase in first.core.runs.items():
        assert again.core.runs[node].spec is not None and phase.spec is not None
        assert again.core.runs[node].spec.hyperparameters == phase.spec.hyperparameters
