"""What is changed inside VeRL's libraries while they run, where it can be seen without starting them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from llmzero_ray.engines.verl import patches

interface = pytest.importorskip("transfer_queue.interface")


class Controller:
    """Stands for the queue's controller, an actor class of Ray."""

    asked: tuple[dict[str, Any], ...] = ()

    @classmethod
    def options(cls, **options: Any) -> str:
        cls.asked = (*cls.asked, options)
        return "actor"


@pytest.fixture
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.unfreeze()
    gc.set_threshold(*before)


def test_the_queue_is_patched_once_by_whoever_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "TransferQueueController", Controller)
    monkeypatch.setattr(interface, "ray", interface.ray)
    monkeypatch.setattr(Controller, "asked", ())
    patches.patch_transfer_queue_namespace("slot-queue")
    first = interface.TransferQueueController
    patches.patch_transfer_queue_namespace("slot-queue")
    assert interface.TransferQueueController is first
    first.options(name="TransferQueueController", namespace="transfer_queue")
    assert Controller.asked == ({"name": "TransferQueueController", "namespace": "slot-queue"},)


def test_garbage_is_collected_as_before_once_a_start_has_ended(thresholds: tuple[int, int, int]) -> None:
    patches.collect_garbage_rarely()
    assert gc.get_threshold()[0] > 10 * thresholds[0]
    patches.collect_garbage_as_usual()
    assert gc.get_threshold() == thresholds and gc.isenabled()
    assert gc.get_freeze_count() > 0


class Asked:
    """Stands for an actor class of Ray; keeps on which node each actor was asked for."""

    def __init__(self) -> None:
        self.nodes: list[str] = []

    def options(self, *, scheduling_strategy: Any, **_: Any) -> Asked:
        self.nodes.append(scheduling_strategy.node_id)
        return self

    def remote(self, *_: Any) -> None:
        """Start nothing."""


def test_agent_loop_and_reward_workers_stay_on_the_nodes_of_their_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray
    import verl.experimental.agent_loop.agent_loop as agent_loop
    import verl.experimental.reward_loop.reward_loop as reward_loop

    for module in (agent_loop, reward_loop):
        monkeypatch.setattr(module, "ray", ray)  # put back afterwards
    head, mine, other, also = (f"{i}" * 56 for i in range(4))
    alive = [{"NodeID": node, "Alive": True, "Resources": {"CPU": 8.0}} for node in (head, mine, other, also)]
    monkeypatch.setattr(ray, "nodes", lambda: alive)

    def asked() -> tuple[list[str], list[str]]:
        agents, rewards = Asked(), Asked()
        rollout = SimpleNamespace(agent=SimpleNamespace(num_workers=4))
        loop = SimpleNamespace(rollout_config=rollout, agent_loop_workers_class=agents, config=None)
        loop.llm_client = loop.teacher_client = loop.reward_loop_worker_handles = None
        asyncio.run(agent_loop.AgentLoopManager._init_agent_loop_workers(loop))
        reward = SimpleNamespace(reward=SimpleNamespace(num_workers=4))
        manager = SimpleNamespace(
            config=reward, reward_loop_workers_class=rewards, reward_router_address=None
        )
        reward_loop.RewardLoopManager._init_reward_loop_workers(manager)
        return agents.nodes, rewards.nodes

    assert asked() == ([head, mine, other, also],) * 2  # as VeRL does it
    patches.place_helpers_on({mine, also})
    assert asked() == ([mine, also, mine, also],) * 2
