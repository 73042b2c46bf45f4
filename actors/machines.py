"""Resources of the cluster's machines, in total and free.

Not here: reserving (placement.py).
"""

from __future__ import annotations

from llmzero_ray.capacity import Machine


def cluster_machines() -> tuple[Machine, ...]:
    """The machines that are up now, with everything they have."""
    import ray

    found = [(node["NodeManagerAddress"], node["Resources"]) for node in ray.nodes() if node["Alive"]]
    return tuple(
        Machine(address=address, cpus=has.get("CPU", 0.0), gpus=has.get("GPU", 0.0)) for address, has in found
    )


def free_cpus() -> float:
    """CPUs that nothing has reserved, over the whole cluster."""
    import ray

    return float(ray.available_resources().get("CPU", 0.0))
