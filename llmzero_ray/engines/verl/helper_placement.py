"""Makes VeRL start the helper processes of a slot's workers on the slot's own nodes.

VeRL spreads agent-loop workers, reward workers and the units of its TransferQueue over all nodes of the
cluster, and leaves the placement of its load balancer and the queue's controller to Ray. The loss of any node
would then end the phases of all slots, and the nodes of a released slot would never become idle.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any


def nodes_of(groups: Sequence[Any]) -> frozenset[str]:
    """Ids (hex) of the nodes on which these placement groups have bundles."""
    from ray.util.placement_group import placement_group_table

    tables = [placement_group_table(group) for group in groups]
    return frozenset(node for table in tables for node in table["bundles_to_node_id"].values())


def place_queue_on(node_ids: Collection[str]) -> None:
    """Make the TransferQueue start its storage units only on these nodes (Ray's hex ids), and its controller
    on one of them."""
    import transfer_queue.interface as interface
    import transfer_queue.utils.common as common

    common.ray = _RayOf(node_ids)
    interface.TransferQueueController = _PlacedClass(interface.TransferQueueController, node_ids)


def place_helpers_on(node_ids: Collection[str]) -> None:
    """Make VeRL start agent-loop and reward workers only on these nodes (Ray's hex ids), and its load
    balancer on one of them."""
    import verl.experimental.agent_loop.agent_loop as agent_loop
    import verl.experimental.reward_loop.reward_loop as reward_loop
    import verl.workers.rollout.router as router

    agent_loop.ray = reward_loop.ray = _RayOf(node_ids)
    router.ray = _RayOf(node_ids, place_actors=True)


class _RayOf:
    """Proxy of the module `ray` that only knows these nodes. With `place_actors`, actors started through it
    run on one of them."""

    def __init__(self, node_ids: Collection[str], *, place_actors: bool = False) -> None:
        self._node_ids, self._place_actors = node_ids, place_actors

    def __getattr__(self, name: str) -> Any:
        import ray

        return getattr(ray, name)

    def nodes(self) -> list[dict[str, Any]]:
        import ray

        return [node for node in ray.nodes() if node["NodeID"] in self._node_ids]

    def remote(self, *args: Any, **options: Any) -> Any:
        import ray

        made = ray.remote(*args, **options)
        return made.options(scheduling_strategy=_on_one(self._node_ids)) if self._place_actors else made


class _PlacedClass:
    """Proxy of a Ray actor class whose actors start on one of these nodes."""

    def __init__(self, actor_class: Any, node_ids: Collection[str]) -> None:
        self._class, self._node_ids = actor_class, node_ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self._class, name)

    def options(self, **options: Any) -> Any:
        return self._class.options(**options, scheduling_strategy=_on_one(self._node_ids))


def _on_one(node_ids: Collection[str]) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=min(node_ids), soft=False)
