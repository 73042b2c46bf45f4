"""Recorded runs as plain data: what is accepted, what is refused, and how they are played."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.errors import HistoryError
from llmzero_ray.search import SearchRules
from llmzero_ray.search.history import play_history, play_outcomes, read_history, read_outcomes

EXAMPLES = Path(__file__).parents[2] / "jobs" / "examples" / "paper"
ROOT = {"id": 0, "kind": "root", "on": None, "status": "completed", "score": 0.5}
FAILED = {"id": 1, "kind": "evolve", "on": 0, "status": "failed", "score": None}
RUNNING = {"id": 2, "kind": "evolve", "on": 0, "status": "running", "score": None}


def play(*entries: Any, **rules: Any) -> Any:
    return play_history(read_history(list(entries)), SearchRules(**rules))


# --- published trees ----------------------------------------------------------------------------------------

PUBLISHED = {
    "chemcot": [0, 2, 3, 5, 11],
    "papersearchqa": [0, 1, 2, 5],
    "ssmr": [0, 1, 4, 5],
    "wildsci": [0, 5, 13, 15],
}
"""Node paths of the best strategies, the paper's Tables 8 to 11."""


def published_edges(name: str) -> list[bool]:
    rows = read_outcomes(json.loads((EXAMPLES / f"{name}.json").read_text()))
    played = play_outcomes(rows, SearchRules())
    assert played.unused == ()
    assert played.search.best is not None
    assert played.search.best.id == PUBLISHED[name][-1]
    path = PUBLISHED[name]
    return [played.search.node(child).parent == parent for parent, child in pairwise(path)]


def test_the_rules_reproduce_eleven_of_the_thirteen_published_parent_edges() -> None:
    edges = {name: published_edges(name) for name in PUBLISHED}
    assert edges == {
        "chemcot": [True, True, True, False],
        "papersearchqa": [True, True, False],
        "ssmr": [True, True, True],
        "wildsci": [True, True, True],
    }
    assert sum(sum(found) for found in edges.values()) == 11


@pytest.mark.parametrize(
    ("name", "slots"), [("chemcot", {12}), ("papersearchqa", {6, 11}), ("wildsci", {11})]
)
def test_the_papers_forty_hour_runs_fall_on_forced_scratch_slots(name: str, slots: set[int]) -> None:
    rows = read_outcomes(json.loads((EXAMPLES / f"{name}.json").read_text()))
    decisions = play_outcomes(rows, SearchRules()).decisions
    assert slots <= {row for row, decision in decisions if decision.action == "scratch"}


# --- playing ------------------------------------------------------------------------------------------------


def test_a_history_is_taken_at_its_word() -> None:
    """The rules would neither expand a full node nor attach a scratch run here."""
    search = play(
        ROOT,
        *({"id": k, "kind": "evolve", "on": 0, "status": "completed", "score": 0.1} for k in (1, 2, 3)),
        {"id": 4, "kind": "scratch", "on": 3, "status": "completed", "score": 0.1},
    )
    assert search.ask().seen.descent[0].k_cap == 3
    assert search.node(4).exempt


def test_a_running_run_stays_in_flight_and_its_score_is_not_looked_at() -> None:
    search = play(ROOT, {**RUNNING, "score": 0.9})
    assert search.running == (2,)
    assert (search.ask().seen.s_min, search.ask().seen.s_max) == (0.5, 0.5)


def test_score_and_node_created_on_may_be_left_out_where_they_are_null() -> None:
    search = play({"id": 0, "kind": "root", "status": "completed"})
    assert search.node(0).score is None


def test_an_empty_history_is_a_search_that_has_not_begun() -> None:
    assert play().ask().action == "root"


def test_ids_need_not_follow_each_other() -> None:
    search = play({**ROOT, "id": 7}, {**FAILED, "id": 3, "on": 7})
    assert list(search.nodes) == [7, 3]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"id": 0}, "history: the file must hold a list of objects with id, status, score, kind, on."),
        (None, "the file must hold a list of objects"),
        ([ROOT, []], "the file must hold a list of objects"),
        (
            [{**ROOT, "stauts": "failed"}],
            "history entry 0 (id 0): unknown key 'stauts'; did you mean 'status'?",
        ),
        ([{**ROOT, "zzz": 1}], "unknown key 'zzz'. Known keys: id, status, score, kind, on."),
        ([{"kind": "root", "status": "completed"}], "history entry 0: id is missing"),
        ([{**ROOT, "id": "0"}], "history entry 0 (id '0'): id is '0'; must be a whole number"),
        ([{**ROOT, "id": True}], "id is true; must be a whole number"),
        ([{**ROOT, "id": 0.0}], "id is 0.0; must be a whole number"),
        ([ROOT, {**FAILED, "on": "0"}], "history entry 1 (id 1): on is '0'; must be a whole number"),
        ([{**ROOT, "kind": "leaf"}], "kind is 'leaf'; must be one of root, evolve, debug, scratch"),
        (
            [{**ROOT, "status": "pending"}],
            "status is 'pending'; must be running or one of completed, early_stopped, failed",
        ),
        ([{**ROOT, "status": ["failed"]}], "status is ['failed']; must be running or one of"),
        (
            [{**ROOT, "score": float("nan")}],
            "history entry 0 (id 0): score is nan; must be a number >= -1e+100",
        ),
        ([{**ROOT, "score": "0.5"}], "score is '0.5'; must be a number"),
        ([FAILED], "history entry 0: node 0 is unknown; the search has 0 nodes"),
        ([ROOT, {**FAILED, "on": 5}], "history entry 1: node 5 is unknown; the search has 1 nodes"),
        ([ROOT, {**FAILED, "on": 1}], "history entry 1: node 1 is unknown"),
        ([ROOT, {**FAILED, "on": None}], "history entry 1: node 1: evolve needs the node it is created on"),
        ([ROOT, RUNNING, {**FAILED, "on": 2}], "history entry 2: node 1: node 2 is still running"),
        ([ROOT, {**ROOT, "id": 1}], "history entry 1: node 1: a root is created first, once"),
        ([{**ROOT, "on": 3}], "history entry 0: node 0: a root is created first, once, and on no other node"),
        ([ROOT, {**FAILED, "id": 0}], "history entry 1: node 0 exists already; ids must be unique"),
        (
            [ROOT, {**FAILED, "kind": "debug"}],
            "history entry 1: node 1: debug needs a failed node, and node 0 is completed",
        ),
    ],
)
def test_an_impossible_history_is_refused_with_the_entry_named(entries: Any, message: str) -> None:
    with pytest.raises(HistoryError) as refused:
        play_history(read_history(entries), SearchRules())
    assert message in str(refused.value)


def test_rows_of_a_closed_loop_are_begun_where_the_rules_say() -> None:
    rows = [
        {"id": 10, "status": "completed", "score": 0.5},
        {"id": 11, "status": "failed", "score": None},
        {"id": 12, "status": "running", "score": None},
    ]
    played = play_outcomes(read_outcomes(rows), SearchRules(max_evolve_children=1))
    assert [(row, made.action, made.on) for row, made in played.decisions] == [
        (10, "root", None),
        (11, "evolve", 10),
        (12, "debug", 11),
    ]
    assert played.search.running == (12,)


def test_rows_after_a_stop_or_a_wait_are_named() -> None:
    rows = read_outcomes([{"id": k, "status": "running", "score": None} for k in range(3)])
    assert play_outcomes(rows, SearchRules()).unused == (1, 2)
    ended = read_outcomes([{"id": k, "status": "completed", "score": None} for k in range(3)])
    played = play_outcomes(ended, SearchRules(), budget=2)
    assert (played.unused, played.search.stop_reason) == ((2,), "budget")


def test_a_repeated_row_is_refused() -> None:
    rows = read_outcomes([{"id": 0, "status": "completed", "score": None}] * 2)
    with pytest.raises(HistoryError, match="outcomes entry 1: node 0 exists already"):
        play_outcomes(rows, SearchRules())


def test_a_row_that_names_its_parent_is_no_outcome() -> None:
    with pytest.raises(HistoryError, match=r"outcomes entry 0 \(id 0\): unknown key 'kind'"):
        read_outcomes([ROOT])
