"""Machines of the cluster, and Ray tasks pinned to each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llmzero_ray.errors import LlmzeroError

HERE = "this process"
"""Label of this process, in which probes run as well."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One live machine of the cluster."""

    id: str
    label: str
    """Address of the machine, with part of its id if several have the same address."""
    is_head: bool
    gpus: float


@dataclass(frozen=True, kw_only=True)
class NoResult:
    """Placeholder for the result of a node that returned none."""

    reason: str


def nodes_up() -> list[Node]:
    """Live nodes, the head first."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    addresses = [node["NodeManagerAddress"] for node in alive]
    found = [
        Node(
            id=node["NodeID"],
            label=address if addresses.count(address) == 1 else f"{address}/{node['NodeID'][:6]}",
            is_head="node:__internal_head__" in node["Resources"],
            gpus=node["Resources"].get("GPU", 0.0),
        )
        for node, address in zip(alive, addresses, strict=True)
    ]
    return sorted(found, key=lambda node: not node.is_head)


def run_on_nodes(
    nodes: Sequence[Node], function: Callable[..., Any], *given: Any, limit_s: float
) -> dict[str, Any | NoResult]:
    """Run `function` on all nodes in parallel, for at most `limit_s` seconds. Returns label -> result."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    refs = {}
    for node in nodes:
        place = NodeAffinitySchedulingStrategy(node.id, soft=False)
        task = ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=place)
        refs[node.label] = task.remote(*given)
    done, _ = ray.wait(list(refs.values()), num_returns=len(refs), timeout=limit_s)
    return {label: _answer(ref, ref in done, limit_s) for label, ref in refs.items()}


def _answer(ref: Any, is_done: bool, limit_s: float) -> Any | NoResult:
    import ray

    if not is_done:
        ray.cancel(ref, force=True)
        return NoResult(reason=f"no answer within {limit_s:g} s")
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        return NoResult(reason=str(cause) if isinstance(cause, LlmzeroError) else _last_line(cause))
    except ray.exceptions.RayError as error:
        return NoResult(reason=_last_line(error))


def _last_line(error: BaseException) -> str:
    """Last line of a message. Ray puts traces and paths before it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
