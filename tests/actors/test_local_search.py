"""Whole searches that a local search proposes, alone and guided, on real actors and the scripted engine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from llmzero_ray import commands as cmd
from llmzero_ray import events as ev
from llmzero_ray.agents.backend import make_agents
from llmzero_ray.coordinator import build_request, check_decisions, replay
from llmzero_ray.metric_files import load_curves

from .conftest import Search, left_over

MakeSearch = Callable[..., Search]


@pytest.mark.slow
@pytest.mark.parametrize("proposer", ["local", "hybrid"])
def test_a_local_search_survives_a_kill_and_every_proposal_can_be_made_again(
    make_search: MakeSearch, proposer: str
) -> None:
    search = make_search({"step_s": 0.02}, budget={"runs": 8}, agents={"proposer": proposer}).start()
    search.until_step(2, 2)
    os.kill(search.events(ev.CoordinatorStarted)[-1].pid, signal.SIGKILL)
    core = search.wait()
    assert core.finished.reason == "budget"
    assert not [one for one in check_decisions(search.follower.events, search.root) if one.differences]
    assert search.events(ev.ProposalRefused) == []
    agent = make_agents(search.config, search.task.n_val).proposer
    events = search.follower.events
    for number, event in enumerate(events):
        if isinstance(event, ev.Proposed):
            then = replay(events[:number], search.root)
            (command,) = [one for one in then.outstanding() if isinstance(one, cmd.Propose)]
            request = build_request(then, command, lambda node: load_curves(search.storage, node, gains=True))
            assert agent.propose(request) == event.proposal  # type: ignore[arg-type]
    agents = {event.proposal.agent for event in search.events(ev.Proposed)}
    assert agents <= {"local", "hybrid", "expert"}
    assert "local" in agents
    assert left_over(search) == []
