"""Runners of the slots: started on reserved hardware, found again by name, replaced when lost, closed at the
end.

Not here: what they train (hands.py), reserving (hardware.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from llmzero_ray.config import SearchConfig
from llmzero_ray.engines.base import Slot

from . import hardware
from .options import NAMESPACE, actor_options, runner_name
from .runner import PhaseRunner

logger = logging.getLogger("llmzero_ray.actors.slots")

_CTL_THREADS = 4
_CLOSE_S = 60.0
"""Longest wait for an engine to end in good order before its runner is killed."""


class Slots:
    """The slots of one search. Every method may block on Ray only inside a thread."""

    def __init__(self, config: SearchConfig, storage: str, *, private_head: bool) -> None:
        self._config, self._storage, self._private = config, storage, private_head
        self._runners: dict[int, Any] = {}
        self._closed = False

    def use(self, config: SearchConfig) -> None:
        """Settings were changed."""
        self._config = config

    def has(self, slot: int) -> bool:
        """Whether a runner was started for the slot, which may be gone by now."""
        return slot in self._runners

    async def reserve(self) -> None:
        """Reserve the hardware of all slots, or find it reserved.

        Raises:
            CapacityError: the cluster does not give it.
        """
        await asyncio.to_thread(hardware.reserve_all, self._config, private_head=self._private)

    def runner(self, slot: int) -> Any:
        """The slot's runner; calls to it fail when it is gone."""
        return self._runners[slot]

    async def find(self, slot: int) -> bool:
        """Whether a runner that was started earlier still answers; it is used again then."""
        import ray

        try:
            runner = await asyncio.to_thread(
                ray.get_actor, runner_name(self._config.name, slot), namespace=NAMESPACE
            )
            self._runners[slot] = runner
            await self.health(slot)
        except (ValueError, ray.exceptions.RayError):
            return False
        return True

    async def health(self, slot: int) -> dict[str, Any]:
        """What the runner says of itself, also while it trains."""
        found: dict[str, Any] = await self.runner(slot).health.options(concurrency_group="ctl").remote()
        return found

    async def start(self, slot: int) -> None:
        """A fresh runner on the slot's hardware, an old one killed first; waits until it answers.

        Raises:
            CapacityError: the hardware is gone and does not come back in time.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        await kill(runner_name(self._config.name, slot))
        groups = await asyncio.to_thread(hardware.wait_for, self._config, slot)
        if self._closed:
            return
        place = PlacementGroupSchedulingStrategy(hardware.group_of(groups[0]), placement_group_bundle_index=0)
        slots, name = self._config.slots, runner_name(self._config.name, slot)
        description = Slot(
            search=self._config.name,
            index=slot,
            placement_groups=groups,
            gpus_per_node=slots.gpus_per_node,
            cpus_per_gpu=slots.cpus_per_gpu,
        )
        wrapped = ray.remote(concurrency_groups={"ctl": _CTL_THREADS})(PhaseRunner)
        options = actor_options(name, max_restarts=0, max_task_retries=0, scheduling_strategy=place)
        self._runners[slot] = wrapped.options(**options).remote(
            self._config.to_json(), self._storage, description
        )
        health = await self.health(slot)
        logger.info("slot=%d runner started: process %d", slot, health["pid"])

    async def close_all(self, *, at_once: bool) -> None:
        """End all runners, idle engines in good order unless `at_once`, and give the hardware back."""
        self._closed = True
        count = max([self._config.slots.count, *(slot + 1 for slot in self._runners)])
        await asyncio.gather(*(self._close(slot, at_once=at_once) for slot in range(count)))
        await asyncio.to_thread(hardware.release_all, self._config, count)

    async def close(self, slot: int) -> None:
        """End an idle slot's runner in good order and give its hardware back."""
        await self._close(slot, at_once=False)
        self._runners.pop(slot, None)
        await asyncio.to_thread(hardware.release, self._config, slot)

    async def _close(self, slot: int, *, at_once: bool) -> None:
        runner = self._runners.get(slot)
        if runner is not None and not at_once:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(runner.close.remote(), _CLOSE_S)
        await kill(runner_name(self._config.name, slot))


async def kill(name: str) -> None:
    """End the actor of that name, if there is one, and wait until the name is free."""
    import ray

    for _ in range(100):
        try:
            actor = await asyncio.to_thread(ray.get_actor, name, namespace=NAMESPACE)
        except ValueError:
            return
        ray.kill(actor)
        await asyncio.sleep(0.1)
    logger.warning("the name %s is still taken", name)
