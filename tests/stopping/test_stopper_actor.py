"""The stopper's loop over one phase, on a runner and a post office of the test: who is asked, and when."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.runner_pool import RunnerPool
from actors.stopper import StopperActor
from actors.stopper_client import StopperClient
from llmzero_ray.config import StopperSettings
from llmzero_ray.errors import StorageError
from llmzero_ray.records import MetricPoint, StopDecision
from llmzero_ray.records.agents import StopRequest
from llmzero_ray.records.events import SettingsChanged, VerdictPosted
from llmzero_ray.records.metrics import Curves
from llmzero_ray.stopping.policy import StoppingPolicy
from llmzero_ray.storage import SearchStorage
from tests.agents import curves as c
from tests.builders import Driver, make_config
from tests.stopping.reports import sound
from tests.stopping.test_policy import INCUMBENT
from tests.waiting import PATIENCE_S

VIEW = c.node(Curves(), node=1, n_steps=60, status="pending")


class Runner:
    """Publishes what the test gives it, as an actor's handle."""

    def __init__(self) -> None:
        self.points: list[MetricPoint] = []
        self.over = False
        self.wanted, self.reached = 10**9, asyncio.Event()
        self.poll = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._poll))

    async def _poll(
        self, node: int, attempt: int, cursor: int, gather_s: float
    ) -> tuple[tuple[MetricPoint, ...], bool]:
        if cursor >= self.wanted:
            self.reached.set()
        await asyncio.sleep(0.001)
        points = tuple(self.points[cursor:])
        return points, self.over and not points

    def publish(self, *points: MetricPoint) -> None:
        self.points += points


class Thinker:
    """An agent that returns when a test lets it."""

    def __init__(self, stop: bool) -> None:
        self.asked, self.may_answer = threading.Event(), threading.Event()
        self._stop = stop

    def judge(self, request: StopRequest) -> StopDecision:
        self.asked.set()
        assert self.may_answer.wait(PATIENCE_S)
        return StopDecision(stop=self._stop, reason="thought", rule="early_stopper")


class Posts:
    def __init__(self) -> None:
        self.verdicts: list[VerdictPosted] = []
        self.came = asyncio.Event()

    async def deliver(self, runner: Any, verdict: VerdictPosted) -> None:
        self.verdicts.append(verdict)
        self.came.set()


class Watching:
    """A stopper that watches one phase."""

    def __init__(self, agent: Thinker, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        context = SimpleNamespace(was_current_actor_reconstructed=False)
        monkeypatch.setattr("ray.get_runtime_context", lambda: context)
        self.agent, self.runner, self.posts = agent, Runner(), Posts()
        config = make_config(storage=str(path))
        (path / config.name / "logs").mkdir(parents=True)
        self.actor = StopperActor(config.to_json(), str(path), 100, {})
        self.actor._policy = StoppingPolicy(StopperSettings(interval_steps=5, min_steps=10), agent)
        self.actor._verdicts = self.posts  # type: ignore[assignment]

    def train(self, rest: Callable[[], Awaitable[None]]) -> None:
        """Twelve steps, at the last of which the agent is asked; then `rest`, until the watch has ended."""

        async def scene() -> None:
            await self.actor.set_incumbent((INCUMBENT,), 0.0)
            await self.actor.watch(0, self.runner, 2, VIEW, c.TASK, 0.0)
            watch = self.actor._watches[0]
            self.runner.publish(*sound(12))
            await asyncio.to_thread(self.agent.asked.wait, PATIENCE_S)
            await rest()
            await watch
            self.agent.may_answer.set()

        asyncio.run(asyncio.wait_for(scene(), PATIENCE_S))

    async def until_read(self, n: int) -> None:
        self.runner.wanted = n
        await self.runner.reached.wait()


def broken(step: int) -> MetricPoint:
    return dataclasses.replace(sound(step)[-1], metrics={"actor/pg_loss": math.nan})


def test_a_rule_ends_a_phase_while_the_agent_still_thinks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    watching = Watching(Thinker(stop=False), monkeypatch, tmp_path)

    async def rest() -> None:
        watching.runner.publish(broken(13))

    watching.train(rest)
    (verdict,) = watching.posts.verdicts
    assert (verdict.decision.rule, verdict.step, verdict.phase_attempt) == ("non_finite", 13, 2)
    assert (verdict.source, verdict.sequence) == ("stopper:1", 13)


def test_the_agents_verdict_is_of_the_step_it_saw_and_ends_the_watch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    agent = Thinker(stop=True)
    watching = Watching(agent, monkeypatch, tmp_path)

    async def rest() -> None:
        watching.runner.publish(*sound(30)[13:])
        await watching.until_read(31)
        agent.may_answer.set()

    watching.train(rest)
    (verdict,) = watching.posts.verdicts
    assert (verdict.decision.reason, verdict.step) == ("thought", 12)
    assert list((tmp_path / "demo" / "nodes" / "0001" / "agents").glob("early_stopper-000012.json"))


def test_a_phase_that_ends_by_itself_is_watched_to_its_last_judgement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    agent = Thinker(stop=False)
    watching = Watching(agent, monkeypatch, tmp_path)

    async def rest() -> None:
        watching.runner.over = True
        agent.may_answer.set()

    watching.train(rest)
    assert [verdict.decision.stop for verdict in watching.posts.verdicts] == [False]


def test_a_full_disk_keeps_no_verdict_back_and_ends_no_watch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    agent = Thinker(stop=False)
    watching = Watching(agent, monkeypatch, tmp_path)

    def full(*_: object) -> None:
        raise StorageError("no space left on device")

    monkeypatch.setattr(watching.actor._storage, "write_agent_record", full)

    async def rest() -> None:
        agent.may_answer.set()
        await watching.posts.came.wait()
        watching.runner.publish(broken(13))

    watching.train(rest)
    assert [verdict.decision.stop for verdict in watching.posts.verdicts] == [False, True]
    assert "step=13 the judgement could not be kept: no space left" in (
        tmp_path / "demo" / "logs" / "stopper.log"
    ).read_text(encoding="utf-8")


def test_calls_that_ray_delivers_late_change_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    watching = Watching(Thinker(stop=False), monkeypatch, tmp_path)
    watching.agent.may_answer.set()
    actor = watching.actor

    async def late() -> None:
        watch = actor._watches[0]
        await actor.watch(0, watching.runner, 1, VIEW, c.TASK, -1.0)
        await actor.set_incumbent((), -1.0)
        assert actor._watches[0] is watch and actor._incumbent is INCUMBENT
        watching.runner.over = True

    watching.train(late)


def test_the_agent_is_told_what_was_left_and_how_others_ended_when_the_phase_began(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    search = Driver(make_config(budget={"runs": 4, "compute": 1000.0}))
    search.ready()
    search.train(0, score=0.25)
    search.propose(1)
    search.start(1)
    sent: list[tuple[Any, ...]] = []
    handle = SimpleNamespace(watch=SimpleNamespace(remote=lambda *given: sent.append(given)))
    pool = RunnerPool("demo", str(tmp_path), make_config, fixed_capacity=False)
    pool._runners[0] = Runner()
    StopperClient(search.core, SearchStorage(str(tmp_path), "demo"), handle, pool).watch(0, 1, 0)
    ((*_, budget, ended),) = sent
    assert (budget.compute.amount, budget.whole_compute, budget.runs) == (1000.0, 1000.0, 2)
    assert [(view.node, view.score, view.curves) for view in ended] == [(0, 0.25, Curves())]

    watching = Watching(Thinker(stop=False), monkeypatch, tmp_path / "stopper")
    watching.agent.may_answer.set()
    running = dataclasses.replace(VIEW, curves=Curves(steps=(1,)))
    facts = {"task": c.TASK, "budget": budget, "ended": ended}
    request, _ = watching.actor._decide(running, (INCUMBENT,), (), facts)
    assert (request.task, request.budget, request.ended) == (c.TASK, budget, ended)


def test_a_changed_budget_changes_what_a_stop_saves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    search, sent = Driver(make_config(budget={"runs": 4})), list[dict[str, Any]]()
    search.ready()
    handle = SimpleNamespace(use_settings=SimpleNamespace(remote=sent.append))
    pool = RunnerPool("demo", str(tmp_path), make_config, fixed_capacity=False)
    client = StopperClient(search.core, SearchStorage(str(tmp_path), "demo"), handle, pool)
    watching = Watching(Thinker(stop=False), monkeypatch, tmp_path / "stopper")
    used: list[float | None] = []
    watching.agent.use_settings = lambda agents: used.append(agents.deadline_s)  # type: ignore[attr-defined]
    running, facts = dataclasses.replace(VIEW, curves=Curves(steps=(1,))), {"task": c.TASK}

    def share() -> float | None:
        client.use_settings()
        asyncio.run(watching.actor.use_settings(sent[-1]))
        request, _ = watching.actor._decide(running, (INCUMBENT,), (), facts)
        assert request.saves is not None
        return request.saves.share

    watching.agent.may_answer.set()
    before = share()
    search.post(SettingsChanged(changes={"budget.runs": 8, "agents.deadline_s": 7.0}, before={}))
    assert before is not None
    assert share() == pytest.approx(before / 2, abs=1e-4)
    assert used == [None, 7.0]
