"""Several runners at once, and what a person may do in between."""

from __future__ import annotations

import math
import random

import pytest

from llmzero_ray.errors import SearchError
from llmzero_ray.search import SearchRules, TreeSearch
from tests.search.builders import STATUS, add, chosen, counters, grow, parents


def test_a_running_root_makes_the_other_runners_wait() -> None:
    search = grow(("root", None, "running", None))
    assert chosen(search) == ("wait", None)
    assert search.ask().seen.descent == ()
    assert search.stop_reason is None


def test_visits_in_flight_count_for_exploration_but_not_for_value() -> None:
    search = grow(
        ("root", None, "ok", 0.5),
        ("evolve", 0, "ok", 0.7),
        ("evolve", 1, "running", None),
    )
    top, below = search.ask().seen.descent
    # N_eff: root 3, node 1 2. One child: N_fair = 3/2. Q of node 1 is of its own finished run alone.
    ln3 = math.log(3)
    assert (top.visits, below.visits) == (3, 2)
    assert top.uct_new == pytest.approx(1.414 * math.sqrt(ln3 / 1.5))
    assert top.children[0].q == 1.0
    assert top.children[0].uct == pytest.approx(1 + 1.414 * math.sqrt(ln3 / 2))
    assert (below.k_fair, below.k_cap, below.children) == (1, 1, ())


def test_running_children_fill_slots_and_are_no_candidates() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "running", None))
    assert chosen(search) == ("evolve", 0)
    search.begin(search.ask())
    assert chosen(search) == ("wait", None)


def test_a_full_node_whose_children_are_all_blocked_is_no_candidate() -> None:
    search = grow(
        ("root", None, "ok", 0.5),
        ("evolve", 0, "ok", 0.9),
        ("evolve", 0, "ok", 0.1),
        ("evolve", 1, "running", None),
        ("evolve", 1, "running", None),
    )
    assert search.node(1).blocked
    assert not search.node(1).terminal
    assert [child.id for child in search.ask().seen.descent[0].children] == [2]
    assert chosen(search) == ("evolve", 2)


def test_a_finish_unblocks_the_path_at_once() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "running", None), max_evolve_children=1)
    assert chosen(search) == ("wait", None)
    search.tell(1, "completed", 0.6)
    assert chosen(search) == ("evolve", 1)


def test_several_debug_runs_of_one_failure_may_run_at_once() -> None:
    search = grow(("root", None, "failed", None))
    begun = [search.begin(search.ask()) for _ in range(3)]
    assert parents(search)[1:] == [0, 0, 0]
    assert chosen(search) == ("wait", None)
    search.tell(begun[1], "failed")
    assert chosen(search) == ("debug", 2)


def test_the_budget_counts_running_runs() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "running", None), budget=2)
    assert search.stop_reason == "budget"


@pytest.mark.parametrize("seed", range(5))
def test_one_runner_is_the_sequential_search(seed: int) -> None:
    """A run begun and told at once decides as one that runs for a while without another `ask` between."""
    rng = random.Random(seed)
    search, history = TreeSearch(SearchRules(), budget=25), []
    while (decision := search.ask()).action != "stop":
        node = search.begin(decision)
        assert search.running == (node,)
        status = rng.choice(("completed", "early_stopped", "failed"))
        score = rng.choice((None, rng.random()))
        search.tell(node, status, score)  # type: ignore[arg-type]
        history.append((decision, status, score))
    again = TreeSearch(SearchRules(), budget=25)
    for decision, status, score in history:
        assert again.ask() == decision
        again.tell(again.begin(decision), status, score)  # type: ignore[arg-type]
    assert again.nodes == search.nodes


# --- clone and veto -----------------------------------------------------------------------------------------


def test_a_clone_is_an_evolve_run_outside_the_cap_that_counts_everywhere_else() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "ok", 0.6), ("evolve", 0, "ok", 0.7), budget=5)
    clone = search.clone(0)
    top = search.ask().seen.descent[0]
    assert (top.visits, top.k_fair, top.k_cap) == (4, 3, 2)
    assert (search.ask().seen.n_scratch, search.ask().seen.n_evolve, search.ask().seen.created) == (1, 4, 4)
    assert search.node(clone).kind == "evolve"


def test_a_clone_reopens_a_closed_node() -> None:
    search = grow(("root", None, "failed", 0.3), max_debug_children=0)
    assert search.stop_reason == "exhausted"
    search.tell(search.clone(0), "completed", 0.5)
    assert chosen(search) == ("evolve", 1)


def test_the_fix_of_a_clone_fills_no_slot_either() -> None:
    search = grow(("root", None, "ok", 0.5))
    clone = search.clone(0)
    search.tell(clone, "failed")
    add(search, "debug", clone, "ok", 0.6)
    assert search.ask().seen.descent[0].k_cap == 0


def test_a_clone_needs_a_finished_unpruned_node_and_a_run_in_the_budget() -> None:
    search = grow(
        ("root", None, "ok", 0.5), ("evolve", 0, "running", None), ("evolve", 0, "ok", 0.4), budget=4
    )
    with pytest.raises(SearchError, match="still running"):
        search.clone(1)
    search.veto(2)
    with pytest.raises(SearchError, match="node 2 is pruned"):
        search.clone(2)
    with pytest.raises(SearchError, match="unknown"):
        search.clone(8)
    assert search.clone_problem() is None
    assert search.clone(0, 11) == 11
    assert search.clone_problem() == "all 4 runs of the budget are begun; raise budget.runs first."
    assert grow(("root", None, "ok", 0.5), budget=None).clone_problem() is None
    with pytest.raises(SearchError, match="budget of 4 runs is spent"):
        search.clone(0)


def test_a_veto_prunes_the_subtree_and_names_the_runs_to_stop() -> None:
    search = grow(
        ("root", None, "ok", 0.5),
        ("evolve", 0, "ok", 0.9),
        ("evolve", 1, "running", None),
        ("evolve", 1, "ok", 0.8),
        ("evolve", 3, "running", None),
    )
    assert sorted(search.veto(1)) == [2, 4]
    assert [node.pruned for node in search.nodes.values()] == [False, True, True, True, True]
    assert chosen(search) == ("evolve", 0)


@pytest.mark.parametrize("status", ["failed", "ok", "early"])
def test_a_vetoed_run_charges_no_failure_and_keeps_its_score(status: str) -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "running", None))
    search.veto(1)
    search.tell(1, STATUS[status], 0.9)
    assert counters(search, 0) == {
        "visits": 2,
        "v_val": 2,
        "v_fail": 0,
        "v_early": int(status == "early"),
        "v_unval": 0,
    }
    assert search.node(1).status == ("early_stopped" if status == "early" else "completed")
    assert (search.ask().seen.s_min, search.ask().seen.s_max) == (0.5, 0.9)


def test_a_vetoed_debug_run_fixes_nothing() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "failed", None), ("debug", 1, "running", None))
    assert search.veto(2) == (2,)
    search.tell(2, "completed", 0.9)
    assert search.node(2).parent == 1
    assert not search.node(1).pruned
    assert chosen(search)[0] in ("debug", "evolve")


def test_the_root_cannot_be_vetoed() -> None:
    search = grow(("root", None, "ok", 0.5))
    with pytest.raises(SearchError, match="stop the search instead"):
        search.veto(0)
    with pytest.raises(SearchError, match="unknown"):
        search.veto(4)
