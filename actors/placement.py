"""Hardware of the slots: lists the machines' resources, and reserves and releases placement groups.

There is one STRICT_PACK group per machine of a slot and one bundle per GPU. Groups are detached and named, so
that a restarted coordinator finds them. Waiting is asynchronous: one poll of Ray's table serves all waiting
slots, and no thread blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from llmzero_ray.config import SearchConfig
from llmzero_ray.config.search_config import SlotsConfig
from llmzero_ray.engines.capacity import Machine, required_and_available, shortfall, side_cpus
from llmzero_ray.errors import CapacityError

from .names import group_name, slot_of_group
from .threads import Threads

_LOOK_S = 0.1
"""Seconds between two polls of the placement groups."""
_CPU_LOOK_S = 1.0
_WITHOUT = (
    " Nodes that are used no more because a card failed there: {}. Once it is replaced, `ray stop` and "
    "`ray start` on the machine give it another id."
)
_GROUP = "ray.io/node-group"


class Placement:
    """Placement groups of the slots with that name. `avoided` returns the ids (hex) of nodes on which a GPU
    failed. Unless `detached`, the groups are released when the process that reserved them ends."""

    def __init__(
        self,
        slots: str,
        threads: Threads | None = None,
        avoided: Callable[[], Collection[str]] = frozenset,
        *,
        detached: bool = True,
    ) -> None:
        self._slots, self._threads = slots, threads or Threads("slots")
        self._avoided, self._detached = avoided, detached
        self._asked: set[int] = set()
        """Slots whose hardware was requested and not released."""
        self._waiting: set[int] = set()
        self._changing = asyncio.Lock()
        """Lock held while groups are created or removed, so that none is created after its slot was
        released."""
        self._looking = asyncio.Lock()
        self._table: Mapping[str, Any] = {}
        self._looked = float("-inf")

    async def reserve_all(self, config: SearchConfig, slots: Collection[int] | None = None) -> bool:
        """Reserve the hardware of all slots (or of `slots`), or find existing reservations. Returns False if
        some was released meanwhile.

        Raises:
            CapacityError: it was not available within `slots.timeout_s`; nothing stays reserved.
        """
        deadline = time.monotonic() + config.slots.timeout_s
        slots = range(config.slots.count) if slots is None else slots
        try:
            self._asked.update(slots)
            found = await asyncio.gather(*(self._reserved(config, slot, deadline) for slot in slots))
            await self._wait_for_side_cpus(config, len(slots), deadline)
        except CapacityError:
            await self.release_all()
            raise
        return None not in found

    async def reserve(self, config: SearchConfig, slot: int) -> tuple[str, ...] | None:
        """Ids (hex) of the groups of one slot, one per machine, once all are created.

        None if the slot was released while it waited.

        Raises:
            CapacityError: they were not created within `slots.timeout_s`; they stay requested.
        """
        self._asked.add(slot)
        return await self._reserved(config, slot, time.monotonic() + config.slots.timeout_s)

    async def avoidable_machine_of(self, config: SearchConfig, slot: int) -> str | None:
        """Node id of a slot's machine, if the search can do without the machine.

        None if the slot has no hardware, if it has several machines (any of them may be faulty), or if the
        other live machines cannot hold all slots.
        """
        if config.slots.nodes > 1:
            return None
        node = await self._threads.run(_node_of_slot, self._slots, slot)
        if node is None:
            return None
        others = await self._threads.run(cluster_machines, {*self._avoided(), node})
        return None if shortfall(others, config) is not None else node

    async def _request(self, config: SearchConfig, slot: int, machine: int, taken: Sequence[str] = ()) -> Any:
        """Placement group for one machine of a slot, requested unless it exists. A new group is not placed on
        the nodes in `taken`."""
        beside = sorted({*taken, *self._avoided()})
        return await self._threads.run(
            _request_group,
            config.slots,
            group_name(self._slots, slot, machine),
            beside=beside,
            detached=self._detached,
        )

    async def cancel(self, slot: int) -> None:
        """Stop waiting for the hardware of one slot and release what is already created. No-op once it is
        fully reserved."""
        if slot in self._waiting:
            await self.release(slot)

    async def release(self, slot: int) -> None:
        """Release the hardware of one slot."""
        self._asked.discard(slot)
        async with self._changing:
            await self._threads.run(remove_groups, self._slots, slot)

    async def release_all(self) -> None:
        """Release all hardware of the slots."""
        self._asked.clear()
        async with self._changing:
            await self._threads.run(remove_groups, self._slots)

    async def _reserved(self, config: SearchConfig, slot: int, deadline: float) -> tuple[str, ...] | None:
        self._waiting.add(slot)
        try:
            return await self._one_by_one(config, slot, deadline)
        finally:
            self._waiting.discard(slot)

    async def _one_by_one(self, config: SearchConfig, slot: int, deadline: float) -> tuple[str, ...] | None:
        """Ids of a slot's groups, placed one by one so that each is on a machine of its own."""
        from ray.util.placement_group import remove_placement_group

        async with self._changing:  # all at once, so that an autoscaler sees the whole demand
            if slot not in self._asked:
                return None
            for machine in range(config.slots.nodes):
                await self._request(config, slot, machine)
        found: list[str] = []
        taken: list[str] = []
        for machine in range(config.slots.nodes):
            while True:
                async with self._changing:
                    if slot not in self._asked:
                        return None
                    group = await self._request(config, slot, machine, taken)
                node = await self._node_of(group, config, slot, deadline)
                if node is None:
                    return None
                if node not in taken and node not in self._avoided():
                    break
                # A GPU failed there, or a lost machine's group was placed on the machine of another group.
                await self._threads.run(remove_placement_group, group)
            found.append(group.id.hex())
            taken.append(node)
        return tuple(found)

    async def _node_of(self, group: Any, config: SearchConfig, slot: int, deadline: float) -> str | None:
        """Node on which a group was created. None if the slot was released meanwhile."""
        while slot in self._asked:
            entry = (await self._poll_table()).get(group.id.hex())
            if entry is not None and entry["state"] == "CREATED":
                return str(next(iter(entry["bundles_to_node_id"].values())))
            if time.monotonic() >= deadline:
                avoided = self._avoided()
                there = await self._threads.run(cluster_machines, avoided)
                waited = f"within {config.slots.timeout_s:g} s (slots.timeout_s)"
                raise CapacityError(
                    f"the cluster did not give the slots {waited}; {required_and_available(there, config)}"
                    + (_WITHOUT.format(", ".join(sorted(avoided))) if avoided else "")
                )
            await asyncio.sleep(_LOOK_S)
        return None

    async def _poll_table(self) -> Mapping[str, Any]:
        """Ray's table of placement groups by id (hex), at most `_LOOK_S` old."""
        from ray.util import placement_group_table

        async with self._looking:
            if time.monotonic() - self._looked >= _LOOK_S:
                self._table = await self._threads.run(placement_group_table)
                self._looked = time.monotonic()
        return self._table

    async def _wait_for_side_cpus(self, config: SearchConfig, n_slots: int, deadline: float) -> None:
        """Wait until CPUs are free for VeRL's processes outside the bundles. If VeRL itself waited for them,
        the phase would seem to hang."""
        needed = n_slots * side_cpus(config)
        while self._asked and (free := await self._threads.run(free_cpus)) < needed:
            if time.monotonic() > deadline:
                there = await self._threads.run(cluster_machines)
                what = f"the slots fit, but only {free:g} CPUs are free next to them and VeRL needs {needed}"
                raise CapacityError(f"{what}; {required_and_available(there, config)}")
            await asyncio.sleep(_CPU_LOOK_S)


def _node_of_slot(slots: str, slot: int) -> str | None:
    """Node (hex id) of a slot's first group, or None if no created group exists."""
    from ray.util import placement_group_table

    name = group_name(slots, slot, 0)
    for entry in placement_group_table().values():
        if entry["name"] == name and entry["state"] == "CREATED":
            return str(next(iter(entry["bundles_to_node_id"].values())))
    return None


def check_fixed_capacity(config: SearchConfig) -> None:
    """Check that a cluster of fixed size has the resources that the slots need.

    Raises:
        CapacityError: they do not, with the numbers.
    """
    machines = cluster_machines()
    if shortfall(machines, config):
        raise CapacityError(
            f"this machine does not have what the slots need; {required_and_available(machines, config)}"
        )


def remove_groups(slots: str, slot: int | None = None) -> None:
    """Remove the created and pending placement groups of the slots with that name, or of one of them."""
    from ray.util import placement_group_table
    from ray.util.placement_group import remove_placement_group

    for group_id, entry in placement_group_table().items():
        found = slot_of_group(slots, entry["name"])
        if found is not None and entry["state"] != "REMOVED" and slot in (None, found):
            with contextlib.suppress(ValueError):
                remove_placement_group(group_of(group_id))


def group_of(group_id: str) -> Any:
    """Placement group with that id (hex)."""
    import ray
    from ray.util.placement_group import PlacementGroup

    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group_id)))


def _request_group(slots: SlotsConfig, name: str, *, beside: Sequence[str], detached: bool) -> Any:
    """Placement group of that name, requested unless it exists. A new group is not placed on the nodes in
    `beside`."""
    from ray.util.placement_group import placement_group

    elsewhere = {"ray.io/node-id": f"!in({','.join(beside)})"} if beside else {}
    return _existing(name) or placement_group(
        [{"GPU": 1, "CPU": slots.cpus_per_gpu} for _ in range(slots.gpus_per_node)],
        strategy="STRICT_PACK",
        name=name,
        lifetime="detached" if detached else None,
        bundle_label_selector=[elsewhere] * slots.gpus_per_node if elsewhere else None,
    )


def _existing(name: str) -> Any:
    from ray.util import get_placement_group

    try:
        return get_placement_group(name)
    except ValueError:
        return None


def cluster_machines(without: Collection[str] = ()) -> tuple[Machine, ...]:
    """Live machines with their total resources, except those whose node ids are in `without`."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in without]
    found = [(node["NodeManagerAddress"], node["Resources"]) for node in alive]
    return tuple(
        Machine(address=address, cpus=has.get("CPU", 0.0), gpus=has.get("GPU", 0.0)) for address, has in found
    )


def may_grow() -> bool:
    """Whether the cluster may add machines on demand. `ray up` and KubeRay label each machine with its node
    group; `ray start` does not."""
    import ray

    return any(_GROUP in node["Labels"] for node in ray.nodes() if node["Alive"])


def free_cpus() -> float:
    """Unreserved CPUs of the whole cluster."""
    import ray

    return float(ray.available_resources().get("CPU", 0.0))
