"""A search as plain data: written, read, and replayed."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from llmzero_ray.errors import ConfigError
from llmzero_ray.search import Decision, SearchRules, TreeSearch
from tests.search.builders import grow

STATUSES = ("completed", "completed", "early_stopped", "failed")


def step(search: TreeSearch, rng: random.Random, runners: int, log: list[Any]) -> bool:
    """One begin or tell of a random search; False when it is over."""
    decision = search.ask()
    if decision.action in ("stop", "wait") or len(search.running) >= runners:
        if not search.running:
            return False
        told = (rng.choice(search.running), rng.choice(STATUSES), rng.choice((None, rng.gauss(0, 1))))
        search.tell(*told)  # type: ignore[arg-type]
        log.append(told)
    else:
        search.begin(decision)
        log.append(decision)
    return True


@pytest.mark.parametrize("seed", range(12))
def test_a_search_restored_at_any_point_goes_on_to_the_last_bit(seed: int) -> None:
    aggregate = "mean_of_f" if seed % 2 else "f_of_mean"
    rules, runners = SearchRules(q_aggregate=aggregate), 1 + seed % 4  # type: ignore[arg-type]
    search, rng, log = TreeSearch(rules, budget=40), random.Random(seed), []  # type: ignore[var-annotated]
    for _ in range(random.Random(seed).randrange(10, 60)):
        step(search, rng, runners, log)
    other = TreeSearch.from_dict(json.loads(json.dumps(search.to_dict())))
    assert other.to_dict() == search.to_dict()
    state = rng.getstate()
    tails: list[list[Any]] = []
    for continued in (search, other):
        rng.setstate(state)
        tails.append([])
        while step(continued, rng, runners, tails[-1]):
            pass
    assert tails[0] == tails[1]
    assert search.to_dict() == other.to_dict()


@pytest.mark.parametrize("seed", range(8))
def test_replaying_begins_and_tells_rebuilds_the_same_tree(seed: int) -> None:
    rng, log = random.Random(seed), []  # type: ignore[var-annotated]
    search = TreeSearch(SearchRules(), budget=30)
    while step(search, rng, 1 + seed % 4, log):
        pass
    again = TreeSearch(SearchRules(), budget=30)
    for entry in log:
        if isinstance(entry, Decision):
            recorded = Decision.from_dict(json.loads(json.dumps(entry.to_dict())))
            assert again.ask() == recorded
            again.begin(recorded)
        else:
            again.tell(*entry)
    assert again.to_dict() == search.to_dict()


def test_a_decision_keeps_all_it_saw_through_json() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "ok", 0.7), ("evolve", 1, "ok", 0.6), budget=9)
    decision = search.ask()
    data = json.loads(json.dumps(decision.to_dict()))
    assert Decision.from_dict(data) == decision
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
    assert Decision.from_dict(data).seen.descent == decision.seen.descent


def test_persons_interventions_and_checkpoint_sources_survive() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "running", None))
    search.set_resume_from(1, 0, 12)
    search.tell(1, "completed", 0.6, best_step=7)
    clone = search.clone(0)
    search.veto(clone)
    other = TreeSearch.from_dict(search.to_dict())
    assert other.recipe(1) == search.recipe(1)
    other.tell(clone, "failed")
    assert other.node(0).v_fail == 0


def test_an_empty_search_survives() -> None:
    other = TreeSearch.from_dict(TreeSearch(SearchRules(C=0.5), budget=4).to_dict())
    assert (other.rules.C, other.budget, other.ask().action) == (0.5, 4, "root")


def test_rules_of_another_version_are_refused() -> None:
    data = TreeSearch().to_dict()
    data["rules"]["c_puct"] = 1.0
    with pytest.raises(ConfigError, match="'c_puct' is unknown"):
        TreeSearch.from_dict(data)


def test_nodes_are_handed_out_read_only() -> None:
    search = grow(("root", None, "ok", 0.5))
    with pytest.raises(TypeError):
        search.nodes[0] = search.node(0)  # type: ignore[index]
