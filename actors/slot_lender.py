"""Leases slots to Tune trials, one phase per lease.

Slots are reserved together. Their runners start with the first lease and stay warm between leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from llmzero_ray.config import SearchConfig, parse_config

from .runner_pool import RunnerPool

logger = logging.getLogger("llmzero_ray.actors.slot_lender")
_LOOK_S = 1.0
"""Seconds between two checks whether a borrower lives."""


class SlotLender:
    """Leases the slots of a configuration, whose name it has. The actor, its runners and its hardware end
    with the process that created it."""

    def __init__(self, config: dict[str, Any], *, fixed_capacity: bool) -> None:
        self._config: SearchConfig = parse_config(config, source="search.yaml")
        self._pool = RunnerPool(
            self._config.name,
            self._config.storage,
            lambda: self._config,
            fixed_capacity=fixed_capacity,
            detached=False,
        )
        self._free: asyncio.Queue[int] = asyncio.Queue()
        self._lent: dict[int, asyncio.Task[None]] = {}
        """Slot -> task that watches its borrower."""

    async def reserve(self) -> None:
        """Reserve the hardware of all slots.

        Raises:
            CapacityError: the cluster does not have it; nothing stays reserved.
        """
        await self._pool.reserve()
        for slot in range(self._config.slots.count):
            self._free.put_nowait(slot)

    async def lend(self, borrower: Any) -> tuple[int, Any]:
        """(slot, its runner), once a slot is free. The lease ends with `give_back`, or when the borrower (an
        actor with a method `is_here`) dies.

        Raises:
            CapacityError: the slot's hardware was lost and does not return in time.
            RayError: the runner died before it answered.
        """
        slot = await self._free.get()
        try:
            if not await self._answers(slot):
                await self._pool.start(slot)
        except BaseException:
            self._free.put_nowait(slot)
            raise
        self._lent[slot] = asyncio.create_task(self._watch(slot, borrower))
        return slot, self._pool.runner(slot)

    async def give_back(self, slot: int, *, kill: bool = False) -> None:
        """End the lease of a slot whose runner is idle. `kill` ends a runner that is not."""
        watch = self._lent.pop(slot, None)
        if watch is None:
            return
        watch.cancel()
        if kill:
            self._pool.kill(slot)
        self._free.put_nowait(slot)

    async def close(self) -> None:
        """End all runners (those that still train at their next step) and release the hardware."""
        for slot in list(self._lent):
            with contextlib.suppress(Exception):
                current = (await self._pool.health(slot))["current"]
                if current is not None:
                    stop = self._pool.runner(slot).stop.options(concurrency_group="ctl")
                    await stop.remote(*current, "user")
        for watch in self._lent.values():
            watch.cancel()
        await self._pool.close_all(at_once=False)

    async def _answers(self, slot: int) -> bool:
        import ray

        try:
            await self._pool.health(slot)
        except (KeyError, ray.exceptions.RayError):
            return False
        return True

    async def _watch(self, slot: int, borrower: Any) -> None:
        """End the lease of a borrower that died. Its runner may still train and is replaced."""
        import ray

        try:
            while True:
                await borrower.is_here.remote()
                await asyncio.sleep(_LOOK_S)
        except ray.exceptions.RayError as error:
            logger.warning("slot=%d its borrower has died: %s", slot, error)
            await self.give_back(slot, kill=True)
