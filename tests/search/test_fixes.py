"""A debug run that succeeds moves beside the failure it fixed, and the failed chain is pruned."""

from __future__ import annotations

from tests.search.builders import add, chosen, counters, grow, parents


def test_a_fix_becomes_a_sibling_of_the_failure_and_is_counted_only_there() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "failed", None), ("debug", 1, "ok", 0.6))
    assert parents(search) == [None, 0, 0]
    assert search.node(2).created_on == 1
    assert counters(search, 1) == {"visits": 1, "v_val": 0, "v_fail": 1, "v_early": 0, "v_unval": 0}
    assert counters(search, 0) == {"visits": 3, "v_val": 2, "v_fail": 1, "v_early": 0, "v_unval": 0}


def test_the_failures_subtree_is_pruned_and_keeps_its_slot() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "failed", None), ("debug", 1, "ok", 0.6))
    assert [node.pruned for node in search.nodes.values()] == [False, True, False]
    top = search.ask().seen.descent[0]
    assert (top.k_cap, top.full, [child.id for child in top.children]) == (2, True, [2])


def test_an_early_stop_fixes_as_well() -> None:
    search = grow(("root", None, "ok", 0.5), ("evolve", 0, "failed", None), ("debug", 1, "early", None))
    assert search.node(2).parent == 0
    assert search.node(1).pruned


def test_a_fix_deep_in_a_chain_moves_beside_the_topmost_failure() -> None:
    search = grow(
        ("root", None, "ok", 0.5),
        ("evolve", 0, "failed", None),
        ("debug", 1, "failed", None),
        ("debug", 1, "failed", None),
        ("debug", 2, "ok", 0.6),
    )
    assert search.node(4).parent == 0
    assert search.node(4).debug_depth == 0
    assert [node.pruned for node in search.nodes.values()] == [False, True, True, True, False]
    assert counters(search, 0)["v_fail"] == 3
    assert counters(search, 1)["visits"] == 3


def test_a_fixed_node_is_evolved_like_any_other_and_its_childs_failure_is_a_new_chain() -> None:
    search = grow(
        ("root", None, "ok", 0.5),
        ("evolve", 0, "failed", None),
        ("debug", 1, "ok", 0.6),
        ("evolve", 2, "failed", None),
        ("debug", 3, "ok", 0.7),
    )
    assert search.node(4).parent == 2
    assert [node.pruned for node in search.nodes.values()] == [False, True, False, True, False]


def test_a_failed_root_keeps_its_fix_is_never_pruned_and_is_full_then() -> None:
    search = grow(("root", None, "failed", None), ("debug", 0, "ok", 0.6))
    assert parents(search) == [None, 0]
    assert not search.node(0).pruned
    top, below = search.ask().seen.descent
    assert (top.k_cap, top.cap, top.full) == (1, 3, True)
    assert chosen(search) == ("evolve", 1)
    assert below.at == 1


def test_the_other_debug_children_of_a_fixed_root_are_pruned_and_nothing_else_is() -> None:
    search = grow(
        ("root", None, "failed", 0.4),
        ("debug", 0, "failed", None),
        ("scratch", 0, "failed", 0.3),
        ("debug", 1, "ok", 0.6),
    )
    assert parents(search) == [None, 0, 0, 0]
    assert [node.pruned for node in search.nodes.values()] == [False, True, False, False]
    assert search.node(3).debug_depth == 0


def test_a_fix_of_a_scratch_run_inherits_its_exemption() -> None:
    search = grow(
        ("root", None, "ok", 0.5),
        ("evolve", 0, "ok", 0.4),
        ("scratch", 0, "failed", None),
        ("debug", 2, "ok", 0.45),
    )
    top = search.ask().seen.descent[0]
    assert search.node(3).parent == 0
    assert (top.k_fair, top.k_cap, top.full) == (3, 1, False)


def test_the_chain_ends_at_the_scratch_run_even_when_that_hangs_on_a_failed_node() -> None:
    search = grow(
        ("root", None, "ok", 0.5),
        ("evolve", 0, "failed", 0.9),
        ("scratch", 1, "failed", None),
        ("debug", 2, "ok", 0.7),
    )
    assert search.node(3).parent == 1
    assert [node.pruned for node in search.nodes.values()] == [False, False, True, False]


def test_a_later_fix_never_takes_a_failure_back() -> None:
    search = grow(("root", None, "ok", 0.5), *[("evolve", 0, "failed", None)] * 3, o_f=0, rho_min=0)
    add(search, "debug", 1, "ok", 0.6)
    assert counters(search, 0)["v_fail"] == 3
    assert search.node(1).v_fail == 1


def test_a_run_in_flight_under_a_pruned_failure_is_pruned_and_its_failure_counts() -> None:
    search = grow(
        ("root", None, "ok", 0.5),
        ("evolve", 0, "failed", None),
        ("debug", 1, "running", None),
        ("debug", 1, "ok", 0.6),
    )
    assert search.node(2).pruned
    assert search.node(2).terminal
    search.tell(2, "failed")
    assert counters(search, 0)["v_fail"] == 2
    assert search.node(2).pruned


def test_a_second_fix_in_flight_leaves_the_pruned_chain_too() -> None:
    search = grow(
        ("root", None, "ok", 0.5),
        ("evolve", 0, "failed", None),
        ("debug", 1, "running", None),
        ("debug", 1, "ok", 0.6),
    )
    search.tell(2, "completed", 0.7)
    assert parents(search) == [None, 0, 0, 0]
    assert search.node(0).children == [1, 2, 3]
    assert [node.pruned for node in search.nodes.values()] == [False, True, False, False]
    assert chosen(search) == ("evolve", 2)


def test_a_second_fix_of_the_root_leaves_the_first_one_open() -> None:
    search = grow(("root", None, "failed", None), ("debug", 0, "running", None), ("debug", 0, "ok", 0.6))
    search.tell(1, "completed", 0.7)
    assert [node.pruned for node in search.nodes.values()] == [False, False, False]


def test_a_run_created_under_a_pruned_failure_is_pruned_until_it_fixes_it() -> None:
    search = grow(
        ("root", None, "ok", 0.5),
        ("evolve", 0, "failed", None),
        ("debug", 1, "ok", 0.6),
        ("debug", 1, "running", None),
    )
    assert search.node(3).pruned
    search.tell(3, "completed", 0.7)
    assert not search.node(3).pruned
    assert search.node(3).parent == 0


def test_a_fix_under_a_pruned_home_stays_pruned() -> None:
    search = grow(
        ("root", None, "ok", 0.5),
        ("evolve", 0, "failed", 0.4),
        ("scratch", 1, "failed", None),
        ("debug", 2, "running", None),
        ("debug", 1, "ok", 0.6),
    )
    search.tell(3, "completed", 0.7)
    assert search.node(3).parent == 1
    assert search.node(3).pruned
