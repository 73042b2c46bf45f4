"""Runners of a search's slots: started on reserved hardware, found again by name, closed at the end.

A search has slots of its own by default. `llmzero compare` and Ray Tune instead hold slots that their
searches or trials use in turn. Each one takes over the runner of the previous one, whose engine is warm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from typing import Any

from llmzero_ray.config import SearchConfig
from llmzero_ray.engines.base import Slot
from llmzero_ray.storage import SearchStorage

from .names import actor_options, end_actor, find_actor, name_on_cluster, runner_name, slot_of
from .placement import Placement, check_fixed_capacity, group_of
from .runner import PhaseRunner
from .threads import Threads

logger = logging.getLogger("llmzero_ray.actors.runner_pool")
_CTL_THREADS = 4
_SLOT_THREADS = 64
"""Maximum threads. Each one waits a few seconds at most, while a slot's old runner ends."""
_CLOSE_S = 60.0
"""Seconds allowed for an engine's orderly shutdown before its runner is killed."""

HELD_SLOTS_ENV = "LLMZERO_HELD_SLOTS"
"""Environment variable of a command: the name of the slots that another process holds for its search."""


class RunnerPool:
    """The runners of one search, by slot. `settings` returns the current configuration.

    `storage` is the parent of the search's directory. With `fixed_capacity`, the cluster never adds machines.
    `avoided` returns the current ids of nodes on which a GPU failed. `held_slots` is the name of slots that
    another process holds for this search; by default the search has its own. A `holder` holds slots named
    `search` for others. Their hardware is released when the holder's process ends.
    """

    def __init__(
        self,
        search: str,
        storage: str,
        settings: Callable[[], SearchConfig],
        *,
        fixed_capacity: bool,
        avoided: Callable[[], Collection[str]] = frozenset,
        held_slots: str | None = None,
        holder: bool = False,
    ) -> None:
        self._search, self._storage, self._settings = search, storage, settings
        self._fixed_capacity = fixed_capacity
        self._threads = Threads("slots", _SLOT_THREADS)
        self._held = held_slots is not None
        own = search if holder else name_on_cluster(SearchStorage(storage, search).paths.root)
        self._slots = held_slots or own
        """Name of the slots."""
        detached = not (self._held or holder)
        self._placement = Placement(self._slots, self._threads, avoided, detached=detached)
        self._runners: dict[int, Any] = {}
        self.closing = False
        """Whether the runners are being closed, so that lost ones are not replaced."""

    async def reserve(self, slots: Collection[int] | None = None) -> bool:
        """Reserve the hardware of all slots (or of `slots`), or find existing reservations. Returns False if
        the pool was closed meanwhile.

        Raises:
            CapacityError: the cluster does not have it.
        """
        if self._held:
            return True
        config = self._settings()
        if self._fixed_capacity:
            await self._threads.run(check_fixed_capacity, config)
        return await self._placement.reserve_all(config, slots)

    def has_runner(self, slot: int) -> bool:
        """Whether the slot has a runner that is not being closed."""
        return slot in self._runners

    def runner(self, slot: int) -> Any:
        """Runner of the slot. Calls to it fail if it has died."""
        return self._runners[slot]

    async def find(self, slot: int) -> bool:
        """Whether the slot's runner still answers and serves this search. If so, the pool uses it again."""
        runner, health = await self._answering(slot)
        if health.get("search") != self._search:
            return False
        self._runners[slot] = runner
        return True

    async def health(self, slot: int) -> dict[str, Any]:
        """Health report of the slot's runner. It also answers while it trains."""
        return await _health(self.runner(slot))

    async def start(self, slot: int) -> bool:
        """Start a new runner on the slot's hardware, after killing an old one, and wait until it answers. An
        idle runner of a held slot is taken over instead.

        Returns False if the hardware is no longer wanted, because the pool is closing or now has fewer slots.

        Raises:
            CapacityError: the hardware is missing and does not become available in time.
            RayError: the runner died before it answered.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        config, name = self._settings(), runner_name(self._slots, slot)
        if self._held and slot not in self._runners and await self._took_over(slot):
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
        options = actor_options(name, max_restarts=0, max_task_retries=0, scheduling_strategy=place)
        self._runners[slot] = wrapped.options(**options).remote(config.to_json(), self._storage, description)
        health = await self.health(slot)
        logger.info("slot=%d runner started: process %d", slot, health["pid"])
        return True

    async def _took_over(self, slot: int) -> bool:
        """Take over the idle runner of a held slot. Returns False if there is none, or if it still trains a
        phase of a previous user."""
        import ray

        runner, health = await self._answering(slot)
        if runner is None or health["current"] is not None:
            return False
        try:
            await runner.use.remote(self._settings().to_json(), self._storage)
        except ray.exceptions.RayError:
            return False
        self._runners[slot] = runner
        logger.info("slot=%d runner taken over from %s", slot, health["search"])
        return True

    async def _answering(self, slot: int) -> tuple[Any, dict[str, Any]]:
        """The slot's runner, whoever started it, and its health report. (None, {}) if none answers."""
        import ray

        try:
            runner = await self._threads.run(find_actor, runner_name(self._slots, slot))
            return runner, await _health(runner)
        except (ValueError, ray.exceptions.RayError):
            return None, {}

    def kill(self, slot: int) -> None:
        """End a runner at once. Its unanswered calls fail."""
        import ray

        ray.kill(self.runner(slot))

    async def avoidable_machine_of(self, slot: int) -> str | None:
        """Id of the slot's node if the search can do without it, otherwise None."""
        return await self._placement.avoidable_machine_of(self._settings(), slot)

    async def stop_waiting(self, slot: int) -> None:
        """Stop waiting for the hardware of a slot."""
        if not self._held:
            await self._placement.cancel(slot)

    async def close(self, slot: int) -> None:
        """Shut down an idle slot's runner and release its hardware. The runner of a held slot keeps running
        for its next user."""
        self._runners.pop(slot, None)
        if not self._held:
            await self._close(slot, at_once=False)
            await self._placement.release(slot)

    async def close_all(self, *, at_once: bool) -> None:
        """End all runners and release all hardware. Idle engines are shut down in order unless `at_once`.
        Held slots keep their hardware, and their runners unless `at_once`."""
        import ray

        self.closing = True
        if self._held and not at_once:
            return
        named = await self._threads.run(ray.util.list_named_actors, all_namespaces=True)
        found = {slot for entry in named if (slot := slot_of(self._slots, entry["name"])) is not None}
        await asyncio.gather(*(self._close(slot, at_once=at_once) for slot in found))
        if not self._held:
            await self._placement.release_all()

    async def _close(self, slot: int, *, at_once: bool) -> None:
        name = runner_name(self._slots, slot)
        if not at_once:
            with contextlib.suppress(Exception):
                runner = await self._threads.run(find_actor, name)
                await asyncio.wait_for(runner.close.remote(), _CLOSE_S)
        await self._threads.run(end_actor, name)


async def _health(runner: Any) -> dict[str, Any]:
    found: dict[str, Any] = await runner.health.options(concurrency_group="ctl").remote()
    return found
