"""A language model behind a real HTTP server as the proposer of a search under Tune."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle, tune

from llmzero_ray.agents.llm.prices import known_prices
from llmzero_ray.config import AgentsConfig
from llmzero_ray.errors import AgentError, ConfigError
from llmzero_ray.hyperparameters import VERL_SPACE
from llmzero_ray.journal import JournalReader
from llmzero_ray.records import to_json
from llmzero_ray.tune import tree_search
from llmzero_ray.tune.language_model import LanguageModelProposer
from tests.agents.llm.conftest import messages_server
from tests.agents.llm.messages_server import KEY, Answer, MessagesServer, Request
from tests.tune.test_scheduler import Driver, restored

__all__ = ["messages_server"]
LR = "actor_rollout_ref.actor.optim.lr"


def faster(request: Request) -> Answer:
    if request.tool == "propose_fix":
        fix = {"failure_class": "oom", "summary": "Memory ran out.", "evidence": []}
        changes = [{"name": "gradient_checkpointing", "value": True, "reason": "memory"}]
        start = None
        return Answer(input={**fix, **_plan(changes, start)}, output_tokens=300)
    diagnosis = {"state": "slow", "summary": "It learns slowly.", "evidence": []}
    found = {"diagnosis": {**diagnosis, "inflection_points": [], "anomalies": []}}
    changes = [{"name": "lr", "value": 2e-4, "reason": "larger steps"}]
    return Answer(input={**found, **_plan(changes, {"node": 0, "step": 2})}, output_tokens=600)


def _plan(changes: list[dict[str, Any]], start: Any) -> dict[str, Any]:
    return {
        "changes": changes,
        "checkpoint": {"resume_from": start, "reason": "the best"},
        "length": {"n_steps": 3, "arithmetic": ""},
    }


def make_driver(folder: Path, server: MessagesServer, **given: Any) -> Driver:
    agents = AgentsConfig(backend="claude", base_url=server.base_url, visual=False)
    values = {"space": VERL_SPACE, "root": {"lr": 1e-4}, "proposer": agents, "dollars": 1.0}
    server.play(faster)
    return Driver(folder, **{**values, **given})


def two_trials(driver: Driver) -> Driver:
    """With the second one, for which the model was asked once, under way."""
    driver.finish(driver.new_trial(), [1.0, 2.0])
    driver.new_trial()
    return driver


def calls(folder: Path) -> list[dict[str, Any]]:
    (journal,) = (folder / "exp").glob("llmzero-*/journal")
    events = [to_json(event) for event in JournalReader(journal).poll()]
    return [event for event in events if event["type"] in ("AgentCalled", "CallReserved")]


def test_the_models_proposal_is_the_next_trial_and_its_call_is_on_record(
    tmp_path: Path, messages_server: MessagesServer
) -> None:
    driver = make_driver(tmp_path, messages_server)
    driver.finish(driver.new_trial(), [1.0, 5.0, 3.0])
    second = driver.new_trial()
    phase = driver.searcher.search.phases[1]
    assert second.config[LR] == 2e-4 and phase.start.resume_from.step == 2
    assert phase.run.proposal.diagnosis.summary == "It learns slowly."
    (paid,) = [call for call in calls(tmp_path) if call["type"] == "AgentCalled" and call["call"]]
    assert paid["agent"] == "proposer" and paid["dollars"] > 0
    assert [path.name for path in tmp_path.rglob("*.call.json")] == ["proposer-0.0.call.json"]


def test_the_model_repairs_a_failed_root(tmp_path: Path, messages_server: MessagesServer) -> None:
    driver = make_driver(tmp_path, messages_server)
    trial = driver.new_trial()
    driver.scheduler.on_trial_error(driver.controller, trial)
    driver.searcher.on_trial_complete(trial.trial_id, error=True)
    driver.new_trial()
    fix = driver.searcher.search.phases[1]
    assert fix.run.kind == "debug" and "Memory ran out." in fix.run.proposal.diagnosis.summary


def test_no_key_is_in_what_is_pickled_or_written(tmp_path: Path, messages_server: MessagesServer) -> None:
    driver = make_driver(tmp_path, messages_server)
    driver.finish(driver.new_trial(), [1.0])
    driver.new_trial()  # by now there is a client with the key in this process
    assert messages_server.messages[-1].headers["x-api-key"] == KEY
    pickled = [driver.pickled, cloudpickle.dumps((driver.searcher, driver.scheduler))]
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 2
    assert not any(KEY.encode() in content for content in (*pickled, *written))


def test_a_restored_search_goes_on_with_what_was_spent(
    tmp_path: Path, messages_server: MessagesServer
) -> None:
    free = two_trials(make_driver(tmp_path / "free", messages_server, dollars=None))
    (first,) = [call for call in calls(free.folder) if call["type"] == "CallReserved"]
    # Enough for the question and 2,000 tokens of an answer: what is left after it is too little for another.
    a_token = known_prices()["claude-sonnet-5-5"].output / 1e6
    cap = first["dollars"] - (first["output_tokens"] - 2000) * a_token
    driver = two_trials(make_driver(tmp_path / "capped", messages_server, dollars=cap))
    assert driver.searcher.search.phases[1].lineage()["rationale"].count("The rules answer") == 0
    again = restored(driver)
    for old in driver.controller.trials:
        again.controller.add(again.make_trial(old.trial_id, old.config))
    n_asked = len(messages_server.messages)
    again.finish(again.controller.trials[1], [2.0])
    again.new_trial()
    assert len(messages_server.messages) == n_asked
    assert (
        "The rules answer instead of the language model"
        in again.searcher.search.phases[2].lineage()["rationale"]
    )


def test_what_cannot_be_asked_is_one_message(
    monkeypatch: pytest.MonkeyPatch, messages_server: MessagesServer
) -> None:
    given: dict[str, Any] = {"metric": "x", "space": VERL_SPACE, "root": {"lr": 1e-4}}
    with pytest.raises(ConfigError, match="proposer is 'claude', whose rules or prompts read VeRL's metrics"):
        tree_search(metric="x", space={"lr": tune.uniform(0, 1)}, root={"lr": 0.5}, proposer="claude")
    with pytest.raises(ConfigError, match="the agents have backend 'expert' and proposer 'strategy'"):
        LanguageModelProposer(AgentsConfig(proposer="strategy"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-another")
    agents = AgentsConfig(backend="claude", base_url=messages_server.base_url, visual=False)
    with pytest.raises(AgentError, match="key"):
        tree_search(**given, proposer=agents)
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(AgentError, match="No API key"):
        tree_search(**given, proposer="claude")
