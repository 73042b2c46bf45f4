"""Reserved slots on a private local Ray, for benchmarks that drive engines without the project's actors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llmzero_ray.engines.base import Slot


@contextmanager
def local_slot(search: str, cpus_per_gpu: int = 3) -> Iterator[Slot]:
    """A slot of one logical GPU on a private Ray that ends with the block."""
    with local_slots(search, 1, cpus_per_gpu, store_bytes=None) as (slot,):
        yield slot


@contextmanager
def local_slots(
    search: str, count: int, cpus_per_gpu: int = 3, *, store_bytes: int | None = 300_000_000
) -> Iterator[tuple[Slot, ...]]:
    """`count` slots of one logical GPU each on a private Ray that ends with the block. `store_bytes` limits
    its object store; None leaves the size to Ray."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray

    ray.init(
        address="local",
        num_cpus=20 * count,
        num_gpus=count,
        include_dashboard=False,
        object_store_memory=store_bytes,
        log_to_driver=False,
    )
    try:
        bundles = [{"GPU": 1, "CPU": cpus_per_gpu}]
        groups = [ray.util.placement_group(bundles, strategy="STRICT_PACK") for _ in range(count)]
        ray.get([group.ready() for group in groups], timeout=60)
        yield tuple(
            Slot(
                search=search,
                index=index,
                placement_groups=(group.id.hex(),),
                gpus_per_node=1,
                cpus_per_gpu=cpus_per_gpu,
            )
            for index, group in enumerate(groups)
        )
    finally:
        ray.shutdown()


def small_phase(name: str) -> dict[str, Any]:
    """The configuration of a small phase on the CPU."""
    return {
        "name": name,
        "engine": {"max_prompt_length": 32, "max_response_length": 16, "platform": "cpu"},
        "eval": {"max_response_length": 8},
        "root": {"overrides": {"batch": 8, "n": 8, "resp": 8, "lr": 1e-3}},
    }
