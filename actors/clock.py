"""What happens to a search by itself while it is at work: signs of life, requests from outside, limits of
time.

Not here: what follows from them (the core).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from llmzero_ray.coordinator import busy_gpu_hours, over_budget
from llmzero_ray.journal import active_seconds
from llmzero_ray.presence import HEARTBEAT_S, beat

from .gauges import Gauges
from .inbox import Inbox

if TYPE_CHECKING:
    from .coordinator import SearchCoordinator
    from .desk import Desk

_LOOK_S = 0.5


async def keep_clock(coordinator: SearchCoordinator, desk: Desk) -> None:
    """Post what is due, until the search is over."""
    root, core = coordinator.storage.paths.root, desk.core
    inbox, gauges = Inbox(coordinator), Gauges(core.config.name)
    worked_before, since, beaten = active_seconds(desk.events), time.monotonic(), 0.0
    while not coordinator.over.is_set():
        if time.monotonic() - beaten >= HEARTBEAT_S:
            beaten = time.monotonic()
            await asyncio.to_thread(beat, root)
        await inbox.empty()
        if core.stage == "searching":
            worked = worked_before + time.monotonic() - since
            for reached in over_budget(core, worked_s=worked, now=time.time()):
                await desk.post(reached)
        now = time.time()
        busy = busy_gpu_hours(core, now)
        idle = max(0.0, core.meter.gpu_hours(now) - busy)
        gauges.observe(core, busy_gpu_hours=busy, idle_gpu_hours=idle)
        await asyncio.sleep(_LOOK_S)
