"""Clock offsets of the cluster's machines."""

from __future__ import annotations

import time
from collections.abc import Sequence

from llmzero_ray.cli.doctor.probes import now
from llmzero_ray.launch.nodes import Node, NoResult, run_on_nodes

_TRIES = 3


def clock_offsets(nodes: Sequence[Node], *, limit_s: float) -> dict[str, tuple[float, float] | NoResult]:
    """Label -> seconds by which a node's clock is ahead of this one's, and the uncertainty of that.

    The one-way time is half of the shortest of a few round trips.
    """
    found: dict[str, tuple[float, float] | NoResult] = {}
    for node in nodes:
        tries = []
        for _ in range(_TRIES):
            began = time.time()
            there = run_on_nodes([node], now, limit_s=limit_s)[node.label]
            ended = time.time()
            if isinstance(there, NoResult):
                found[node.label] = there
                break
            tries.append((there - (began + ended) / 2, (ended - began) / 2))
        else:
            found[node.label] = min(tries, key=lambda offset: offset[1])
    return found
