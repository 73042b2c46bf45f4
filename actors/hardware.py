"""Hardware of the slots: reserved as placement groups, or refused with the numbers.

One STRICT_PACK group per machine of a slot, one bundle per GPU. Groups are detached and named, so that a
restarted coordinator finds them. Not here: who runs on them (slots.py), the arithmetic
(llmzero_ray.capacity).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from llmzero_ray.capacity import asked_and_there, shortfall, side_cpus
from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import CapacityError

from .machines import cluster_machines, free_cpus
from .options import group_name

_LOOK_S = 1.0


def reserve_all(config: SearchConfig, *, private_head: bool) -> list[tuple[str, ...]]:
    """Ids (hex) of the placement groups of every slot, one per machine; those that are there are used again.

    Raises:
        CapacityError: the cluster did not give them within `slots.timeout_s`, or a private head, which cannot
        grow,
            does not have them; nothing stays reserved.
    """
    if private_head and shortfall(cluster_machines(), config):
        there = asked_and_there(cluster_machines(), config)
        raise CapacityError(f"this machine does not have what the slots need; {there}")
    deadline = time.monotonic() + config.slots.timeout_s
    try:
        for slot in range(
            config.slots.count
        ):  # all of them asked for at once: an autoscaler sees the whole demand
            _ask(config, slot, 0, beside=())
        found = [_reserved(config, slot, deadline) for slot in range(config.slots.count)]
        _check_side_cpus(config, deadline)
    except CapacityError:
        release_all(config)
        raise
    return found


def wait_for(config: SearchConfig, slot: int) -> tuple[str, ...]:
    """The groups of one slot once they are whole again, after a machine was lost.

    Raises:
        CapacityError: not within `slots.timeout_s`; they stay asked for.
    """
    return _reserved(config, slot, time.monotonic() + config.slots.timeout_s)


def release_all(config: SearchConfig, count: int | None = None) -> None:
    """Give the hardware of the first `count` slots back (None: of all that the configuration has)."""
    for slot in range(config.slots.count if count is None else count):
        release(config, slot)


def release(config: SearchConfig, slot: int) -> None:
    """Give the hardware of one slot back; groups that are not there are skipped."""
    from ray.util.placement_group import remove_placement_group

    for machine in range(config.slots.nodes):
        group = _existing(group_name(config.name, slot, machine))
        if group is not None:
            with contextlib.suppress(ValueError):
                remove_placement_group(group)


def group_of(group_id: str) -> Any:
    """The placement group of an id (hex)."""
    from ray._raylet import PlacementGroupID
    from ray.util.placement_group import PlacementGroup

    return PlacementGroup(PlacementGroupID(bytes.fromhex(group_id)))


def _reserved(config: SearchConfig, slot: int, deadline: float) -> tuple[str, ...]:
    """The groups of a slot, one machine after the other, each beside those before it."""
    from ray.util.placement_group import placement_group_table, remove_placement_group

    found: list[str] = []
    taken: list[str] = []
    for machine in range(config.slots.nodes):
        while True:
            group = _ask(config, slot, machine, beside=taken)
            if not group.wait(max(0.1, deadline - time.monotonic())):
                raise _refused(config)
            node = next(iter(placement_group_table(group)["bundles_to_node_id"].values()))
            if node not in taken:
                break
            remove_placement_group(group)  # a lost machine's group came to rest on another one's machine
        found.append(group.id.hex())
        taken.append(node)
    return tuple(found)


def _ask(config: SearchConfig, slot: int, machine: int, *, beside: Sequence[str]) -> Any:
    """The group of one machine of a slot, asked for unless it is there; not on the nodes `beside`."""
    from ray.util.placement_group import placement_group

    slots, name = config.slots, group_name(config.name, slot, machine)
    elsewhere = {"ray.io/node-id": f"!in({','.join(beside)})"} if beside else {}
    return _existing(name) or placement_group(
        [{"GPU": 1, "CPU": slots.cpus_per_gpu} for _ in range(slots.gpus_per_node)],
        strategy="STRICT_PACK",
        name=name,
        lifetime="detached",
        bundle_label_selector=[elsewhere] * slots.gpus_per_node if elsewhere else None,
    )


def _check_side_cpus(config: SearchConfig, deadline: float) -> None:
    """VeRL's processes beside the bundles need CPUs too; waiting for them later would look like a hang."""
    needed = config.slots.count * side_cpus(config)
    while (free := free_cpus()) < needed:
        if time.monotonic() > deadline:
            what = f"the slots fit, but only {free:g} CPUs are free beside them and VeRL needs {needed}"
            raise CapacityError(f"{what}; {asked_and_there(cluster_machines(), config)}")
        time.sleep(_LOOK_S)


def _refused(config: SearchConfig) -> CapacityError:
    waited = f"the cluster did not give the slots within {config.slots.timeout_s:g} s (slots.timeout_s)"
    return CapacityError(f"{waited}; {asked_and_there(cluster_machines(), config)}")


def _existing(name: str) -> Any:
    from ray.util import get_placement_group

    try:
        return get_placement_group(name)
    except ValueError:
        return None
