"""Alerts of a search, sent by Apprise to a real server."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.config import TrackingConfig, parse_config
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.errors import ConfigError
from llmzero_ray.records import events as ev
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.presence import SearchLock
from llmzero_ray.tracking import alerts, send_alert, tracker
from llmzero_ray.utils.api_key import NOTIFY_URLS
from tests.blackbox.inputs import copy_of
from tests.builders import make_config
from tests.report.builder import Phase, SearchBuilder
from tests.report.conftest import METRICS, ended_late, scripted
from tests.waiting import PATIENCE_S

SECRET = "hunter2hunter2"
needs_apprise = pytest.mark.skipif(
    bool(send_alert.import_problem("apprise")), reason="apprise is not installed: llmzero-ray[notify]"
)


class Service:
    """Apprise's JSON service: the messages that it got."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                service.messages.append(json.loads(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"json://me:{SECRET}@127.0.0.1:{self.server.server_port}"

    def lines(self, number: int) -> list[str]:
        """Lines of one message."""
        return str(self.messages[number]["message"]).splitlines()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def track(root: Path, urls: str, finish_s: float = PATIENCE_S) -> bool:
    """Track what a search's directory has now; whether everything was sent."""
    settings = TrackingConfig(backends=("apprise",), finish_s=finish_s)

    async def whole() -> bool:
        ended = asyncio.Event()
        ended.set()
        return await tracker.track(root, {NOTIFY_URLS: urls}, ended, settings)

    return asyncio.run(whole())


@needs_apprise
def test_the_end_is_told_with_its_result_and_only_once(service: Service, tmp_path: Path) -> None:
    root = copy_of("finished", tmp_path / "runs")
    assert track(root, service.url)
    (message,) = service.messages
    assert message["title"] == "llmzero: finished"
    lines = service.lines(0)
    assert lines[0].startswith("New best: node=0 completed: validation")
    assert any(line.startswith("It has ended because") for line in lines)
    assert any(line.startswith("The best strategy scores 0.7188 ± 0.0566") for line in lines)
    assert track(root, service.url)
    assert len(service.messages) == 1


@pytest.mark.slow
@needs_apprise
def test_what_can_wait_is_told_with_what_cannot(service: Service, tmp_path: Path) -> None:
    search = scripted(tmp_path)
    search.now = time.time() - 500
    search.ready().play(phases=1)
    lock = SearchLock(search.root)
    lock.acquire(private_head=True)

    async def follow() -> None:
        made = tracker.SearchTracker(
            search.storage, {NOTIFY_URLS: service.url}, TrackingConfig(backends=("apprise",))
        )
        made.look()
        await until(service, made, 1)
        search.play(phases=1)  # a better score, soon after the first message
        made.look()
        diverge(search)
        made._alerts._needs_at = 0.0
        made.look()
        await until(service, made, 2)
        made._alerts._needs_at = 0.0
        made.look()
        search.post(ev.BudgetReached(kind="gpu_hours", used=2.0, limit=2.0))
        search.post(ev.SearchPaused(reason="enough for today"))
        made.look()
        await until(service, made, 3)

    asyncio.run(follow())
    lock.release()
    (first,), second, third = service.lines(0), service.lines(1), service.lines(2)
    assert first.startswith("New best: node=0")
    assert [line.partition(":")[0] for line in second] == ["New best", "Needs you"]
    assert "node=1" in second[0] and "actor/kl_loss in 6 of 6 steps" in second[1]
    assert third == ["budget reached: gpu_hours 2.00 of 2", "paused: enough for today"]


async def until(service: Service, made: tracker.SearchTracker, n: int) -> None:
    """Wait for that many messages, and until the last one is known to be sent."""
    async with asyncio.timeout(PATIENCE_S):
        await made._alerts._sending
    assert len(service.messages) == n


def diverge(search: SearchBuilder) -> None:
    """The next phase trains, and its KL is not a number."""
    command = next(one for one in search.waiting.values() if hasattr(one, "spec"))
    search.start(command)
    bad = {**METRICS, "actor/kl_loss": [float("nan")] * 20}
    search.write_points(command.spec, Phase(val={0: 60}, metrics=bad), until=6)


def test_a_late_outcome_of_an_attempt_that_was_given_up_is_no_new_best(tmp_path: Path) -> None:
    search = ended_late(tmp_path)
    follower, made = Follower(search.storage), quiet(tmp_path / "alerts.json")
    follower.poll()
    late, *counts = (event for event in follower.events if isinstance(event, ev.PhaseFinished))
    assert [len(list(made._lines_of(follower, event))) for event in (late, *counts)] == [0, 1]


@pytest.mark.parametrize("again", [False, True])
def test_a_cap_that_is_reached_is_told_also_by_a_tracker_that_started_again(
    again: bool, tmp_path: Path
) -> None:
    search = SearchBuilder(tmp_path, config=make_config(budget={"dollars": 1.0})).ready()
    follower, state = Follower(search.storage), tmp_path / "alerts.json"
    made = quiet(state)
    for n, dollars in enumerate((0.3, 0.8, 0.1)):
        if n == 1 and again:
            state.write_text(json.dumps({"events": len(follower.events)}))
            follower, made = Follower(search.storage), quiet(state)
        search.post(call(n, dollars))
        follower.poll()
        made.look(follower)
    assert made._lines == ["budget.dollars is used up ($1.10 of $1): rules decide now"]


@pytest.mark.parametrize("again", [False, True])
def test_a_cap_that_was_raised_is_told_again_when_it_is_reached(again: bool, tmp_path: Path) -> None:
    search = SearchBuilder(tmp_path, config=make_config(budget={"dollars": 1.0})).ready()
    follower, made = Follower(search.storage), quiet(tmp_path / "alerts.json")
    search.post(dataclasses.replace(call(0, 0.9), outcome="cap"))
    follower.poll()
    made.look(follower)
    search.post(ev.SettingsChanged(changes={"budget.dollars": 2.0}, before={"budget.dollars": 1.0}))
    if again:
        follower, made = Follower(search.storage), quiet(tmp_path / "alerts.json")
    search.post(call(1, 1.2))
    follower.poll()
    made.look(follower)
    assert made._lines[-1] == "budget.dollars is used up ($2.10 of $2): rules decide now"


def quiet(state: Path) -> alerts.Alerts:
    """Alerts that collect lines, and send none."""
    made = alerts.Alerts(state, {NOTIFY_URLS: "json://127.0.0.1:1"})
    made._not_before = made._needs_at = math.inf
    return made


def call(n: int, dollars: float) -> ev.AgentCalled:
    return ev.AgentCalled(
        node=0, agent="proposer", call="", outcome="ok", model="m", prompt="", dollars=dollars,
        source="core:call", attempt=0, sequence=n,
    )  # fmt: skip


@needs_apprise
def test_a_dead_coordinator_needs_you(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "_RESTART_S", 0.0)
    root = copy_of("killed", tmp_path / "runs")
    assert track(root, service.url)
    (told,) = [line for line in service.lines(-1) if line.startswith("Needs you")]
    assert "It is interrupted" in told and f"llmzero resume {root}" in told


@pytest.mark.slow
@needs_apprise
def test_a_service_that_is_dead_costs_one_sentence_and_shows_no_address(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = copy_of("finished", tmp_path / "runs")
    dead = f"json://me:{SECRET}@127.0.0.1:1"
    assert not track(root, dead)
    said = {record.message for record in caplog.records}
    assert said == {f"alert: of {NOTIFY_URLS}, no. 1 (JSON) did not take the message"}
    caplog.clear()
    assert track(root, f"{dead} nosuch://{SECRET} {service.url}")
    (record,) = caplog.records
    assert "no. 1 (JSON) did not" in record.message and "no. 2 is not an address" in record.message
    assert len(service.messages) == 1
    assert [path for path in root.rglob("*") if path.is_file() and SECRET in path.read_text("latin-1")] == []


def test_without_apprise_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    said, taken = send_alert.send({"urls": "json://127.0.0.1", "title": "t", "body": "b"})
    assert not taken
    assert said == (
        "apprise is not installed on the coordinator's machine; `pip install 'llmzero-ray[notify]'`"
    )


def test_without_addresses_one_sentence_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert track(copy_of("finished", tmp_path / "runs"), "")
    assert [record.message for record in caplog.records] == [
        f"no alerts are sent: {NOTIFY_URLS} is empty in the environment of the command"
    ]


def test_addresses_reach_no_other_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(tracker, "RunFeed", lambda opening, *_: given.append(opening) or Silent())
    root = copy_of("finished", tmp_path / "runs")
    settings = TrackingConfig(backends=("file", "apprise"))
    keys = {NOTIFY_URLS: "", "WANDB_API_KEY": "w"}
    tracker.SearchTracker(SearchStorage.at(root), keys, settings).look()
    assert {opening.backend for opening in given} == {"file"}
    assert all(dict(opening.variables) == {"WANDB_API_KEY": "w"} for opening in given)


class Silent:
    """A feed that does nothing."""

    def offer(self, points: Any) -> None: ...

    def close(self) -> None: ...


def test_addresses_in_the_configuration_are_refused_unseen() -> None:
    with pytest.raises(ConfigError, match=f"{NOTIFY_URLS} names a key") as caught:
        parse_config({"name": "a", "tracking": {"variables": {NOTIFY_URLS: f"json://{SECRET}"}}})
    assert SECRET not in str(caught.value)
