"""The search and a second one, written from the rules alone, agree on random searches."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray.cli.explain import node_facts
from llmzero_ray.search import SearchRules, TreeDecision, TreeSearch
from tests.search.naive import NaiveSearch

STATUSES = ("completed", "early_stopped", "failed")
OUTCOMES = st.tuples(
    st.sampled_from(STATUSES),
    st.one_of(st.none(), st.sampled_from((0.0, 0.25, 0.5, 0.75)), st.floats(-2, 2, allow_nan=False)),
)
STEPS = st.lists(
    st.tuples(st.sampled_from(("ask", "ask", "ask", "tell", "clone", "veto")), st.integers(0, 63), OUTCOMES),
    min_size=5,
    max_size=45,
)
RULES = st.fixed_dictionaries(
    {},
    optional={
        "C": st.sampled_from((0.0, 0.3, 1.414, 4.0)),
        "T": st.sampled_from((0.05, 0.3, 2.0)),
        "w_f": st.sampled_from((0.0, 0.5, 2.0)),
        "w_e": st.sampled_from((0.0, 0.3, 2.0)),
        "o_f": st.integers(0, 3),
        "max_evolve_children": st.integers(1, 3),
        "max_debug_children": st.integers(0, 3),
        "max_debug_depth": st.integers(0, 3),
        "rho_min": st.sampled_from((0.0, 0.2, 0.5, 1.0)),
        "q_aggregate": st.sampled_from(("f_of_mean", "mean_of_f")),
    },
)


class Pair:
    """The two searches, driven alike and compared at every step."""

    def __init__(self, rules: dict[str, Any], budget: int | None) -> None:
        self.fast = TreeSearch(SearchRules(**rules), budget=budget)
        self.naive = NaiveSearch(budget=budget, **rules)

    def ask(self) -> TreeDecision:
        decision = self.fast.ask()
        action, on, levels = self.naive.ask()
        assert (decision.action, decision.on) == (action, on)
        assert len(decision.seen.descent) == len(levels)
        for mine, theirs in zip(decision.seen.descent, levels, strict=True):
            got = mine.to_dict()
            children = {str(key): view for key, view in theirs.pop("children").items()}
            assert got.pop("children") == {k: pytest.approx(v, abs=1e-9) for k, v in children.items()}
            assert got == pytest.approx(theirs, abs=1e-9)
        return decision

    def begin(self, decision: TreeDecision) -> int:
        node = self.fast.begin(decision)
        self.naive.add("create", node, decision.action, decision.on, decision.action == "scratch")
        return node

    def tell(self, node: int, outcome: tuple[Any, float | None]) -> None:
        self.fast.tell(node, *outcome)
        self.naive.add("finish", node, *outcome)

    def clone(self, choice: int) -> None:
        nodes = [n.id for n in self.fast.nodes.values() if not n.is_running and not n.pruned]
        if nodes and (self.fast.budget is None or len(self.fast.nodes) < self.fast.budget):
            on = nodes[choice % len(nodes)]
            self.naive.add("create", self.fast.clone(on), "evolve", on, True)

    def veto(self, choice: int) -> None:
        nodes = [n.id for n in self.fast.nodes.values() if n.kind != "root"]
        if nodes:
            node = nodes[choice % len(nodes)]
            running = self.fast.veto(node)
            self.naive.add("veto", node)
            state = self.naive.state
            assert set(running) == {n for n in state.subtree(node) if state.status[n] == "running"}

    def compare(self) -> None:
        state, table = self.naive.state, self.naive.table()
        best = self.fast.best
        assert (None if best is None else best.id) == self.naive.best(state)
        for node_id, row in table.items():
            node = self.fast.node(node_id)
            assert node_facts(node) == row
            assert node.blocked == self.naive.blocked(state, node_id)
            assert node.visits == node.v_val + node.v_fail + node.v_unval
            assert node.score == state.score[node_id]
            finished = [n for n in state.subtree(node_id) if state.status[n] != "running"]
            assert node.visits == len(finished)


def drive(pair: Pair, steps: list[tuple[str, int, tuple[Any, float | None]]], runners: int) -> None:
    for what, choice, outcome in steps:
        running = pair.fast.running
        decision = pair.ask()
        if what == "clone":
            pair.clone(choice)
        elif what == "veto" and choice % 4 == 0:
            pair.veto(choice // 4)
        elif what == "ask" and len(running) < runners and decision.action not in ("stop", "wait"):
            pair.begin(decision)
        elif running:
            pair.tell(running[choice % len(running)], outcome)
        pair.compare()


@given(rules=RULES, steps=STEPS, runners=st.integers(1, 5), budget=st.one_of(st.none(), st.integers(1, 12)))
def test_any_search_with_any_number_of_runners_follows_the_rules(
    rules: dict[str, Any], steps: list[Any], runners: int, budget: int | None
) -> None:
    drive(Pair(rules, budget), steps, runners)


@given(rules=RULES, outcomes=st.lists(OUTCOMES, max_size=30), seed=st.randoms(use_true_random=False))
def test_failure_rich_searches_with_many_fixes_in_flight_follow_the_rules(
    rules: dict[str, Any], outcomes: list[Any], seed: Any
) -> None:
    """Runs on any finished node, as a recorded history may hold them; half of all outcomes fail."""
    pair = Pair(rules, None)
    for outcome in outcomes:
        state = pair.naive.state
        open_nodes = [n for n, status in state.status.items() if status != "running"]
        if not state.kind:
            pair.begin(pair.ask())
        for on in seed.sample(open_nodes, min(2, len(open_nodes))):
            kind = "debug" if state.status[on] == "failed" else seed.choice(("evolve", "scratch"))
            node = pair.fast.create(kind, on)
            pair.naive.add("create", node, kind, on, kind == "scratch")
        running = pair.fast.running
        if seed.random() < 0.5:
            outcome = ("failed", outcome[1])
        pair.tell(seed.choice(running), outcome)
        pair.compare()
        pair.ask()


def random_outcome(rng: random.Random, p_fail: float) -> tuple[Any, float | None]:
    status = "failed" if rng.random() < p_fail else rng.choice(("completed", "early_stopped"))
    score = rng.choice((None, 0.5, round(rng.random(), 1), rng.random(), rng.random()))
    return status, score


def random_rules(rng: random.Random) -> dict[str, Any]:
    return {
        "C": rng.choice((0.0, 0.2, 1.414, 1.414)),
        "o_f": rng.randint(0, 2),
        "max_evolve_children": rng.randint(1, 3),
        "max_debug_children": rng.randint(0, 3),
        "max_debug_depth": rng.randint(1, 4),
        "rho_min": rng.choice((0.0, 0.2, 0.2, 0.4)),
        "q_aggregate": rng.choice(("f_of_mean", "mean_of_f")),
    }


@pytest.mark.parametrize("seed", range(30))
def test_long_searches_follow_the_rules_to_the_end(seed: int) -> None:
    """Up to 40 runs with 1 to 5 runners, clones and vetoes among them."""
    rng = random.Random(seed)
    pair, runners, p_fail = Pair(random_rules(rng), 40), rng.randint(1, 5), rng.choice((0.1, 0.4, 0.7))
    while (decision := pair.ask()).action != "stop":
        running = pair.fast.running
        if decision.action != "wait" and len(running) < runners and rng.random() < 0.8:
            pair.begin(decision)
        elif running:
            pair.tell(rng.choice(running), random_outcome(rng, p_fail))
        if rng.random() < 0.03:
            pair.clone(rng.randrange(40))
        if rng.random() < 0.02:
            pair.veto(rng.randrange(40))
        pair.compare()
