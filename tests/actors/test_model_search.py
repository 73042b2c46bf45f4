"""Whole searches driven by a language model behind a real HTTP server, on real actors with the scripted
engine."""

from __future__ import annotations

import itertools
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.agents.backend import MODEL_BACKENDS
from llmzero_ray.agents.llm.messages import Usage
from llmzero_ray.agents.llm.prices import Price, cost
from llmzero_ray.cli.view import outcome_lines
from llmzero_ray.coordinator import check_decisions
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.methods.skills import Transcript
from llmzero_ray.records import events as ev
from llmzero_ray.storage import SearchStorage
from tests.agents.llm.messages_server import KEY, Answer, Fail, Hang, MessagesServer, Reply, Request
from tests.searches import page_data
from tests.waiting import PATIENCE_S, wait_until

from .conftest import Search, left_over, pids_of

MakeSearch = Callable[..., Search]
N_KILLS, CAP = 12, 4.0


def propose(request: Request, n_steps: int = 10) -> dict[str, Any]:
    """A proposal that fits any request of these searches: another rate, from the last checkpoint offered."""
    offered = request.text.partition("## Checkpoints offered")[2].partition("##")[0]
    nodes = re.findall(r"^- node (\d+): saved steps? ([\d, toby]+)", offered, re.MULTILINE)
    start = {"node": int(nodes[-1][0]), "step": _last_saved(nodes[-1][1])} if nodes else None
    tried = len(re.findall(r"^- node \d+ \(", request.text.partition("## All phases")[2], re.MULTILINE))
    return {
        "diagnosis": {
            "state": "slow",
            "summary": "It learns, but slowly.",
            "evidence": ["critic/score/mean 0.25 -> 0.35"],
            "inflection_points": [],
            "anomalies": [],
        },
        # No two proposals of a search may be alike.
        "changes": [{"name": "lr", "value": 0.002 + 1e-5 * (tried - 1), "reason": "larger steps"}],
        "checkpoint": {"resume_from": start, "reason": "the newest"},
        "length": {"n_steps": n_steps, "arithmetic": ""},
    }


def _last_saved(ranges: str) -> int:
    """The last step of `5 to 20 by 5, 23`."""
    return int(ranges.rpartition(", ")[2].partition(" by ")[0].rpartition(" to ")[2])


def fix(request: Request) -> dict[str, Any]:
    return {
        "failure_class": "oom",
        "summary": "Memory ran out.",
        "evidence": [],
        "changes": [{"name": "gradient_checkpointing", "value": True, "reason": "trades time for memory"}],
        "checkpoint": {"resume_from": None, "reason": "where it began"},
        "length": {"n_steps": 10, "arithmetic": ""},
    }


def sensible(request: Request) -> Reply:
    """Proposals and fixes that work, and STOP for whatever runs."""
    if request.tool == "propose_phase":
        return Answer(input=propose(request), output_tokens=600)
    if request.tool == "propose_fix":
        return Answer(input=fix(request), output_tokens=300)
    return Answer(input={"chance": 1, "reason": "0.3 cannot reach 0.5 any more"}, output_tokens=30)


@pytest.fixture(scope="module")
def server() -> Iterator[MessagesServer]:
    """One server; the shared head has its key too, from where actors inherit it."""
    before = os.environ.get("ANTHROPIC_API_KEY")
    os.environ["ANTHROPIC_API_KEY"] = KEY
    with MessagesServer() as running:
        yield running
    if before is None:
        del os.environ["ANTHROPIC_API_KEY"]
    else:
        os.environ["ANTHROPIC_API_KEY"] = before


@pytest.fixture
def model_search(server: MessagesServer, make_search: MakeSearch) -> MakeSearch:
    def make(script: dict[str, Any] | None = None, **blocks: Any) -> Search:
        agents = {"backend": "claude", "base_url": server.base_url, "deadline_s": PATIENCE_S}
        blocks["agents"] = {**agents, **blocks.get("agents", {})}
        return make_search(script, **blocks)

    return make


def skilled(request: Request) -> Reply:
    """The skill-based agent: reads a skill, then hands in a run from the newest checkpoint, and lets runs go
    on."""
    if "trains: step" in request.body["messages"][-1]["content"][-1].get("text", ""):
        return Answer(tool="decide_run", input={"decision": "CONTINUE", "reason": "it still rises"})
    if len(request.body["messages"]) == 1:
        return Answer(tool="use_skill", input={"name": "submit_training"})
    nodes = re.findall(r"^node (\d+): saved steps? ([\d, toby]+)", request.text, re.MULTILINE)
    start = {"node": int(nodes[-1][0]), "step": _last_saved(nodes[-1][1])} if nodes else None
    run = {
        "state": "slow",
        "summary": "It learns, but slowly.",
        "verdicts": [{"name": "lr", "verdict": "INCREASE", "reason": "0.25 -> 0.35"}],
        "changes": [{"name": "lr", "value": 0.002 + 1e-5 * len(nodes), "reason": "larger steps"}],
        "checkpoint": {"resume_from": start, "reason": "the newest"},
        "n_steps": 10,
        "expected_validation": None,
    }
    return Answer(tool="submit_training", input=run)


@pytest.mark.slow
def test_the_skill_based_agent_killed_half_way_goes_on_in_its_conversation(
    server: MessagesServer, model_search: MakeSearch, tmp_path: Path
) -> None:
    server.play(skilled)
    search = model_search(
        {"hold": [2], "hold_until": str(tmp_path / "released")},
        search={"method": "skills"},
        budget={"runs": 4, "dollars": 20.0},
        stopper={"enabled": False},  # it may be asked beside the next run, in a branch of the conversation
    ).start()
    search.until_step(2, 3)
    spent = search.core.dollars
    os.kill(search.events(ev.CoordinatorStarted)[-1].pid, signal.SIGKILL)
    (tmp_path / "released").touch()
    core = search.wait()
    assert core.finished.reason == "budget"
    assert core.problem is None, core.problem
    proposed = [run.proposal for run in core.runs.values() if run.proposal is not None]
    agents = [proposal.agent for proposal in proposed]
    assert agents == ["skills"] * 3, [proposal.rationale for proposal in proposed]
    called = search.events(ev.AgentCalled)
    assert {event.agent for event in called} == {"skill_agent"}
    assert core.dollars == pytest.approx(sum(event.dollars for event in called))
    assert core.dollars > spent > 0
    written = [line for line in search.storage.paths.transcript.read_text().splitlines() if line]
    decided = Transcript(search.storage.paths.transcript).episodes
    assert len(written) == len(decided)  # nothing was decided twice
    assert [one.node for one in decided if one.kind == "run"] == [1, 2, 3]
    asked = [request.body["messages"] for request in server.messages]
    assert max(map(len, asked)) == 2 * sum(len(one.exchanges) for one in decided) - 1  # one conversation
    checks = list(check_decisions(search.follower.events, search.root))
    assert [check.differences for check in checks if check.differences] == []
    assert left_over(search) == []


@pytest.mark.slow
def test_the_model_proposes_and_everything_it_was_asked_is_kept_also_where_it_is_moved_to(
    server: MessagesServer, model_search: MakeSearch, tmp_path: Path
) -> None:
    server.play(sensible)
    search = model_search(budget={"runs": 3})
    core = search.start().wait()
    assert core.finished.reason == "budget", search.log()
    proposals = {event.node: event.proposal for event in search.events(ev.Proposed)}
    assert {node: proposal.agent for node, proposal in proposals.items()} == {1: "claude", 2: "claude"}
    assert core.runs[1].spec.hyperparameters["actor_rollout_ref.actor.optim.lr"] == 0.002
    assert core.runs[1].spec.resume_from is not None
    calls = search.events(ev.AgentCalled)
    assert {call.outcome for call in calls} == {"ok"}
    assert core.dollars == pytest.approx(sum(call.dollars for call in calls))
    assert core.dollars > 0
    started = search.events(ev.SearchStarted)[0].agents
    assert "proposer.system.md.j2" in started["prompts"]
    for call in calls:
        record = search.storage.paths.agents(call.node) / f"{call.call}.call.json"
        assert call.prompt in record.read_text()
    pictures = list(search.storage.paths.agents(1).glob("proposer-0.0.png"))
    assert [path.read_bytes()[:4] for path in pictures] == [b"\x89PNG"]
    assert [check.differences for check in check_decisions(search.follower.events, search.root)] == [()] * 4
    tables = page_data(search.storage.paths.report.with_suffix(".html"))["tables"].values()
    rows = [row for table in tables for row in table["rows"]]
    asked = sum(call.agent == "proposer" for call in calls)
    assert [row[:3] for row in rows if row[0] == "proposer"] == [["proposer", str(asked), "0"]]
    assert f", ${core.dollars:.2f}" in outcome_lines(search.follower)[0]
    assert left_over(search) == []
    assert not [
        path for path in search.root.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()
    ]
    moved = tmp_path / "elsewhere"
    search.root.parent.rename(moved)
    assert Follower.of(SearchStorage(moved, search.config.name)).core.dollars == core.dollars


@pytest.mark.slow
def test_the_model_ends_a_phase_and_fixes_a_failed_one(
    server: MessagesServer, model_search: MakeSearch
) -> None:
    def long_phases(request: Request) -> Reply:
        """Long enough for a verdict on a slow machine; it ends them."""
        if request.tool == "propose_phase":
            return Answer(input=propose(request, n_steps=60), output_tokens=600)
        return sensible(request)

    server.play(long_phases)
    search = model_search(
        {"sink": [1], "fail": [2], "step_s": 1.0, "slow": [1]},
        budget={"runs": 4},
        phase={"n_steps": 10, "max_steps": 60, "test_freq": 2},
        stopper={"interval_steps": 2, "min_steps": 4},
        agents={"visual": False},
    )
    core = search.start().wait()
    stopped = [run for run in core.runs.values() if run.status == "early_stopped"]
    assert stopped, search.log()
    assert "0.3 cannot reach 0.5 any more" in stopped[0].outcome.stop_reason
    assert "early_stopper" in {call.agent for call in search.events(ev.AgentCalled)}
    failed = next(node for node, run in core.runs.items() if run.status == "failed")
    child = next(run for run in core.runs.values() if run.on == failed)
    assert child.kind == "debug"
    assert child.proposal.diagnosis.summary == "oom: Memory ran out."


@pytest.mark.slow
def test_a_proposal_against_the_rules_goes_back_once_and_is_then_repaired(
    server: MessagesServer, model_search: MakeSearch
) -> None:
    def wild(request: Request) -> Reply:
        changes = [
            {"name": "lr", "value": 7, "reason": "faster"},
            {"name": "trainer.logger", "value": "wandb", "reason": "to see more"},
        ]
        return Answer(input={**propose(request), "changes": changes})

    server.play(wild)
    search = model_search(budget={"runs": 2})
    core = search.start().wait()
    (refused,) = search.events(ev.ProposalRefused)
    assert "lr=7" in refused.message or "trainer.logger may not be changed" in refused.message
    proposal = core.runs[1].proposal
    assert proposal.agent == "claude"
    assert [(change.key.rpartition(".")[2], change.new) for change in proposal.changes] == [("lr", 0.1)]
    assert "Repaired: " in proposal.rationale


@pytest.mark.slow
def test_a_dead_endpoint_costs_each_decision_its_deadline_and_the_expert_goes_on(
    server: MessagesServer, model_search: MakeSearch
) -> None:
    server.play([Hang()])
    search = model_search(budget={"runs": 2}, agents={"deadline_s": 1.0})
    core = search.start().wait()
    assert core.finished.reason == "budget"
    assert core.runs[1].proposal.agent == "expert"
    assert "The rules answer instead of the language model" in core.runs[1].proposal.rationale
    (decided,) = [event for event in search.events(ev.Decided) if event.node == 1]
    (planned,) = [event for event in search.events(ev.PhasePlanned) if event.node == 1]
    assert planned.time - decided.time < 60.0  # not the 600 s of the default
    assert {call.outcome for call in search.events(ev.AgentCalled)} == {"deadline"}


@pytest.mark.slow
def test_a_slot_trains_while_another_one_waits_for_an_answer(
    server: MessagesServer, model_search: MakeSearch
) -> None:
    turns = itertools.count(1)
    ended: list[ev.PhaseFinished] = []

    def second_waits(request: Request) -> Reply:
        """Answers once another phase has ended."""
        if request.tool == "propose_phase" and next(turns) == 2:
            before = phases_ended()
            wait_until(lambda: len(phases_ended()) > len(before))
            ended.extend(phases_ended()[len(before) :])
        return sensible(request)

    def phases_ended() -> list[ev.PhaseFinished]:
        events = Follower.of(search.storage).events
        return [event for event in events if isinstance(event, ev.PhaseFinished)]

    server.play(second_waits)
    search = model_search(budget={"runs": 4}, slots={"count": 2}, agents={"visual": False})
    core = search.start().wait()
    assert core.finished.reason == "budget", search.log()
    assert ended  # another slot's phase trained and ended meanwhile
    assert {run.proposal.agent for run in core.runs.values() if run.proposal is not None} == {"claude"}


@pytest.mark.slow
def test_the_cap_holds_over_all_processes_and_ends_the_search_where_that_is_wanted(
    server: MessagesServer, model_search: MakeSearch
) -> None:
    server.play(sensible)
    cap = 0.15
    search = model_search(budget={"runs": 12, "dollars": cap}, agents={"on_cap": "stop"})
    core = search.start().wait()
    assert core.finished.reason == "dollars", search.log()
    assert 0 < core.dollars <= cap
    assert len(core.runs) < 12
    again = model_search(budget={"runs": 3, "dollars": 0.001})
    assert again.start().wait().finished.reason == "budget"
    assert {run.proposal.agent for node, run in again.core.runs.items() if node > 0} == {"expert"}


@pytest.mark.slow
@pytest.mark.long
def test_a_coordinator_that_dies_in_its_calls_again_and_again_stays_below_the_cap(
    server: MessagesServer, model_search: MakeSearch
) -> None:
    """The provider bills an answer that nobody received too."""
    price, billed, kills = Price(input=3, output=15, cache_write=3.75, cache_read=0.3), [0.0], [0]
    search: Search | None = None

    def dies_in_its_call(request: Request) -> Reply:
        usage = server.usage(request.body, 600)
        billed[0] += cost(
            Usage(
                input=usage["input_tokens"],
                output=600,
                cache_read=usage["cache_read_input_tokens"],
                cache_creation=usage["cache_creation_input_tokens"],
            ),
            price,
        )
        if request.tool == "propose_phase" and kills[0] < N_KILLS:
            assert search is not None
            kills[0] += 1
            os.kill(search.events(ev.CoordinatorStarted)[-1].pid, signal.SIGKILL)
            return Hang()
        return sensible(request)

    server.play(dies_in_its_call)
    numbers = [price.input, price.output, price.cache_write, price.cache_read]
    search = model_search(
        budget={"runs": 3, "dollars": CAP},
        agents={"price": numbers, "visual": False},
    )
    core = search.start().wait()
    calls = search.events(ev.AgentCalled)
    lost = [call for call in calls if call.outcome == "lost"]
    assert len(search.events(ev.CoordinatorStarted)) == 1 + kills[0]
    assert kills[0] == len(lost) == N_KILLS, search.log()
    assert all(call.dollars > 0 and call.estimated and len(call.reservations) == 1 for call in lost)
    assert billed[0] <= core.dollars <= CAP
    settled = {id_ for call in calls for id_ in call.reservations}
    assert settled == {reserved.reservation for reserved in search.events(ev.CallReserved)}


@pytest.mark.slow
def test_a_call_in_which_the_stopper_dies_is_booked_at_its_worst_case(
    server: MessagesServer, model_search: MakeSearch
) -> None:
    killed = []

    def dies_once(request: Request) -> Reply:
        if request.tool == "propose_phase":
            return Answer(input=propose(request, n_steps=60), output_tokens=600)
        if not killed:
            killed.extend(pids_of("StopperActor"))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
        return sensible(request)

    server.play(dies_once)
    search = model_search(
        {"sink": [1], "step_s": 1.0, "slow": [1]},
        budget={"runs": 2},
        phase={"n_steps": 10, "max_steps": 60, "test_freq": 2},
        stopper={"interval_steps": 2, "min_steps": 4},
        agents={"visual": False},
    )
    core = search.start().wait()
    assert killed
    (lost,) = [call for call in search.events(ev.AgentCalled) if call.outcome == "lost"]
    assert lost.agent == "early_stopper"
    assert lost.dollars > 0
    assert core.dollars == pytest.approx(sum(call.dollars for call in search.events(ev.AgentCalled)))
    assert core.runs[1].status == "early_stopped"  # by the stopper that Ray started again, or by its rules


@pytest.mark.slow
@pytest.mark.long
def test_a_search_runs_on_recorded_answers_without_a_network(
    server: MessagesServer, model_search: MakeSearch, make_search: MakeSearch
) -> None:
    server.play(sensible)
    script = {"sink": [2]}
    first = model_search(
        {**script, "step_s": 0.6}, budget={"runs": 4}, stopper={"min_steps": 4, "interval_steps": 2}
    )
    before = first.start().wait()
    assert "early_stopped" in {run.status for run in before.runs.values()}
    n_requests = len(server.requests)
    server.play([Fail(status=500)])
    recorded = {"backend": "recorded", "recorded_from": str(first.root)}
    again = make_search(script, budget={"runs": 4}, agents=recorded)
    after = again.start().wait()
    assert len(server.requests) == n_requests
    assert after.dollars == 0
    assert "recorded" in MODEL_BACKENDS
    for node, run in before.runs.items():
        assert after.runs[node].spec.hyperparameters == run.spec.hyperparameters
        assert after.runs[node].spec.resume_from == run.spec.resume_from
        ended = (
            run.outcome.steps_done,
            run.outcome.stop_reason,
            run.outcome.best_score,
            run.outcome.best_step,
        )
        repeated = after.runs[node].outcome
        assert (
            repeated.steps_done, repeated.stop_reason, repeated.best_score, repeated.best_step
        ) == ended  # fmt: skip
    # When the early stopper is asked depends on the time; where it stopped a phase is repeated. Prompts tell
    # seconds, and so differ.
    asked = [(call.node, call.agent) for call in first.events(ev.AgentCalled)]
    proposals = [call for call in asked if call[1] != "early_stopper"]
    assert [(call.node, call.agent) for call in again.events(ev.AgentCalled)] == proposals
