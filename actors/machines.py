"""Total and free resources of the cluster's machines."""

from __future__ import annotations

from collections.abc import Collection

from llmzero_ray.engines.capacity import Machine

_GROUP = "ray.io/node-group"


def cluster_machines(without: Collection[str] = ()) -> tuple[Machine, ...]:
    """Live machines with all their resources, except those with node ids in `without`."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in without]
    found = [(node["NodeManagerAddress"], node["Resources"]) for node in alive]
    return tuple(
        Machine(address=address, cpus=has.get("CPU", 0.0), gpus=has.get("GPU", 0.0)) for address, has in found
    )


def may_grow() -> bool:
    """Whether the cluster may add machines on demand. `ray up` and KubeRay name the group of each machine
    that they start; `ray start` does not."""
    import ray

    return any(_GROUP in node["Labels"] for node in ray.nodes() if node["Alive"])


def free_cpus() -> float:
    """Unreserved CPUs of the whole cluster."""
    import ray

    return float(ray.available_resources().get("CPU", 0.0))
