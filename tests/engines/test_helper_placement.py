"""Helpers of a slot are asked for on the slot's own nodes: VeRL's and TransferQueue's own functions, with
actors that never start."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from llmzero_ray.engines.verl import patches
from llmzero_ray.engines.verl.helper_placement import place_helpers_on, place_queue_on

interface = pytest.importorskip("transfer_queue.interface")

HEAD, MINE, OTHER, ALSO = (f"{i}" * 56 for i in range(4))


class Asked:
    """Stands for an actor class of Ray; keeps on which node each actor was asked for, None: on any."""

    def __init__(self) -> None:
        self.nodes: list[str | None] = []
        self.namespaces: list[str | None] = []

    def options(self, *, scheduling_strategy: Any = None, **options: Any) -> Asked:
        self.nodes.append(None if scheduling_strategy is None else scheduling_strategy.node_id)
        self.namespaces.append(options.get("namespace"))
        return self

    def remote(self, *_: Any, **__: Any) -> Any:
        """Start nothing."""


@pytest.fixture(autouse=True)
def four_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    import transfer_queue.utils.common as common
    import verl.experimental.agent_loop.agent_loop as agent_loop
    import verl.experimental.reward_loop.reward_loop as reward_loop
    import verl.workers.rollout.router as router

    for module in (agent_loop, reward_loop, router, common):
        monkeypatch.setattr(module, "ray", ray)  # put back afterwards
    nodes = [{"NodeID": node, "Alive": True, "Resources": {"CPU": 8.0}} for node in (HEAD, MINE, OTHER, ALSO)]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)


def asked_of_workers() -> tuple[list[str | None], list[str | None]]:
    import verl.experimental.agent_loop.agent_loop as agent_loop
    import verl.experimental.reward_loop.reward_loop as reward_loop

    agents, rewards = Asked(), Asked()
    rollout = SimpleNamespace(agent=SimpleNamespace(num_workers=4))
    loop = SimpleNamespace(rollout_config=rollout, agent_loop_workers_class=agents, config=None)
    loop.llm_client = loop.teacher_client = loop.reward_loop_worker_handles = None
    asyncio.run(agent_loop.AgentLoopManager._init_agent_loop_workers(loop))
    reward = SimpleNamespace(reward=SimpleNamespace(num_workers=4))
    manager = SimpleNamespace(config=reward, reward_loop_workers_class=rewards, reward_router_address=None)
    reward_loop.RewardLoopManager._init_reward_loop_workers(manager)
    return agents.nodes, rewards.nodes


def test_agent_loop_and_reward_workers_stay_on_the_nodes_of_their_slot() -> None:
    assert asked_of_workers() == ([HEAD, MINE, OTHER, ALSO],) * 2  # as VeRL does it
    place_helpers_on({MINE, ALSO})
    assert asked_of_workers() == ([MINE, ALSO, MINE, ALSO],) * 2


def test_the_load_balancer_stays_on_a_node_of_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.workers.rollout.router import get_router_handle

    balancer = Asked()
    monkeypatch.setattr(ray, "remote", lambda _: balancer)
    get_router_handle(servers={})
    assert balancer.nodes == []  # as VeRL does it: Ray chooses
    place_helpers_on({MINE, ALSO})
    get_router_handle(servers={})
    assert balancer.nodes == [MINE]


def test_the_queue_stays_on_the_nodes_of_its_slot_under_the_slots_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import transfer_queue.utils.common as common

    def units() -> list[str]:
        return [found.node_id for found in common.get_node_round_robin_scheduling_strategies(3)]

    controller = Asked()
    monkeypatch.setattr(interface, "TransferQueueController", controller)
    monkeypatch.setattr(interface, "ray", ray)
    assert units() == [HEAD, MINE, OTHER]  # as the package does it
    patches.patch_transfer_queue_namespace("slot-queue")
    place_queue_on({MINE, ALSO})
    patches.patch_transfer_queue_namespace("slot-queue")  # once more with the import of VeRL
    interface.TransferQueueController.options(name="TransferQueueController", namespace="transfer_queue")
    assert (controller.nodes, controller.namespaces) == ([MINE], ["slot-queue"])
    assert units() == [MINE, ALSO, MINE]
