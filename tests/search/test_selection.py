"""Where the next child goes: the virtual new child against the candidates, caps, terminal nodes."""

from __future__ import annotations

import copy
import inspect
import math
import sys
from collections.abc import Iterator

import pytest

from llmzero_ray.errors import SearchError
from llmzero_ray.search import SearchRules, TreeSearch
from tests.search.builders import add, chosen, grow, parents

SQRT_LN2 = math.sqrt(math.log(2))


def test_the_first_run_is_the_root_and_run_one_of_the_budget() -> None:
    search = TreeSearch(SearchRules(), budget=1)
    assert chosen(search) == ("root", None)
    search.begin(search.ask())
    assert chosen(search) == ("stop", None)
    assert search.stop_reason == "budget"


def test_a_lone_root_is_evolved() -> None:
    search = grow(("root", None, "ok", 0.5))
    assert chosen(search) == ("evolve", 0)
    (level,) = search.ask().seen.descent
    assert (level.uct_new, level.children) == (1.0, ())  # prior 1 (the only score), ln 1 = 0


def test_a_better_child_is_descended_into_with_the_numbers_of_the_formulas() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "ok", 0.7))
    assert chosen(search) == ("evolve", 1)
    top, below = search.ask().seen.descent
    # N(root) = 2, one child: N_fair = 2/2 = 1; prior of the worst score is 0.
    assert (top.at, top.visits, top.k_fair, top.k_cap, top.cap, top.full) == (0, 2, 1, 1, 2, False)
    assert top.uct_new == pytest.approx(1.414 * SQRT_LN2)
    assert top.children[0].uct == pytest.approx(1 + 1.414 * SQRT_LN2)
    assert (below.at, below.visits, below.uct_new, below.children) == (1, 1, 1.0, ())


def test_a_worse_child_loses_to_the_virtual_new_child() -> None:
    search = grow(("root", None, "ok", 0.7), ("evolve", 0, "ok", 0.5))
    assert chosen(search) == ("evolve", 0)
    (level,) = search.ask().seen.descent
    assert level.uct_new == pytest.approx(1 + 1.414 * SQRT_LN2)
    assert level.children[0].uct == pytest.approx(1.414 * SQRT_LN2)


def test_the_virtual_child_must_win_by_more_than_rounding() -> None:
    # Equal scores: prior 1 and value 1, N_fair = 1 = N(child). A tie goes down.
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "ok", 0.5))
    assert chosen(search) == ("evolve", 1)


def test_an_early_stop_makes_the_new_child_win() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "early", 0.5))
    assert chosen(search) == ("evolve", 0)


def test_ties_between_children_go_to_the_lowest_id_even_when_created_later() -> None:
    search = TreeSearch(SearchRules())
    for node_id, on in ((5, None), (9, 5), (4, 5)):
        search.create("root" if on is None else "evolve", on, node_id)
        search.tell(node_id, "completed", 0.5)
    assert chosen(search) == ("evolve", 4)


def test_children_that_only_rounding_tells_apart_are_a_tie() -> None:
    # The subtrees of 1 and 2 hold the same scores; 0.3 + 0.2 + 0.1 is just below 0.1 + 0.2 + 0.3.
    search = grow(
        ("root", None, "ok", 0.0), ("evolve", 0, "ok", 0.3), ("evolve", 0, "ok", 0.1), C=0, rho_min=0
    )
    for on, scores in ((1, (0.2, 0.1)), (2, (0.2, 0.3))):
        for score in scores:
            add(search, "evolve", on, "ok", score)
    top, below, *_ = search.ask().seen.descent
    assert top.children[0].uct < top.children[1].uct
    assert below.at == 1


def test_a_full_node_is_never_expanded_however_large_its_new_child_looks() -> None:
    search = grow(("root", None, "ok", 0.9), ("evolve", 0, "ok", 0.1), ("evolve", 0, "ok", 0.2))
    top = search.ask().seen.descent[0]
    assert top.full
    assert top.uct_new > max(child.uct for child in top.children)
    assert search.ask().on in (1, 2)


def test_the_cap_depends_on_the_status() -> None:
    search = grow(("root", None, "ok", 0.1), ("evolve", 0, "failed", 0.9), max_evolve_children=1)
    assert [level.cap for level in search.ask().seen.descent] == [1, 3]


def test_a_failed_node_is_debugged_and_any_other_is_evolved() -> None:
    assert chosen(grow(("root", None, "failed", None))) == ("debug", 0)
    assert chosen(grow(("root", None, "early", None))) == ("evolve", 0)


def test_debug_depth_counts_the_chain_and_its_limit_closes_the_last_one() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "failed", None), max_debug_depth=2, rho_min=0)
    add(search, "debug", 1, "failed")
    add(search, "debug", 2, "failed")
    assert [node.debug_depth for node in search.nodes.values()] == [0, 0, 1, 2]
    assert [node.terminal for node in search.nodes.values()] == [False, False, False, True]
    with pytest.raises(StopIteration):
        next(child for level in search.ask().seen.descent for child in level.children if child.id == 3)


def test_a_node_is_terminal_when_full_with_only_terminal_children() -> None:
    search = grow(
        ("root", None, "ok", 0.5),
        ("evolve", 0, "failed", None),
        ("debug", 1, "failed", None),
        max_debug_children=1,
        max_debug_depth=1,
    )
    assert search.node(1).terminal
    assert not search.node(0).terminal


def test_a_terminal_root_exhausts_the_search() -> None:
    search = grow(("root", None, "failed", None), max_debug_children=0)
    assert chosen(search) == ("stop", None)
    assert search.stop_reason == "exhausted"


def test_terminal_children_fill_slots_and_count_for_fairness_but_are_no_candidates() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "failed", None), max_debug_children=0)
    (level,) = search.ask().seen.descent
    assert (level.k_fair, level.k_cap, level.children) == (1, 1, ())


def test_a_virtual_child_without_rivals_wins() -> None:
    search = grow(("root", None, "failed", None))
    (level,) = search.ask().seen.descent
    assert (level.uct_new, level.children) == (0.0, ())


def test_asking_changes_nothing() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "ok", 0.6), q_aggregate="mean_of_f")
    assert search.ask() == search.ask()


@pytest.fixture
def small_stack() -> Iterator[None]:
    """Python's stack with room for 100 more calls; a chain longer than its own 1,000 takes much longer."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 100)
    yield
    sys.setrecursionlimit(before)


def test_a_chain_longer_than_pythons_stack_needs_no_recursion(small_stack: None) -> None:
    search = TreeSearch(SearchRules(max_evolve_children=1, rho_min=0))
    for depth in range(300):
        search.create("evolve" if depth else "root", depth - 1 if depth else None)
        search.tell(depth, "completed", float(depth))
    assert search.ask().on == 299
    search.veto(1)
    assert search.node(299).pruned
    assert search.stop_reason == "exhausted"
    assert search.node(0).visits == 300


@pytest.mark.parametrize(
    ("kind", "on", "node_id", "message"),
    [
        ("root", None, None, "a root is created first, once"),
        ("evolve", None, None, "evolve needs the node it is created on"),
        ("evolve", 9, None, "node 9 is unknown; the search has 3 nodes"),
        ("evolve", 2, None, "node 2 is still running"),
        ("debug", 2, None, "node 2 is still running"),
        ("debug", 0, None, "debug needs a failed node, and node 0 is completed"),
        ("evolve", 0, 1, "node 1 exists already"),
    ],
)
def test_a_run_that_fits_nowhere_is_refused_and_changes_nothing(
    kind: str, on: int | None, node_id: int | None, message: str
) -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "failed", None), ("evolve", 0, "running", None))
    before = copy.deepcopy(dict(search.nodes))
    with pytest.raises(SearchError, match=message):
        search.create(kind, on, node_id)  # type: ignore[arg-type]
    assert dict(search.nodes) == before


def test_the_root_comes_first_and_on_nothing() -> None:
    with pytest.raises(SearchError, match="a root is created first"):
        TreeSearch().create("root", 3)
    with pytest.raises(SearchError, match="node 0 is unknown"):
        TreeSearch().create("evolve", 0)


def test_only_a_decision_to_run_can_begin() -> None:
    search = grow(("root", None, "running", None))
    with pytest.raises(SearchError, match="decision is 'wait'"):
        search.begin(search.ask())
    with pytest.raises(SearchError, match="decision is 'stop'"):
        TreeSearch(budget=1).begin(grow(("root", None, "ok", 0.1), budget=1).ask())


@pytest.mark.parametrize("budget", [0, -1, 1.5, True])
def test_a_budget_is_at_least_one_run(budget: object) -> None:
    with pytest.raises(SearchError, match="budget is"):
        TreeSearch(budget=budget)  # type: ignore[arg-type]


def test_ids_follow_each_other_unless_given() -> None:
    search = grow(("root", None, "ok", 0.5))
    assert search.create("evolve", 0, 7) == 7
    assert search.create("evolve", 0) == 8
    assert parents(search) == [None, 0, 0]
