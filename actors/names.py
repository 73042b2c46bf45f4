"""Names of actors and placement groups, shared actor options, and finding or ending an actor by name.

Names contain the search, a digest of its directory's path, and the slot, so that several searches can run on
one cluster, even if searches in two storages have the same name.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

from llmzero_ray.utils.files import text_digest

NAMESPACE = "llmzero"
logger = logging.getLogger("llmzero_ray.actors.names")
_LOOK_S = 0.05
_NAME_S = 10.0
"""Seconds to wait until the name of a killed actor is free again."""


def name_on_cluster(root: Path) -> str:
    """Name of the search in the directory `root` on a cluster, which is also the name of its own slots.

    Every process of a search gives the same path (`SearchStorage.recorded_root`). Links in it are not
    followed, because machines may see them differently.
    """
    path = os.path.abspath(root)
    return f"{os.path.basename(path)}-{text_digest(path)[:8]}"


def coordinator_name(root: Path) -> str:
    """Name of the coordinator actor of the search in a directory."""
    return f"coordinator-{name_on_cluster(root)}"


def stopper_name(root: Path) -> str:
    """Name of the stopper actor of the search in a directory."""
    return f"stopper-{name_on_cluster(root)}"


def runner_name(slots: str, slot: int) -> str:
    """Name of a slot's runner actor; `slots` is the name of the slots."""
    return f"runner-{slots}-slot{slot}"


def lease_name(slots: str, slot: int) -> str:
    """Name of the actor that exists while a trial of Ray Tune uses the slot."""
    return f"lease-{slots}-slot{slot}"


class Lease:
    """Actor that does nothing but mark a slot as used by a trial. The trial owns it, so Ray ends it together
    with the trial."""


def slot_of(slots: str, actor: str) -> int | None:
    """Slot of a runner, from its actor name. None for other actors and for runners of other slots."""
    head, _, slot = actor.rpartition("-slot")
    return int(slot) if head == f"runner-{slots}" and slot.isdigit() else None


def slot_of_group(slots: str, group: str) -> int | None:
    """Slot of a placement group, from its name. None for other groups."""
    head, _, machine = group.rpartition("-")
    start, _, slot = head.rpartition("-")
    return int(slot) if start == f"slot-{slots}" and slot.isdigit() and machine.isdigit() else None


def group_name(slots: str, slot: int, machine: int) -> str:
    """Name of the placement group that holds a slot's GPUs on one of its machines."""
    return f"slot-{slots}-{slot}-{machine}"


def actor_options(name: str, **more: Any) -> dict[str, Any]:
    """Options of a named, detached actor without a CPU reservation."""
    return {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "num_cpus": 0,
        "num_gpus": 0,
        **more,
    }


def restarting(name: str) -> dict[str, Any]:
    """Options of an actor that Ray restarts, and whose calls Ray retries, when its process dies. It runs on
    the head node, where the jobs' commands run and where keys of LLM services may be stored."""
    place = {"node:__internal_head__": 0.001}
    return actor_options(name, get_if_exists=True, max_restarts=-1, max_task_retries=-1, resources=place)


def find_actor(name: str) -> Any:
    """The actor of that name; blocks on Ray.

    Raises:
        ValueError: there is none.
    """
    import ray

    return ray.get_actor(name, namespace=NAMESPACE)


def is_there(name: str) -> bool:
    """Whether there is an actor of that name."""
    try:
        find_actor(name)
    except ValueError:
        return False
    return True


def end_actor(name: str, only: Any = None) -> bool:
    """Kill the actor of that name and wait until the name is free. Returns whether there was one. Blocks on
    Ray.

    With `only`, no other actor that has taken the name is killed.
    """
    import ray

    found, deadline = False, time.monotonic() + _NAME_S
    while time.monotonic() < deadline:
        try:
            actor = find_actor(name)
        except ValueError:
            return found
        if only is not None and actor != only:
            return found
        found = True
        ray.kill(actor)
        time.sleep(_LOOK_S)
    logger.warning("the name %s is still taken %.0f s after its actor was killed", name, _NAME_S)
    return found
