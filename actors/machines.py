"""Resources of the cluster's machines, in total and free.

Not here: reserving (placement.py).
"""

from __future__ import annotations

from collections.abc import Collection

from llmzero_ray.capacity import Machine


def cluster_machines(without: Collection[str] = ()) -> tuple[Machine, ...]:
    """The machines that are up now, with everything they have; `without` are ids of nodes that do not
    count."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in without]
    found = [(node["NodeManagerAddress"], node["Resources"]) for node in alive]
    return tuple(
        Machine(address=address, cpus=has.get("CPU", 0.0), gpus=has.get("GPU", 0.0)) for address, has in found
    )


def free_cpus() -> float:
    """CPUs that nothing has reserved, over the whole cluster."""
    import ray

    return float(ray.available_resources().get("CPU", 0.0))
