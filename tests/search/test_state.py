"""A search as plain data: written, read, and replayed."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from llmzero_ray.search import SearchRules, TreeDecision, TreeSearch
from tests.search.builders import grow

STATUSES = ("completed", "completed", "early_stopped", "failed")


def step(search: TreeSearch, rng: random.Random, runners: int, log: list[Any]) -> bool:
    """One begin or tell of a random search; False when it is over."""
    decision = search.ask()
    if decision.action in ("stop", "wait") or len(search.running) >= runners:
        if not search.running:
            return False
        outcome = (rng.choice(search.running), rng.choice(STATUSES), rng.choice((None, rng.gauss(0, 1))))
        search.tell(*outcome)  # type: ignore[arg-type]
        log.append(outcome)
    else:
        search.begin(decision)
        log.append(decision)
    return True


def replayed(log: list[Any], rules: SearchRules, budget: int) -> TreeSearch:
    """The search that these begins and tells build, every decision found as it was."""
    search = TreeSearch(rules, budget=budget)
    for entry in log:
        if isinstance(entry, TreeDecision):
            recorded = TreeDecision.from_dict(json.loads(json.dumps(entry.to_dict())))
            assert search.ask() == recorded
            search.begin(recorded)
        else:
            search.tell(*entry)
    return search


@pytest.mark.parametrize("seed", range(12))
def test_a_search_replayed_from_any_point_goes_on_to_the_last_bit(seed: int) -> None:
    aggregate = "mean_of_f" if seed % 2 else "f_of_mean"
    rules, runners = SearchRules(q_aggregate=aggregate), 1 + seed % 4  # type: ignore[arg-type]
    search, rng, log = TreeSearch(rules, budget=40), random.Random(seed), []  # type: ignore[var-annotated]
    for _ in range(random.Random(seed).randrange(10, 60)):
        step(search, rng, runners, log)
    other = replayed(log, rules, 40)
    assert other.nodes == search.nodes
    state = rng.getstate()
    tails: list[list[Any]] = []
    for continued in (search, other):
        rng.setstate(state)
        tails.append([])
        while step(continued, rng, runners, tails[-1]):
            pass
    assert tails[0] == tails[1]
    assert search.nodes == other.nodes


def test_a_decision_keeps_all_it_saw_through_json() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "ok", 0.7), ("evolve", 1, "ok", 0.6), budget=9)
    decision = search.ask()
    data = json.loads(json.dumps(decision.to_dict()))
    assert TreeDecision.from_dict(data) == decision
    assert set(data["seen"]) == {
        "s_min",
        "s_max",
        "created",
        "budget",
        "running",
        "n_scratch",
        "n_evolve",
        "rho_min",
        "descent",
    }
    assert (data["seen"]["created"], data["seen"]["budget"]) == (3, 9)
    assert TreeDecision.from_dict(data).seen.descent == decision.seen.descent


def test_nodes_are_handed_out_read_only() -> None:
    search = grow(("root", None, "ok", 0.5))
    with pytest.raises(TypeError):
        search.nodes[0] = search.node(0)  # type: ignore[index]
