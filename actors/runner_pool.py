"""Runners of a search's slots: started on reserved hardware, found again by name, closed at the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from typing import Any

from llmzero_ray.config import SearchConfig
from llmzero_ray.engines.base import Slot

from .names import actor_options, end_actor, find_actor, runner_name, slot_of, slots_name
from .placement import Placement, check_fixed_capacity, group_of, remove_groups
from .runner import PhaseRunner
from .threads import Threads

logger = logging.getLogger("llmzero_ray.actors.runner_pool")
_CTL_THREADS = 4
_SLOT_THREADS = 64
"""Maximum threads. Each one waits a few seconds at most, while a slot's old runner ends."""
_CLOSE_S = 60.0
"""Seconds allowed for an engine's orderly shutdown before its runner is killed."""


def close_shared(slots: str) -> None:
    """End the runner of the shared slots of that name (an idle engine in good order) and release their
    hardware."""
    import ray

    name = runner_name(slots, 0)
    with contextlib.suppress(ValueError, ray.exceptions.RayError):
        ray.get(find_actor(name).close.remote(), timeout=_CLOSE_S)
    end_actor(name)
    remove_groups(slots)


class RunnerPool:
    """The runners of one search, by slot. `settings` returns the current configuration.

    `storage` is the parent of the search's directory. With `fixed_capacity`, the cluster never adds machines.
    `avoided` returns the current ids of nodes on which a GPU failed. Without `detached`, runners and hardware
    are released when the process that requested them ends.
    """

    def __init__(
        self,
        search: str,
        storage: str,
        settings: Callable[[], SearchConfig],
        *,
        fixed_capacity: bool,
        avoided: Callable[[], Collection[str]] = frozenset,
        detached: bool = True,
    ) -> None:
        self._search, self._storage, self._settings = search, storage, settings
        self._fixed_capacity = fixed_capacity
        self._threads = Threads("slots", _SLOT_THREADS)
        self._shared = settings().slots.shared
        self._slots = slots_name(settings())
        self._lifetime = "detached" if detached else None
        self._placement = Placement(self._slots, self._threads, avoided, detached=detached)
        self._runners: dict[int, Any] = {}
        self.closing = False
        """Whether the runners are being closed, so that lost ones are not replaced."""

    async def reserve(self, slots: Collection[int] | None = None) -> bool:
        """Reserve the hardware of all slots (or of `slots`), or find it reserved. Returns False if the pool
        was closed meanwhile.

        Raises:
            CapacityError: the cluster does not have it.
        """
        config = self._settings()
        if self._fixed_capacity:
            await self._threads.run(check_fixed_capacity, config)
        return await self._placement.reserve_all(config, slots)

    def runner(self, slot: int) -> Any:
        """Runner of the slot. Calls to it fail if it has died."""
        return self._runners[slot]

    async def find(self, slot: int) -> bool:
        """Whether a runner that was started earlier still answers, so that it is used again."""
        import ray

        name = runner_name(self._slots, slot)
        try:
            self._runners[slot] = await self._threads.run(find_actor, name)
            return bool((await self.health(slot))["search"] == self._search)
        except (ValueError, ray.exceptions.RayError):
            return False

    async def health(self, slot: int) -> dict[str, Any]:
        """The runner's health report, also while it trains."""
        found: dict[str, Any] = await self.runner(slot).health.options(concurrency_group="ctl").remote()
        return found

    async def start(self, slot: int) -> bool:
        """Start a new runner on the slot's hardware, after killing an old one, and wait until it answers.

        Returns False if the hardware is no longer wanted, because the pool is closing or now has fewer slots.

        Raises:
            CapacityError: the hardware is missing and does not become available in time.
            RayError: the runner died before it answered.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        config, name = self._settings(), runner_name(self._slots, slot)
        if self._shared is not None and await self._took_over(slot):
            return True
        await self._threads.run(end_actor, name)
        groups = await self._placement.reserve(config, slot)
        if groups is None or self.closing:
            return False
        place = PlacementGroupSchedulingStrategy(group_of(groups[0]), placement_group_bundle_index=0)
        description = Slot(
            search=self._slots,
            index=slot,
            placement_groups=groups,
            gpus_per_node=config.slots.gpus_per_node,
            cpus_per_gpu=config.slots.cpus_per_gpu,
        )
        wrapped = ray.remote(concurrency_groups={"ctl": _CTL_THREADS})(PhaseRunner)
        options = actor_options(
            name, max_restarts=0, max_task_retries=0, scheduling_strategy=place, lifetime=self._lifetime
        )
        self._runners[slot] = wrapped.options(**options).remote(config.to_json(), self._storage, description)
        health = await self.health(slot)
        logger.info("slot=%d runner started: process %d", slot, health["pid"])
        return True

    async def _took_over(self, slot: int) -> bool:
        """Whether the slot has an idle runner left by an earlier search, which now serves this one."""
        import ray

        try:
            runner = await self._threads.run(find_actor, runner_name(self._slots, slot))
            self._runners[slot] = runner
            health = await self.health(slot)
            if health["search"] == self._search or health["current"] is not None:
                return False  # our own useless runner, or one with the phase of a killed search
            await runner.use.remote(self._settings().to_json(), self._storage)
        except (ValueError, ray.exceptions.RayError):
            return False
        logger.info("slot=%d runner taken over from %s", slot, health["search"])
        return True

    def kill(self, slot: int) -> None:
        """End a runner at once. Its unanswered calls fail."""
        import ray

        ray.kill(self.runner(slot))

    async def avoidable_machine_of(self, slot: int) -> str | None:
        """Id of the slot's node if the search can do without it, otherwise None."""
        return await self._placement.avoidable_machine_of(self._settings(), slot)

    async def stop_waiting(self, slot: int) -> None:
        """Stop waiting for the hardware of a slot."""
        await self._placement.cancel(slot)

    async def close(self, slot: int) -> None:
        """Shut down an idle slot's runner and release its hardware."""
        await self._close(slot, at_once=False)
        self._runners.pop(slot, None)
        await self._placement.release(slot)

    async def close_all(self, *, at_once: bool) -> None:
        """End all runners, with an orderly shutdown of idle engines unless `at_once`, and release all
        hardware. Shared slots end only with `at_once`."""
        import ray

        self.closing = True
        if self._shared is not None and not at_once:
            return  # the next search uses them
        named = await self._threads.run(ray.util.list_named_actors, all_namespaces=True)
        found = {slot for entry in named if (slot := slot_of(self._slots, entry["name"])) is not None}
        await asyncio.gather(*(self._close(slot, at_once=at_once) for slot in found | set(self._runners)))
        await self._placement.release_all()

    async def _close(self, slot: int, *, at_once: bool) -> None:
        runner = self._runners.get(slot)
        if runner is not None and not at_once:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(runner.close.remote(), _CLOSE_S)
        await self._threads.run(end_actor, runner_name(self._slots, slot))
