"""A proposal that waits for a person, as the commands show it and take the answer; without Ray."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.control_requests import event_of
from llmzero_ray.agents.llm.recorded import recorded_course
from llmzero_ray.cli.main import main
from llmzero_ray.records import events as ev
from llmzero_ray.storage.presence import waiting_requests
from tests.builders import LR, make_config
from tests.report.builder import SearchBuilder, proposal

Llmzero = Callable[..., tuple[int, str, str]]


@pytest.fixture
def waits(tmp_path: Path) -> SearchBuilder:
    """A search whose node 1, resumed from step 20 of the root, waits for approval."""
    config = make_config(budget={"runs": 4}, agents={"approve": True, "approve_hours": 2.0})
    search = SearchBuilder(tmp_path, config=config)
    search.answers = {1: proposal(resume=(0, 20), lr=5e-4)}
    return search.ready().play(phases=1)


@pytest.fixture
def llmzero(capsys: pytest.CaptureFixture[str]) -> Llmzero:
    """One command in this process: its exit code and what it said."""

    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        said = capsys.readouterr()
        return code, " ".join(said.out.split()), said.err

    return run


def test_status_and_show_name_what_waits_its_changes_and_the_deadline(
    waits: SearchBuilder, llmzero: Llmzero
) -> None:
    _, said, _ = llmzero("status", waits.root)
    assert "Node 1 waits for approval: 20 steps from node 0 step 20, lr 0.001 → 0.0005" in said
    assert "accepted on 2023-11-15 00:1" in said
    assert f"`llmzero approve {waits.root}:1 [KEY=VALUE ...]` accepts it; --refuse sends it back." in said
    assert "1 evolve waits for approval from 0@20: lr 0.001 → 0.0005" in said
    assert "node=1 waits for approval" in llmzero("status", waits.root, "--log")[1]
    assert json.loads(llmzero("status", waits.root, "--json")[1])["waiting"] == [1]
    assert "changed lr 0.001 → 0.0005: " in llmzero("show", f"{waits.root}:1")[1]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((0,), 2, "node 0 is completed; these wait for approval: 1."),
        ((9,), 2, "node 9 is unknown; these wait for approval: 1."),
        ((1, "lr=7"), 2, "lr"),
        ((1, "lrr=7"), 2, "'lrr'"),
        ((1, "--steps", "900"), 2, "n_steps is 900 (training steps); must be between 1 and 60."),
        ((1, "lr=1e-4", "--refuse"), 2, "a refusal changes nothing; leave out --refuse to train with them."),
        ((1, "--reason", "x" * 3000), 2, "the reason has 3000 characters"),
        (("one",), 2, "NODE is 'one'"),
    ],
)
def test_an_answer_that_cannot_be_used_is_one_sentence_and_leaves_no_request(
    waits: SearchBuilder, llmzero: Llmzero, words: tuple[Any, ...], code: int, said: str
) -> None:
    found, _, error = llmzero("approve", waits.root, *words)
    assert (found, error.count("\n")) == (code, 1)
    assert said in error
    assert waiting_requests(waits.root) == ()


def test_where_nothing_waits_or_the_search_has_ended_an_answer_is_refused(
    waits: SearchBuilder, llmzero: Llmzero
) -> None:
    waits.post(ev.ApprovalAnswered(node=1, tries=0, accepted=True, source="user:1"))
    assert "node 1 is pending; no proposal waits" in llmzero("approve", waits.root, 1)[2]
    waits.post(ev.UserStop(reason="", source="user:2"))
    code, _, error = llmzero("approve", waits.root, 1)
    assert (code, "the search " in error) == (2, True)


def test_a_directory_that_cannot_be_written_is_a_storage_error(
    waits: SearchBuilder, llmzero: Llmzero
) -> None:
    (waits.root / "requests").write_text("no directory")
    code, _, error = llmzero("approve", waits.root, 1)
    assert (code, error.count("\n")) == (3, 1)


def test_an_answer_to_a_search_that_nobody_runs_is_kept_and_is_the_event_of_its_words(
    waits: SearchBuilder, llmzero: Llmzero
) -> None:
    code, said, _ = llmzero("approve", f"{waits.root}:1", "lr=2e-4", "--steps", "8", "--reason", "too hot")
    assert (code, said) == (0, "it is not running; kept for when it is resumed")
    (kept,) = waiting_requests(waits.root)
    event = event_of(waits.core, kept)
    assert isinstance(event, ev.ApprovalAnswered)
    assert (event.accepted, event.changes, event.n_steps, event.reason) == (True, {LR: 2e-4}, 8, "too hot")
    waits.post(event)
    _, said, _ = llmzero("status", waits.root, "--log")
    assert "node=1 proposal accepted with lr = 0.0002, 8 steps: too hot" in said
    assert recorded_course(str(waits.root))["approvals"] == {
        "1-0": {"accepted": True, "changes": {LR: 2e-4}, "n_steps": 8, "reason": "too hot"}
    }
