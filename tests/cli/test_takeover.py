"""Two processes reach for one search at the same time: one of them works on it, the other one follows it.

Every interleaving is brought about by the test, none by timing.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
import yaml

from actors import app, head
from actors.control_requests import event_of
from actors.runner_pool import HELD_SLOTS_ENV
from llmzero_ray.cli.main import main
from llmzero_ray.config import load_config
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.errors import SearchBusyError
from llmzero_ray.journal import Journal
from llmzero_ray.launch import start
from llmzero_ray.prepared import load_task
from llmzero_ray.records import events as ev
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.presence import SearchLock, owner, waiting_requests
from tests import backend_with_hook
from tests.actors.conftest import Search
from tests.builders import Driver
from tests.searches import scripted_search
from tests.waiting import PATIENCE_S, wait_until

MakeSearch = Callable[..., Search]


class RestartedCoordinator(threading.Thread):
    """Comes back while a command prepares, is at work until it is followed, and ends the search."""

    def __init__(self, storage: SearchStorage, script: Driver, followed: Callable[[], bool]) -> None:
        super().__init__(daemon=True)
        self.journal, self.rest = Journal(storage.paths.journal), list(script.journal)
        self.lock, self.followed = SearchLock(storage.paths.root), followed

    def come_back(self) -> None:
        self.lock.acquire(private_head=False)
        while self.rest and not isinstance(self.rest[0], ev.PhaseFinished):
            self.journal.append(self.rest.pop(0))
        self.start()

    def run(self) -> None:
        wait_until(self.followed)
        for event in self.rest:
            self.journal.append(event)
        self.lock.release()


@pytest.fixture
def config_path(tmp_path: Path, task_dir: Path) -> Iterator[Path]:
    path = tmp_path / "search.yaml"
    engine = {"backend": "tests.backend_with_hook:make_engine"}
    final = {"test": False, "default_recipe": False}
    path.write_text(yaml.safe_dump(scripted_search(tmp_path, task_dir, engine=engine, final=final)))
    yield path
    backend_with_hook.ON_LOADING.clear()


def test_a_command_follows_a_coordinator_that_comes_back_while_it_prepares(config_path: Path) -> None:
    config = load_config(config_path)
    storage = SearchStorage(config.storage, config.name)
    storage.check()
    storage.adopt_config(config)
    script, output = Driver(config), io.StringIO()
    script.search_to_end([0.3, 0.5])
    script.post(ev.OutcomeWritten(problem=""))
    assert isinstance(script.journal[-1], ev.SearchFinished)
    coordinator = RestartedCoordinator(storage, script, lambda: "following" in output.getvalue())
    backend_with_hook.ON_LOADING.append(coordinator.come_back)
    with contextlib.redirect_stdout(output):
        assert main(["search", str(config_path)]) == 0
    assert "is working on it; following" in output.getvalue()
    coordinator.join(PATIENCE_S)
    assert owner(storage.paths.root) is None


@pytest.mark.parametrize("seed", [0, 7])
def test_hints_for_a_search_that_has_not_trained_are_kept(
    config_path: Path, task_dir: Path, seed: int
) -> None:
    """It waits for hardware, is paused, and begins again, perhaps with another configuration."""
    config = load_config(config_path)
    storage = SearchStorage(config.storage, config.name)
    storage.check()
    storage.adopt_config(config)
    script, journal = Driver(config), Journal(storage.paths.journal)
    script.post(ev.HintGiven(text="low rates", source="user:1"), ev.HintGiven(text="n=4", source="user:2"))
    script.post(ev.SearchPaused(reason="no GPU tonight"))
    for event in script.journal:
        journal.append(event)
    config = config.model_copy(update={"seed": seed})
    for _ in range(2):  # the first command ends before there is a coordinator
        start._settle(config, load_task(task_dir), Follower(storage))
    assert storage.config() == config
    assert Follower(storage).poll() == ()
    again = Driver(config)
    for asked in waiting_requests(storage.paths.root):
        again.post(event_of(again.core, asked))
    assert again.core.hints == ["low rates", "n=4"]


@pytest.mark.slow
def test_a_coordinator_waits_for_the_command_that_prepares_its_directory(make_search: MakeSearch) -> None:
    search = make_search(budget={"runs": 2})
    search.storage.check()
    command = SearchLock(search.root)
    command.acquire(private_head=True, role="command")
    assert owner(search.root) is None
    search.start()
    assert search.running is not None
    ray.wait([search.running.coordinator.__ray_ready__.remote()], timeout=PATIENCE_S)
    time.sleep(3.0)  # longer than a lock is tried for when its holder is not expected to exit
    command.release()
    assert search.wait().finished.reason == "budget"


def test_a_search_on_slots_that_another_process_holds_ends_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = start.LaunchedSearch(follower=Follower(SearchStorage(tmp_path, "demo")))
    assert not launched.ends_with_command
    monkeypatch.setenv(HELD_SLOTS_ENV, "lane-0")
    assert launched.ends_with_command


def test_a_call_into_ray_is_awaited_before_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that came after `ray.shutdown` started a second head, and could end the command with code 1."""
    answered, seen = threading.Event(), []

    def has_joined(_: object) -> bool:
        answered.wait()
        seen.append("answered")
        return True

    monkeypatch.setattr(start, "_ANSWER_S", 0.01)
    monkeypatch.setattr(app, "has_joined", has_joined)
    launched = start.LaunchedSearch(
        follower=Follower(SearchStorage(tmp_path, "demo")),
        running=app.Running(private_head=True, name="demo", coordinator=None, joined=None),
        disconnect=lambda: seen.append("left"),
    )
    assert not launched.end_check()()
    leaving = threading.Thread(target=launched.leave)
    leaving.start()
    leaving.join(0.2)
    assert leaving.is_alive() and seen == []
    answered.set()
    leaving.join()
    assert seen == ["answered", "left"]


@pytest.mark.slow
def test_a_killed_coordinator_may_take_longer_to_restart_than_ray_to_answer(
    make_search: MakeSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its head it will not come back, and that is waited for no longer."""
    monkeypatch.setattr(start, "_ANSWER_S", 0.2)
    search = make_search({"step_s": 0.1}, budget={"runs": 2}, phase={"n_steps": 20}).start()
    is_over = start.LaunchedSearch(
        follower=Follower(search.storage), running=search.running, private_head=True
    ).end_check()
    search.until_step(0, 3)
    assert not is_over()
    coordinator = owner(search.root)
    assert coordinator is not None
    os.kill(coordinator.pid, signal.SIGKILL)
    slow = SearchLock(search.root)

    def taken() -> bool:  # the next coordinator waits for it
        with contextlib.suppress(SearchBusyError):  # the killed process has not quite gone
            slow.acquire(private_head=True, role="command")
            return True
        return False

    wait_until(taken)
    until = time.monotonic() + 1.0  # several times what Ray gets to answer
    while time.monotonic() < until:
        assert not is_over()
        time.sleep(0.1)
    monkeypatch.setattr(head, "is_alive", lambda: False)
    wait_until(is_over)
    slow.release()
    assert search.wait().finished.reason == "budget"
    assert len(search.events(ev.CoordinatorStarted)) == 2


@pytest.mark.slow
def test_a_command_whose_coordinator_was_replaced_leaves_the_new_one_alone(make_search: MakeSearch) -> None:
    search = make_search({"step_s": 0.1}, budget={"runs": 2}, phase={"n_steps": 20}).start()
    search.until_step(0, 3)
    first = search.running
    assert first is not None
    ray.kill(first.coordinator)  # as `start_on` of another command does that finds no coordinator
    search.until(lambda: owner(search.root) is None)
    search.start()
    search.until(lambda: len(search.events(ev.CoordinatorStarted)) == 2)
    search.until(lambda: app.has_joined(first))
    assert search.wait().finished.reason == "budget"
    assert len(search.events(ev.CoordinatorStarted)) == 2
    assert search.events(ev.RunnerLost) == []
