"""The skill-based agent behind a real HTTP server of the Messages API: loop, conversation and ledger."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.agents.backend import (
    Agents,
    AgentServices,
    agent_facts,
    check_agents,
    lacks_model,
    make_agents,
)
from llmzero_ray.agents.llm.budget import BudgetLedger
from llmzero_ray.agents.llm.messages import ToolExchange
from llmzero_ray.agents.llm.prices import Price
from llmzero_ray.errors import CapReachedError, ConfigError
from llmzero_ray.hyperparameters import canonical, complete
from llmzero_ray.methods.skills import SKILLS, Episode, Transcript, skill_texts, transcript
from llmzero_ray.methods.skills.handover import grown
from llmzero_ray.methods.skills.tools import TOOLS
from llmzero_ray.methods.skills.transcript import conversation
from llmzero_ray.records import Event
from llmzero_ray.records import events as ev
from llmzero_ray.records.agents import ProposalRequest
from llmzero_ray.search import SearchRules
from llmzero_ray.storage import SearchStorage
from tests.agents.llm.large_requests import proposal_request, stop_request
from tests.agents.llm.messages_server import Answer, Fail, MessagesServer, Request
from tests.builders import make_config

MODEL = "claude-sonnet-5-5"
LR = canonical("lr")


@dataclasses.dataclass
class Lab:
    """The agent with services that record what they are given."""

    server: MessagesServer
    events: list[ev.AgentCalled]
    records: dict[str, Mapping[str, Any]]
    ledger: BudgetLedger
    agents: Agents


@pytest.fixture
def lab(messages_server: MessagesServer, tmp_path: Path) -> Callable[..., Lab]:
    def build(*, cap: float | None = None, **agents: Any) -> Lab:
        settings = {"backend": "claude", "model": MODEL, "base_url": messages_server.base_url} | agents
        config = make_config(search={"method": "skills"}, agents=settings, budget={"dollars": cap})
        events: list[ev.AgentCalled] = []
        records: dict[str, Mapping[str, Any]] = {}

        def post(event: Event) -> None:
            assert isinstance(event, ev.AgentCalled)
            events.append(event)

        storage = SearchStorage(tmp_path, "search")

        def keep(node: int, name: str, record: Mapping[str, Any], png: bytes | None) -> None:
            records[f"{node}/{name}"] = record
            storage.write_call(node, name, record, png)

        facts = agent_facts(config)
        ledger = BudgetLedger(Price(**facts["price"]), cap)
        services = AgentServices(
            facts=facts,
            budget=ledger,
            post=post,
            write_call=keep,
            draw=lambda *_: b"",
            transcript=tmp_path / "skill_agent.jsonl",
        )
        return Lab(messages_server, events, records, ledger, make_agents(config, 500, services))

    return build


def request_with(**changes: Any) -> ProposalRequest:
    return dataclasses.replace(proposal_request(), **{"node": 30, **changes})


def submit(**changes: Any) -> Answer:
    """A run from node 0, step 90, with a lower rate."""
    given = {
        "state": "plateau",
        "summary": "Validation is flat.",
        "verdicts": [{"name": "lr", "verdict": "DECREASE", "reason": "KL 0.03 -> 0.11"}],
        "changes": [{"name": "lr", "value": 2e-5, "reason": "smaller steps"}],
        "checkpoint": {"resume_from": {"node": 0, "step": 90}, "reason": "the last sound step"},
        "n_steps": 40,
        "expected_validation": 0.5,
    }
    return Answer(tool="submit_training", input={**given, **changes})


def use(tool: str, **given: Any) -> Answer:
    return Answer(tool=tool, input=given)


# --- the loop -----------------------------------------------------------------------------------------------


def test_the_agent_reads_skills_and_runs_and_hands_in_a_run_from_any_checkpoint(
    lab: Callable[..., Lab],
) -> None:
    it = lab()
    it.server.play(
        [
            use("use_skill", name="check_training"),
            use("show_task"),
            use("list_runs"),
            use("read_metrics", node=6, names=["actor/kl_loss", "actor/pg_loss", "no/such"]),
            use("read_metrics", node=6, names=[]),
            use(
                "check_config",
                changes=[{"name": "lr", "value": 2e-5, "reason": "r"}],
                resume_from={"node": 0, "step": 90},
                n_steps=40,
            ),
            submit(),
        ]
    )
    request = request_with()
    found = it.agents.proposer.propose(request)
    assert (found.agent, found.n_steps, found.predicted) == ("skills", 40, 0.5)
    assert found.resume_from is not None
    assert (found.resume_from.node, found.resume_from.step) == (0, 90)
    assert [(change.key, change.new, change.reason) for change in found.changes] == [
        (LR, 2e-5, "smaller steps")
    ]
    assert found.diagnosis.evidence == ("lr: DECREASE. KL 0.03 -> 0.11",)
    results = [turn["content"][0]["content"] for turn in it.server.messages[-1].body["messages"][2::2]]
    assert results[0] == skill_texts()["check_training"]
    assert "training items, 500 validation items" in results[1]
    assert "Checkpoints:\nnode 0: saved steps" in results[2]
    assert re.search(r"actor/kl_loss: .+\nactor/pg_loss: .+ up to step ", results[3])
    assert "no/such: not logged" in results[3]
    assert "critic/score/mean" in results[4]
    assert results[5].startswith("Allowed. The run would train with:")
    assert [event.agent for event in it.events] == ["skill_agent"] * 7
    assert it.ledger.dollars == pytest.approx(sum(event.dollars for event in it.events))
    assert it.ledger.dollars > 0
    assert sorted(it.records) == [f"30/skill_agent-run-0.{n}" for n in range(7)]


def test_a_run_that_breaks_a_rule_comes_back_with_the_reason(lab: Callable[..., Lab]) -> None:
    it = lab()
    nowhere = {"resume_from": {"node": 0, "step": 91}, "reason": "r"}
    wild = [{"name": "lr", "value": 7.0, "reason": "r"}]
    it.server.play(
        [
            submit(checkpoint=nowhere),
            submit(n_steps=100_000),
            submit(changes=wild),
            submit(verdicts="many"),
            use("decide_run", decision="STOP", reason="r"),
            use("read_metrics", node=99, names=[]),
            submit(),
        ]
    )
    assert it.agents.proposer.propose(request_with()).agent == "skills"
    last = it.server.messages[-1].body["messages"]
    replies = [turn["content"][0] for turn in last[2::2]]
    assert [reply["is_error"] for reply in replies] == [True] * 6
    for reply, words in zip(
        replies,
        ("step 91 of node 0 is not offered", "n_steps is 100000", "lr", "verdicts", "not the question", "99"),
        strict=True,
    ):
        assert words in reply["content"]
    for said, reply in zip(last[1::2], last[2::2], strict=True):
        assert said["content"][-1]["id"] == reply["content"][0]["tool_use_id"]


def test_a_start_from_the_base_model_changes_the_default_recipe(lab: Callable[..., Lab]) -> None:
    it = lab()
    fresh = {"resume_from": None, "reason": "nothing resumed helps"}
    it.server.play([submit(checkpoint=fresh)])
    request = request_with()
    found = it.agents.proposer.propose(request)
    applied = {change.key: change.new for change in found.changes}
    full = {**request.on.hyperparameters, **applied}
    wanted = complete(request.default, {LR: 2e-5})
    assert {key: full[key] for key in wanted} == dict(wanted)


def test_every_decision_stands_in_one_conversation_whose_end_is_cached(lab: Callable[..., Lab]) -> None:
    it = lab()
    it.server.offers(MODEL, thinking=("adaptive", "between_tools"), structured_outputs=True)
    it.server.play([submit(), use("decide_run", decision="STOP", reason="0.31 against 0.47"), submit()])
    it.agents.proposer.propose(request_with())
    verdict = it.agents.early_stopper.judge(stop_request())
    assert (verdict.stop, verdict.reason, verdict.rule) == (True, "0.31 against 0.47", "skill_agent")
    it.agents.proposer.propose(request_with(node=31))
    turns = it.server.messages[-1].body["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user", "assistant", "user"]
    assert turns[0]["content"][0]["text"].startswith("# The next run (node 30)")
    assert turns[2]["content"][0]["content"] == "Taken."
    assert "trains: step" in turns[2]["content"][1]["text"]
    assert turns[4]["content"][1]["text"].startswith("# The next run (node 31)")
    assert turns[4]["content"][1]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    body = it.server.messages[-1].body
    assert [tool["name"] for tool in body["tools"]] == list(TOOLS)
    assert body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}  # it thinks first


def test_without_thinking_one_of_the_tools_is_forced(lab: Callable[..., Lab]) -> None:
    it = lab(thinking="disabled")
    it.server.play([submit()])
    it.agents.proposer.propose(request_with())
    assert it.server.messages[0].body["tool_choice"]["type"] == "any"


def test_an_answer_without_a_tool_is_asked_for_again(lab: Callable[..., Lab]) -> None:
    it = lab()
    talk = Answer(content=[{"type": "text", "text": "I would go on."}], stop_reason="end_turn")
    it.server.play([use("show_task"), talk, submit()])
    assert it.agents.proposer.propose(request_with()).agent == "skills"
    assert [event.outcome for event in it.events] == ["ok", "no_tool_call", "ok"]
    assert "Call exactly one tool." in it.server.messages[-1].text
    it.server.play([talk, submit()])
    assert it.agents.proposer.propose(request_with(node=31)).agent == "skills"


# --- without an answer --------------------------------------------------------------------------------------


def test_without_an_answer_the_expert_proposes_and_a_run_goes_on(lab: Callable[..., Lab]) -> None:
    it = lab(deadline_s=2.0)
    it.server.play([Fail(status=400, type="invalid_request_error", message="no")])
    found = it.agents.proposer.propose(request_with())
    assert found.agent == "expert"
    assert "The rules answer instead of the language model" in found.rationale
    assert it.agents.early_stopper.judge(stop_request()).stop is False
    assert it.agents.proposer.propose(request_with(node=31)).agent == "expert"


def test_an_agent_that_never_decides_is_given_up(
    lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmzero_ray.methods.skills.agent.MOST_CALLS", 3)
    it = lab()
    it.server.play([use("show_task")])
    found = it.agents.proposer.propose(request_with())
    assert "did not decide within 3 calls" in found.rationale
    assert len(it.events) == 3


def test_at_the_cap_no_call_is_made_and_the_search_ends_where_that_is_wanted(lab: Callable[..., Lab]) -> None:
    it = lab(cap=1e-6)
    assert it.agents.proposer.propose(request_with()).agent == "expert"
    with pytest.raises(CapReachedError):
        lab(cap=1e-6, on_cap="stop").agents.proposer.propose(request_with())
    changed = lab(cap=1e-6, on_cap="stop").agents.proposer
    changed.use_settings(make_config(agents={"on_cap": "expert"}).agents)
    assert changed.propose(request_with()).agent == "expert"
    assert it.server.messages == []


# --- the tree search as a skill -----------------------------------------------------------------------------


def test_runs_that_are_handed_over_are_planned_by_the_tree_search(lab: Callable[..., Lab]) -> None:
    it = lab()
    answer = {
        "diagnosis": {
            "state": "plateau",
            "summary": "s",
            "evidence": [],
            "inflection_points": [],
            "anomalies": [],
        },
        "changes": [{"name": "temperature", "value": 0.9, "reason": "r"}],
        "checkpoint": {"resume_from": None, "reason": "r"},
        "length": {"n_steps": 30, "arithmetic": ""},
    }

    def script(request: Request) -> Answer:
        if request.tool == "propose_phase":
            return Answer(input=answer)
        return use("tree_search", runs=2, reason="no clear next step")

    it.server.play(script)
    first = it.agents.proposer.propose(request_with())
    second = it.agents.proposer.propose(request_with(node=31))
    assert (first.agent, second.agent) == ("claude", "claude")
    assert [event.agent for event in it.events] == ["skill_agent", "proposer", "proposer"]
    it.agents.proposer.propose(request_with(node=32))
    assert [event.agent for event in it.events][3:] == ["skill_agent", "proposer"]


def test_all_runs_so_far_are_the_tree() -> None:
    request = proposal_request()
    views = {view.node: view for view in (*request.tree, *request.path, request.on)}
    tree = grown(views, SearchRules())
    assert set(tree.nodes) == {node for node, view in views.items() if view.hyperparameters}
    assert tree.resume_chain(6) == (0, 2, 4, 6)
    assert tree.node(6).score == views[6].score


# --- records ------------------------------------------------------------------------------------------------


def test_a_decision_that_was_made_before_a_kill_is_given_again_without_a_call(
    lab: Callable[..., Lab],
) -> None:
    it = lab()
    it.server.play([use("show_task"), submit()])
    found = it.agents.proposer.propose(request_with())
    again = lab()
    assert again.agents.proposer.propose(request_with()) == found
    assert again.events == []


def test_a_search_runs_on_its_own_recorded_answers(lab: Callable[..., Lab], tmp_path: Path) -> None:
    it = lab()
    it.server.play([use("use_skill", name="gather_results"), submit()])
    found = it.agents.proposer.propose(request_with())
    (tmp_path / "skill_agent.jsonl").unlink()
    asked = len(it.server.messages)
    again = lab(backend="recorded", recorded_from=str(tmp_path / "search"))
    assert again.agents.proposer.propose(request_with()) == found
    assert [event.prompt for event in again.events] == [event.prompt for event in it.events]
    assert again.ledger.dollars == 0
    assert len(it.server.messages) == asked


def episode(number: int, result: str = "Taken.") -> Episode:
    call = {"type": "tool_use", "id": f"t{number}", "name": "decide_run", "input": {"n": number}}
    return Episode(
        kind="check",
        node=1,
        number=number,
        question=f"question {number}",
        exchanges=(ToolExchange(content=(call,), result=result),),
    )


def test_the_transcript_is_read_back_by_another_process_and_passes_over_an_unfinished_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.jsonl"
    Transcript(path).add(episode(1))
    with path.open("a") as file:
        file.write('{"kind": "run", "no')
    Transcript(path).add(episode(2))
    Transcript(path).add(episode(2, "again"))
    assert Transcript(path).episodes == (episode(1), episode(2))
    assert Transcript(path).decided("check", 1, 2) == episode(2)
    assert Transcript(path).decided("run", 1, 2) is None
    memory = Transcript()
    memory.add(episode(3))
    assert memory.episodes == (episode(3),)


def test_of_a_long_conversation_the_oldest_results_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "MOST_CHARS", 3000)
    first, turns = conversation([episode(n, "x" * 1000) for n in range(4)], "now", ())
    assert first == "question 0"
    assert [turn.then for turn in turns] == ["question 1", "question 2", "question 3", "now"]
    assert [turn.result == transcript.LEFT_OUT for turn in turns] == [True, True, False, False]


# --- settings -----------------------------------------------------------------------------------------------


def test_the_method_needs_a_language_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    config = make_config(search={"method": "skills"})
    with pytest.raises(ConfigError, match=r"method is skills, which needs a language model.*'expert'"):
        check_agents(config)
    assert lacks_model(config)
    claude = make_config(search={"method": "skills"}, agents={"backend": "claude"})
    assert lacks_model(claude)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert not lacks_model(claude)
    assert not lacks_model(make_config())


def test_there_are_the_papers_eight_skills_and_the_tree_search_each_with_its_text() -> None:
    assert len(SKILLS) == 9
    texts = skill_texts()
    for name in SKILLS:
        assert texts[name].startswith(f"# {name}\n")
        assert f"- {name}: " in texts["agent"]


# --- what cannot be used ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "[NaN]"])
def test_a_number_that_no_request_can_repeat_is_refused_to_its_author(
    lab: Callable[..., Lab], value: str
) -> None:
    it = lab()
    answer = submit(changes=[{"name": "lr", "value": "HERE", "reason": "r"}])
    block = {"type": "tool_use", "id": "toolu_1", "name": "submit_training", "input": answer.input}
    usage = {"input_tokens": 10, "output_tokens": 5}
    body = {"model": MODEL, "content": [block], "stop_reason": "tool_use", "usage": usage}
    text = json.dumps({"id": "msg_1", "type": "message", "role": "assistant", **body})
    it.server.play([Answer(body=text.replace('"HERE"', value).encode()), submit()])
    found = it.agents.proposer.propose(request_with())
    assert (found.agent, [change.new for change in found.changes]) == ("skills", [2e-5])
    refusal = it.server.messages[-1].body["messages"][-1]["content"][0]
    assert refusal["is_error"] is True and refusal["content"].startswith("Refused: ")


def test_a_configuration_that_is_checked_while_a_run_is_judged_is_refused_in_words(
    lab: Callable[..., Lab],
) -> None:
    it = lab()
    asked = {"changes": [], "resume_from": None, "n_steps": 40}
    decided = use("decide_run", decision="STOP", reason="flat")
    it.server.play([use("check_config", **asked), use("check_config", **asked | {"n_steps": 0}), decided])
    verdict = it.agents.early_stopper.judge(stop_request())
    assert (verdict.stop, verdict.reason) == (True, "flat")
    results = [turn["content"][0]["content"] for turn in it.server.messages[-1].body["messages"][2::2]]
    assert all("a run trains now" in result for result in results) and len(results) == 2
