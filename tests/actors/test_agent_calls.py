"""Calls of agents take minutes: however many are under way, the coordinator's loop keeps its threads."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.agent_calls import AgentCalls
from llmzero_ray.errors import OutageError
from llmzero_ray.records import Event, ItemOutcome, MetricPoint, Proposal
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.agents import ProposalRequest
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import MetricWriter
from tests.builders import Driver, make_config, make_proposal, make_result
from tests.waiting import PATIENCE_S

N_CALLS = 64
"""More than asyncio's default pool has threads on any machine (32)."""


class Thinkers:
    """A proposer that answers once all of its calls are under way and it may."""

    def __init__(self) -> None:
        self.all_asked = threading.Barrier(N_CALLS + 1)
        self.may_answer = threading.Event()

    def propose(self, _: ProposalRequest) -> Proposal:
        self.all_asked.wait(PATIENCE_S)
        assert self.may_answer.wait(PATIENCE_S)
        return make_proposal()


def test_any_number_of_agents_may_think_while_the_journal_is_written(tmp_path: Path) -> None:
    config = make_config(
        slots={"count": N_CALLS}, budget={"runs": N_CALLS + 1}, search={"max_evolve_children": N_CALLS}
    )
    search, thinkers, posted = Driver(config), Thinkers(), list[Event]()
    search.ready(*range(N_CALLS))
    search.train(0)
    commands = [command for command in search.commands if isinstance(command, cmd.Propose)]
    agents: Any = SimpleNamespace(proposer=thinkers)

    async def post(event: Event) -> None:
        await asyncio.to_thread(posted.append, event)  # as the journal's file is written

    async def scene() -> None:
        calls = AgentCalls(search.core, post, SearchStorage(tmp_path, "demo"), agents)
        asked = [asyncio.create_task(calls.call(command)) for command in commands]
        await asyncio.get_running_loop().run_in_executor(None, thinkers.all_asked.wait, PATIENCE_S)
        await post(ev.HintGiven(text="x"))
        thinkers.may_answer.set()
        await asyncio.gather(*asked)

    asyncio.run(asyncio.wait_for(scene(), PATIENCE_S))
    assert isinstance(posted[0], ev.HintGiven)
    assert [type(event) for event in posted[1:]] == [ev.Proposed] * N_CALLS


def test_a_proposal_is_asked_for_once_although_its_run_was_cancelled_and_revived(tmp_path: Path) -> None:
    search, n_asked = Driver(make_config(slots={"count": 2})), list[int]()
    thinking, may_answer = threading.Event(), threading.Event()
    search.ready(0, 1)
    search.train(0)
    search.propose(2)
    search.start(2)  # so that the search does not end at once
    command = next(each for each in search.commands if isinstance(each, cmd.Propose) and each.node == 1)

    def propose(_: ProposalRequest) -> Proposal:
        n_asked.append(1)
        thinking.set()
        assert may_answer.wait(PATIENCE_S)
        return make_proposal()

    async def post(event: Event) -> None:
        search.post(event)

    async def scene() -> None:
        agents: Any = SimpleNamespace(proposer=SimpleNamespace(propose=propose))
        calls = AgentCalls(search.core, post, SearchStorage(tmp_path, "demo"), agents)
        asked = asyncio.create_task(calls.call(command))
        await asyncio.to_thread(thinking.wait, PATIENCE_S)
        search.post(ev.BudgetReached(kind="wall_clock", used=1.0, limit=1.0))
        lifted = {"budget.wall_clock_hours": 2.0}
        given = search.post(ev.SettingsChanged(changes=lifted, before=dict.fromkeys(lifted)))
        [revived] = [each for each in given if isinstance(each, cmd.Propose)]
        assert revived.node == command.node
        again = asyncio.create_task(calls.call(revived))
        await asyncio.sleep(0)
        may_answer.set()
        await asyncio.gather(asked, again)

    asyncio.run(asyncio.wait_for(scene(), PATIENCE_S))
    assert len(n_asked) == 1
    assert search.core.runs[command.node].spec is not None


class Unreachable:
    """A proposer whose model is out of service until it has been asked `n_outages` times."""

    def __init__(self, n_outages: int) -> None:
        self.n_outages, self.n_asked = n_outages, 0
        self.asked = threading.Event()

    def propose(self, _: ProposalRequest) -> Proposal:
        self.n_asked += 1
        self.asked.set()
        if self.n_asked <= self.n_outages:
            raise OutageError("the server is overloaded")
        return make_proposal()


@pytest.mark.parametrize("ending", [None, ev.UserStop(reason="user"), ev.SearchPaused(reason="pause")])
def test_a_proposal_is_asked_for_until_the_model_answers_or_the_search_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: Event | None
) -> None:
    monkeypatch.setattr("actors.agent_calls._FIRST_WAIT_S", 0.01)
    monkeypatch.setattr("actors.agent_calls._LONGEST_WAIT_S", 0.02)
    search, posted = Driver(), list[Event]()
    search.ready()
    search.train(0)
    command = search.only(cmd.Propose)
    proposer = Unreachable(n_outages=5 if ending is None else 10**9)
    agents: Any = SimpleNamespace(proposer=proposer)

    async def post(event: Event) -> None:
        posted.append(event)

    async def scene() -> None:
        calls = AgentCalls(search.core, post, SearchStorage(tmp_path, "demo"), agents)
        asked = asyncio.create_task(calls.call(command))
        await asyncio.to_thread(proposer.asked.wait, PATIENCE_S)
        if ending is not None:
            search.post(ending)
        await asked

    asyncio.run(asyncio.wait_for(scene(), PATIENCE_S))
    assert [type(event) for event in posted] == ([ev.Proposed] if ending is None else [])
    if ending is None:
        assert proposer.n_asked == 6


def test_a_language_model_is_told_the_paired_differences_between_the_checkpoints(tmp_path: Path) -> None:
    search = Driver(make_config(agents={"backend": "claude"}))
    storage, asked, posted = SearchStorage(tmp_path, "demo"), list[ProposalRequest](), list[Event]()
    search.ready()
    search.start(0)
    saved = tuple(dataclasses.replace(one, val_score=one.step / 20) for one in make_result(0).checkpoints)
    result = dataclasses.replace(make_result(0), checkpoints=saved)
    search.post(ev.PhaseFinished(node=0, phase_attempt=0, result=result))
    with MetricWriter(storage, 0, 0) as writer:
        for step, right in ((10, (1.0, 0.0)), (20, (1.0, 1.0))):
            items = tuple(ItemOutcome(index=i, data_source="", score=a, acc=a) for i, a in enumerate(right))
            writer.write(MetricPoint(node=0, attempt=0, step=step, global_step=step, wall_s=1.0, metrics={},
                                     val_score=sum(right) / 2, items=items))  # fmt: skip

    def propose(request: ProposalRequest) -> Proposal:
        asked.append(request)
        return make_proposal()

    async def post(event: Event) -> None:
        posted.append(event)

    agents: Any = SimpleNamespace(proposer=SimpleNamespace(propose=propose))
    asyncio.run(AgentCalls(search.core, post, storage, agents).call(search.only(cmd.Propose)))
    assert [type(event) for event in posted] == [ev.Proposed]
    (request,) = asked
    assert {one.step: one.to_best for one in request.checkpoints} == {10: (-0.5, 0.5), 20: None}


@pytest.mark.parametrize("backend", ["claude", "expert"])
def test_a_language_model_is_shown_reward_and_kl_of_other_phases_and_the_rules_their_validations(
    tmp_path: Path, backend: str
) -> None:
    search = Driver(make_config(agents={"backend": backend}))
    storage, asked = SearchStorage(tmp_path, "demo"), list[ProposalRequest]()
    search.ready()
    for node in (0, 1, 2):
        with MetricWriter(storage, node, 0) as writer:
            for step in (1, 2):
                metrics = {"critic/score/mean": 0.1 * step, "actor/kl_loss": 0.2, "actor/entropy": 0.3}
                writer.write(MetricPoint(node=node, attempt=0, step=step, global_step=step, wall_s=1.0,
                                         metrics=metrics, val_score=0.5 if step == 2 else None))  # fmt: skip
        if node:
            search.propose(node)
        search.train(node)

    def propose(request: ProposalRequest) -> Proposal:
        asked.append(request)
        return make_proposal()

    async def post(event: Event) -> None:
        pass

    agents: Any = SimpleNamespace(proposer=SimpleNamespace(propose=propose))
    asyncio.run(AgentCalls(search.core, post, storage, agents).call(search.only(cmd.Propose)))
    others = {view.node: view.curves for view in asked[0].tree}
    assert len(others) == 2
    shown = {"critic/score/mean": (0.1, 0.2), "actor/kl_loss": (0.2, 0.2)} if backend == "claude" else {}
    for curves in others.values():
        assert (curves.metrics, curves.steps) == (shown, (1, 2) if shown else ())
        assert (curves.val_steps, curves.val_scores) == ((2,), (0.5,))


def test_agents_learn_the_settings_that_change_during_a_search(tmp_path: Path) -> None:
    search, used = Driver(make_config(agents={"on_cap": "stop"})), list[str]()
    search.ready()
    model = SimpleNamespace(use_settings=lambda agents: used.append(agents.on_cap))
    agents: Any = SimpleNamespace(proposer=model, error_analyzer=SimpleNamespace())

    async def post(_: Event) -> None: ...

    calls = AgentCalls(search.core, post, SearchStorage(tmp_path, "demo"), agents)
    search.post(ev.SettingsChanged(changes={"agents.on_cap": "expert"}, before={}))
    calls.use_settings()
    assert used == ["expert"]
