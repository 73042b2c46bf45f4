"""The coordinator's event loop alone: no task of it ends in silence, and none holds another one up."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors import coordinator, event_loop
from actors.event_loop import EventLoop
from actors.threads import Threads
from llmzero_ray.coordinator import CoordinatorCore
from llmzero_ray.journal import read_all
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.commands import Command
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.presence import SearchLock, owner
from tests.builders import Driver, make_config
from tests.waiting import PATIENCE_S


class Opened:
    """An event loop of a search that has begun; `commands` are those it executed."""

    def __init__(self, tmp_path: Path) -> None:
        self.storage = SearchStorage(tmp_path, "demo")
        self.loop = EventLoop(self.storage)
        self.commands: list[Command] = []
        self.ended = asyncio.Event()

    async def begin(self) -> None:
        for event in Driver(make_config()).journal:
            await self.loop.post(event)
        self.loop.open(self.execute)

    async def execute(self, command: Command) -> None:
        self.commands.append(command)
        if isinstance(command, cmd.End):
            self.ended.set()

    def journalled(self, kind: type[ev.Event]) -> list[ev.Event]:
        return [event for event in read_all(self.storage.paths.journal) if isinstance(event, kind)]


def play(tmp_path: Path, scene: Callable[[Opened], Awaitable[None]]) -> Opened:
    """A scene on an event loop, with the common outer limit."""

    async def whole() -> Opened:
        opened = Opened(tmp_path)
        await opened.begin()
        await asyncio.wait_for(scene(opened), PATIENCE_S)
        return opened

    return asyncio.run(whole())


def test_a_periodic_task_that_raises_is_logged_and_journalled_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    n_ticks = 0

    async def scene(opened: Opened) -> None:
        enough = asyncio.Event()

        async def tick() -> None:
            nonlocal n_ticks
            n_ticks += 1
            if n_ticks >= 5:
                enough.set()
            if n_ticks in (2, 3):
                raise AttributeError("'list' object has no attribute 'items'")

        with caplog.at_level(logging.ERROR):
            opened.loop.repeat(tick, "control requests", every_s=0.001)
            await enough.wait()
        opened.loop.close()

    opened = play(tmp_path, scene)
    (failed,) = opened.journalled(ev.BackgroundTaskFailed)  # once a minute, however often it fails
    assert isinstance(failed, ev.BackgroundTaskFailed)
    assert (failed.task, failed.reason) == (
        "control requests",
        "AttributeError: 'list' object has no attribute 'items'",
    )
    assert "control requests failed" in caplog.text
    assert opened.loop.core.interrupted is None


def test_a_periodic_task_that_fails_for_too_long_aborts_the_search_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "_FAILING_S", 0.0)

    async def tick() -> None:
        raise OSError("stale file handle")

    async def scene(opened: Opened) -> None:
        opened.loop.repeat(tick, "budget limits", every_s=0.001)
        await opened.ended.wait()

    (end,) = [command for command in play(tmp_path, scene).commands if isinstance(command, cmd.End)]
    assert "budget limits has failed for" in end.reason
    assert "stale file handle" in end.reason
    assert end.exit_code == 1


def test_a_task_that_may_fail_never_aborts_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "_FAILING_S", 0.0)

    async def scene(opened: Opened) -> None:
        n_ticks, enough = 0, asyncio.Event()

        async def tick() -> None:
            nonlocal n_ticks
            n_ticks += 1
            if n_ticks == 5:
                enough.set()
            raise OSError("no metrics today")

        opened.loop.repeat(tick, "metrics", every_s=0.001, may_fail=True)
        await enough.wait()

    opened = play(tmp_path, scene)
    assert opened.loop.core.interrupted is None
    assert len(opened.journalled(ev.BackgroundTaskFailed)) == 1


def test_a_task_that_raises_aborts_the_search_instead_of_ending_in_silence(tmp_path: Path) -> None:
    async def work() -> None:
        raise AttributeError("no attribute 'items'")

    async def scene(opened: Opened) -> None:
        opened.loop.spawn(work(), "work")
        await opened.ended.wait()

    opened = play(tmp_path, scene)
    assert opened.loop.core.interrupted == ("work: AttributeError: no attribute 'items'", 1)


def test_a_periodic_task_that_waits_holds_no_other_one_up(tmp_path: Path) -> None:
    async def scene(opened: Opened) -> None:
        beaten, never = asyncio.Event(), asyncio.Event()

        async def beat() -> None:
            beaten.set()

        async def wait() -> None:
            await never.wait()

        opened.loop.repeat(wait, "hang detection", every_s=0.001)
        opened.loop.repeat(beat, "heartbeat", every_s=0.001)
        await beaten.wait()

    play(tmp_path, scene)


def test_an_event_that_the_core_cannot_handle_ends_the_work_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: CoordinatorCore, event: ev.Event) -> list[Command]:
        raise RecursionError("too deep")

    async def scene(opened: Opened) -> None:
        monkeypatch.setattr(CoordinatorCore, "handle", broken)
        await opened.loop.post(ev.HintGiven(text="x"))
        await opened.ended.wait()
        await opened.loop.post(ev.HintGiven(text="y"))

    opened = play(tmp_path, scene)
    assert "HintGiven could not be handled: RecursionError: too deep" in str(opened.loop.failure)
    assert len(opened.journalled(ev.HintGiven)) == 1  # nothing is journalled behind it


def test_the_end_gives_everything_back_whatever_fails_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that cannot be tidied left the coordinator alive, with the lock held."""

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(coordinator, "remove_leftovers", broken)
    monkeypatch.setattr(coordinator, "end_actor", broken)
    monkeypatch.setattr(coordinator, "_LINGER_S", 0.0)
    killed: list[object] = []
    monkeypatch.setattr("ray.kill", killed.append)

    async def close_all(*, at_once: bool) -> None:
        raise RuntimeError(f"at once: {at_once}")

    async def end() -> bool:
        ending: Any = object.__new__(coordinator.SearchCoordinator)
        ending._storage, ending._threads = SearchStorage(tmp_path, "demo"), Threads("end")
        ending._pool = SimpleNamespace(close_all=close_all)
        ending._loop = SimpleNamespace(close=lambda: None, core=SimpleNamespace(finished=True))
        ending._trackers, ending._ending, ending._actor = [SimpleNamespace(finish=broken)], False, "actor"
        ending._lock, ending._ended = SearchLock(tmp_path / "demo"), asyncio.Event()
        ending._lock.acquire(private_head=True)
        await ending._end(at_once=False)
        return bool(ending._ended.is_set())

    assert asyncio.run(end())
    assert killed == ["actor"]
    assert owner(tmp_path / "demo") is None
