"""The way of a verdict to a coordinator that is there, was replaced, or is away; with handles of the test."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray.exceptions

from actors import stopper
from actors.stopper import VerdictDelivery
from llmzero_ray.records import StopDecision
from llmzero_ray.records.events import VerdictPosted
from tests.waiting import PATIENCE_S


class Coordinator:
    """A handle of one that may have died."""

    def __init__(self) -> None:
        self.alive = True
        self.received: list[VerdictPosted] = []
        self.post = SimpleNamespace(remote=self._post)

    async def _post(self, verdict: VerdictPosted) -> None:
        if not self.alive:
            raise ray.exceptions.RayActorError
        self.received.append(verdict)


class Runner:
    """A runner's handle that records stops."""

    def __init__(self) -> None:
        self.received: list[tuple[int, int, str]] = []
        self.stopped = asyncio.Event()
        self.stop = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._stop))

    async def _stop(self, node: int, attempt: int, reason: str) -> None:
        self.received.append((node, attempt, reason))
        self.stopped.set()


class Names:
    """What is looked up under the coordinator's name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.coordinator: Coordinator | None = None
        self.n_looked, self.away_for = 0, 0
        monkeypatch.setattr(stopper, "find_actor", self._find)

    def _find(self, name: str) -> Coordinator:
        self.n_looked += 1
        if self.coordinator is None or self.n_looked <= self.away_for:
            raise ValueError(name)
        return self.coordinator


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


def verdict(step: int, *, hard: bool = False) -> VerdictPosted:
    return VerdictPosted(
        node=3,
        phase_attempt=1,
        step=step,
        decision=StopDecision(stop=True, reason="loss is NaN", rule="non_finite", hard=hard),
        source="stopper:3",
        attempt=1,
        sequence=step,
    )


def run(scene: Any) -> None:
    asyncio.run(asyncio.wait_for(scene, PATIENCE_S))


def test_the_coordinator_is_looked_up_once(names: Names) -> None:
    names.coordinator = Coordinator()
    way, runner = VerdictDelivery(Path("demo")), Runner()

    async def scene() -> None:
        await way.deliver(runner, verdict(1))
        await way.deliver(runner, verdict(2, hard=True))

    run(scene())
    assert [v.step for v in names.coordinator.received] == [1, 2]
    assert (names.n_looked, runner.received) == (1, [])


def test_a_replacement_receives_the_verdict_at_once(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopper, "_RETRY_S", 3600.0)
    first = names.coordinator = Coordinator()
    way, runner = VerdictDelivery(Path("demo")), Runner()

    async def scene() -> None:
        await way.deliver(runner, verdict(1))
        first.alive = False
        names.coordinator = Coordinator()
        await way.deliver(runner, verdict(2))

    run(scene())
    assert [v.step for v in first.received] == [1]
    assert [v.step for v in names.coordinator.received] == [2]


def test_a_hard_stop_does_not_wait_for_a_coordinator_and_is_still_posted_to_it(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopper, "_HARD_S", 0.05)
    monkeypatch.setattr(stopper, "_RETRY_S", 0.01)
    way, runner, back = VerdictDelivery(Path("demo")), Runner(), Coordinator()

    async def scene() -> None:
        delivering = asyncio.create_task(way.deliver(runner, verdict(7, hard=True)))
        await runner.stopped.wait()
        assert not delivering.done()
        names.coordinator = back
        await delivering

    run(scene())
    assert runner.received == [(3, 1, "verdict: non_finite: loss is NaN")]
    assert [v.step for v in back.received] == [7]


def test_a_soft_stop_waits_for_the_coordinator(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopper, "_HARD_S", 0.0)
    monkeypatch.setattr(stopper, "_RETRY_S", 0.01)
    names.coordinator, names.away_for = Coordinator(), 3
    runner = Runner()
    run(VerdictDelivery(Path("demo")).deliver(runner, verdict(7)))
    assert (runner.received, [v.step for v in names.coordinator.received]) == ([], [7])
    assert names.n_looked == 4
