"""A private local Ray with one reserved slot, for benchmarks that drive an engine without actors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from llmzero_ray.engines.base import Slot


@contextmanager
def local_slot(search: str, cpus_per_gpu: int = 3) -> Iterator[Slot]:
    """One logical GPU on a private Ray that ends with the block."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray

    ray.init(address="local", num_cpus=16, num_gpus=1, include_dashboard=False, log_to_driver=False)
    try:
        group = ray.util.placement_group([{"GPU": 1, "CPU": cpus_per_gpu}], strategy="STRICT_PACK")
        ray.get(group.ready(), timeout=60)
        yield Slot(
            search=search,
            index=0,
            placement_groups=(group.id.hex(),),
            gpus_per_node=1,
            cpus_per_gpu=cpus_per_gpu,
        )
    finally:
        ray.shutdown()
