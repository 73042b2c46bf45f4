"""Journal, heartbeat and requests go on, whatever other blocking calls of a coordinator wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from actors import runner_pool
from actors.control_requests import ControlRequests
from actors.event_loop import EventLoop
from actors.monitor import SearchMonitor
from actors.placement import Placement
from actors.runner_pool import RunnerPool
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.presence import last_heartbeat, request
from tests.builders import Driver, make_config
from tests.waiting import PATIENCE_S

N_SLOTS = 32
DEFAULT_POOL = 32
"""Most threads that asyncio's default pool ever has."""


def still_works(root: Path, block: Callable[[threading.Event], Awaitable[Any]]) -> EventLoop:
    """A coordinator's parts that journal an event, beat, and take a request to stop, beside blocked calls."""
    storage = SearchStorage(root, "demo")
    loop = EventLoop(storage)

    async def whole() -> None:
        released = threading.Event()
        blocked = asyncio.ensure_future(block(released))
        try:
            await asyncio.sleep(0)
            async with asyncio.timeout(PATIENCE_S):
                for event in Driver(make_config()).journal:
                    await loop.post(event)
                await SearchMonitor(loop.core, loop.post, storage.paths.root, loop.events, {}).beat()
                request(storage.paths.root, "stop", "enough", deadline_s=0.0)
                await ControlRequests(
                    loop.core,
                    loop.post_judged,
                    storage.paths.root,
                    use_settings=nothing,
                    fixed_capacity=False,
                ).take()
        finally:
            released.set()
        await blocked

    asyncio.run(whole())
    assert last_heartbeat(storage.paths.root) is not None
    return loop


async def nothing() -> None:
    """No settings follow."""


def test_a_default_pool_without_a_free_thread_holds_none_of_them_up(tmp_path: Path) -> None:
    async def block(released: threading.Event) -> None:
        await asyncio.gather(*(asyncio.to_thread(released.wait) for _ in range(2 * DEFAULT_POOL)))

    loop = still_works(tmp_path, block)
    assert loop.core.end_reason == "user"


def test_many_slots_lost_at_once_whose_old_runners_do_not_end_hold_none_of_them_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = threading.Semaphore(0)

    async def block(released: threading.Event) -> None:
        def end_actor(name: str) -> bool:
            ending.release()
            return released.wait()

        async def reserve(self: Placement, config: Any, slot: int) -> None:
            """The search has ended meanwhile."""

        monkeypatch.setattr(runner_pool, "end_actor", end_actor)
        monkeypatch.setattr(Placement, "reserve", reserve)
        pool = RunnerPool("demo", str(tmp_path), make_config, fixed_capacity=False)
        started = await asyncio.gather(*(pool.start(slot) for slot in range(N_SLOTS)))
        assert started == [False] * N_SLOTS

    loop = still_works(tmp_path, block)
    assert loop.core.end_reason == "user"
    assert all(ending.acquire(blocking=False) for _ in range(N_SLOTS))  # none waited for another one
