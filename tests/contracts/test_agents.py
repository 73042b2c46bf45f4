"""What every agents' back end keeps: the offline expert, the local search alone and guided by a language
model, a language model behind a real server, its recorded answers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.agents.backend import Agents, AgentServices, agent_facts, make_agents
from llmzero_ray.agents.llm.budget import BudgetLedger
from llmzero_ray.agents.llm.figures import draw_figure
from llmzero_ray.agents.llm.prices import Price
from llmzero_ray.agents.llm.proposal_response import bounds_of
from llmzero_ray.hyperparameters import forbidden
from llmzero_ray.records import Proposal, StopDecision, from_json, to_json
from llmzero_ray.records.agents import ProposalRequest
from llmzero_ray.storage import SearchStorage
from tests.agents.llm.large_requests import error_request, proposal_request, stop_request
from tests.agents.llm.messages_server import KEY, Answer, MessagesServer, Reply, Request
from tests.builders import make_config

LENGTH = {"n_steps": 40, "arithmetic": ""}


def answer(request: Request) -> Reply:
    """What a sensible model says to these questions."""
    fresh = "forced to start from the base model" in request.text
    start = None if fresh else {"node": 6, "step": 120}
    changes = [{"name": "lr", "value": 3e-5, "reason": "smaller steps"}]
    if request.tool == "propose_phase":
        diagnosis: dict[str, Any] = {"state": "plateau", "summary": "It is flat.", "evidence": ["flat"]}
        diagnosis |= {"inflection_points": [], "anomalies": []}
        checkpoint = {"resume_from": start, "reason": "the last"}
        return Answer(
            input={"diagnosis": diagnosis, "changes": changes, "checkpoint": checkpoint, "length": LENGTH}
        )
    if request.tool == "propose_fix":
        checkpoint = {"resume_from": None, "reason": "where it began"}
        output: dict[str, Any] = {"failure_class": "oom", "summary": "Memory.", "evidence": []}
        return Answer(input={**output, "changes": changes, "checkpoint": checkpoint, "length": LENGTH})
    return Answer(input={"chance": 60, "reason": "too early"})


def requests() -> dict[str, ProposalRequest]:
    asked = dataclasses.replace(proposal_request(), node=12)
    return {
        "next": asked,
        "fresh": dataclasses.replace(asked, from_scratch=True, checkpoints=(), node=13),
        "again": dataclasses.replace(asked, rejected="lr=3: must be a number in [0, 0.1].", tries=1, node=14),
    }


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """(address of a server, directory of a search with all its answers to these requests)."""
    storage = SearchStorage(tmp_path_factory.mktemp("runs"), "recorded")
    with MessagesServer(answer) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTHROPIC_API_KEY", KEY)
        agents = build({"backend": "claude", "base_url": server.base_url}, storage)
        for request in requests().values():
            agents.proposer.propose(request)
        agents.error_analyzer.analyze(dataclasses.replace(error_request(), node=30))
        agents.early_stopper.judge(stop_request())
        yield server.base_url, str(storage.paths.root)


def build(agents: Mapping[str, Any], storage: SearchStorage) -> Agents:
    config = make_config(agents=dict(agents))
    facts = agent_facts(config)
    services = None
    if facts:
        ledger = BudgetLedger(Price(**facts["price"]))
        services = AgentServices(
            facts=facts, budget=ledger, post=lambda _: None, write_call=storage.write_call, draw=draw_figure
        )
    return make_agents(config, 500, services)


@pytest.fixture(params=["expert", "claude", "recorded"])
def agents(request: pytest.FixtureRequest, recorded: tuple[str, str], tmp_path: Path) -> Agents:
    address, search = recorded
    settings = {
        "expert": {"backend": "expert"},
        "claude": {"backend": "claude", "base_url": address},
        "recorded": {"backend": "recorded", "recorded_from": search},
    }
    return build(settings[request.param], SearchStorage(tmp_path, "here"))


@pytest.mark.parametrize("which", ["next", "fresh", "again"])
def test_a_proposal_can_be_trained(agents: Agents, which: str) -> None:
    request = requests()[which]
    proposal = agents.proposer.propose(request)
    bounds = bounds_of(request, n_gpus=1)
    full = bounds.full(proposal.changes, proposal.resume_from)  # raises where it breaks a rule
    assert 1 <= proposal.n_steps <= request.task.max_phase_steps
    assert [change.key for change in proposal.changes if forbidden(change.key)] == []
    assert all(change.reason for change in proposal.changes)
    assert proposal.diagnosis.summary
    assert full
    offered = {(one.node, one.step) for one in request.checkpoints}
    start = proposal.resume_from
    assert start is None or (start.node, start.step) in offered


def test_a_forced_fresh_start_never_resumes(agents: Agents) -> None:
    assert agents.proposer.propose(requests()["fresh"]).resume_from is None


def test_a_fix_can_be_trained(agents: Agents) -> None:
    request = dataclasses.replace(error_request(), node=30)
    proposal = agents.error_analyzer.analyze(request)
    bounds_of(request, n_gpus=1).full(proposal.changes, proposal.resume_from)
    assert proposal.diagnosis.state == "failed"


def test_a_verdict_has_a_reason(agents: Agents) -> None:
    decision = agents.early_stopper.judge(stop_request())
    assert isinstance(decision, StopDecision)
    assert decision.reason
    assert decision.rule


def test_answers_survive_the_journal(agents: Agents) -> None:
    proposal = agents.proposer.propose(requests()["next"])
    decision = agents.early_stopper.judge(stop_request())
    for record in (proposal, decision):
        assert from_json(json.loads(json.dumps(to_json(record)))) == record
    assert isinstance(proposal, Proposal)


def test_the_same_question_gets_the_same_answer(agents: Agents) -> None:
    request = requests()["next"]
    assert agents.proposer.propose(request) == agents.proposer.propose(request)
