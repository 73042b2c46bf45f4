"""Calls of agents take minutes: however many are under way, the coordinator's loop keeps its threads."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from actors.agent_calls import AgentCalls
from llmzero_ray.records import Event, Proposal
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.agents import ProposalRequest
from llmzero_ray.storage import SearchStorage
from tests.builders import Driver, make_proposal
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
    search, thinkers, posted = Driver(), Thinkers(), list[Event]()
    search.ready()
    search.train(0)
    command = search.only(cmd.Propose)
    agents: Any = SimpleNamespace(proposer=thinkers)

    async def post(event: Event) -> None:
        await asyncio.to_thread(posted.append, event)  # as the journal's file is written

    async def scene() -> None:
        calls = AgentCalls(search.core, post, SearchStorage(tmp_path, "demo"), agents)
        asked = [asyncio.create_task(calls.call(command)) for _ in range(N_CALLS)]
        await asyncio.get_running_loop().run_in_executor(None, thinkers.all_asked.wait, PATIENCE_S)
        await post(ev.HintGiven(text="x"))
        thinkers.may_answer.set()
        await asyncio.gather(*asked)

    asyncio.run(asyncio.wait_for(scene(), PATIENCE_S))
    assert isinstance(posted[0], ev.HintGiven)
    assert [type(event) for event in posted[1:]] == [ev.Proposed] * N_CALLS
