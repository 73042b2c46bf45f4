"""Checkpoint sources: what is offered, resume chains, cuts."""

from __future__ import annotations

import pytest

from llmzero_ray.errors import SearchError
from llmzero_ray.search import Cut, TreeSearch
from tests.search.builders import add, grow


def fixed_chain() -> TreeSearch:
    """1 resumed from 0 and failed, its fix 2 from 1, then 3 from 2, as in the paper's ChemCoT search."""
    search = grow(("root", None, "running", None))
    search.tell(0, "completed", 0.292, best_step=36)
    for node, kind, on, step, status, score, best_step in (
        (1, "evolve", 0, 59, "failed", 0.312, 13),
        (2, "debug", 1, 20, "early_stopped", 0.310, 18),
        (3, "evolve", 2, 19, "completed", 0.332, 37),
    ):
        search.create(kind, on)  # type: ignore[arg-type]
        search.set_resume_from(node, on, step)
        search.tell(node, status, score, best_step)  # type: ignore[arg-type]
    return search


def test_the_resume_chain_follows_checkpoints_not_tree_edges() -> None:
    search = fixed_chain()
    assert search.node(2).parent == 0
    assert search.resume_chain(3) == (0, 1, 2, 3)


def test_each_phase_is_cut_where_the_next_resumed_and_the_last_at_its_best() -> None:
    assert fixed_chain().cuts(3) == (Cut(0, 59), Cut(1, 20), Cut(2, 19), Cut(3, 37))


def test_a_run_from_scratch_has_one_cut() -> None:
    search = grow(("root", None, "ok", None))
    assert search.cuts(0) == (Cut(0, None),)


def test_the_offered_checkpoints_are_the_resume_chain_of_the_node_created_on() -> None:
    search = fixed_chain()
    assert search.offered_checkpoint_nodes(search.create("evolve", 3)) == (0, 1, 2, 3)
    assert search.offered_checkpoint_nodes(search.clone(2)) == (0, 1, 2)


def test_a_debug_run_is_offered_the_failed_runs_own_checkpoints() -> None:
    search = grow(("root", None, "failed", 0.1))
    assert search.offered_checkpoint_nodes(search.create("debug", 0)) == (0,)


def test_root_and_scratch_runs_are_offered_nothing() -> None:
    search = fixed_chain()
    assert search.offered_checkpoint_nodes(0) == ()
    assert search.offered_checkpoint_nodes(search.create("scratch", 3)) == ()


def test_a_child_of_a_scratch_run_is_offered_nothing_older() -> None:
    search = fixed_chain()
    scratch = add(search, "scratch", 3, "ok", 0.2)
    assert search.offered_checkpoint_nodes(search.create("evolve", scratch)) == (scratch,)


def test_without_stages_every_run_starts_from_the_base_model() -> None:
    search = grow(("root", None, "ok", 0.1), ("evolve", 0, "running", None), multi_stage=False)
    assert search.offered_checkpoint_nodes(1) == ()
    with pytest.raises(SearchError, match="starts from the base model"):
        search.set_resume_from(1, 0, 5)


def test_a_source_that_is_not_offered_is_refused_with_those_that_are() -> None:
    search = grow(
        ("root", None, "ok", 0.1),
        ("evolve", 0, "ok", 0.2),
        ("evolve", 0, "ok", 0.3),
        ("evolve", 1, "running", None),
    )
    search.node(1).resume_from = (0, 4)
    with pytest.raises(SearchError, match="resume source 2 is not offered; allowed: nodes 0, 1"):
        search.set_resume_from(3, 2, 5)
    with pytest.raises(SearchError, match="node 2 is completed; its checkpoint source is settled"):
        search.set_resume_from(2, 0, 5)


def test_a_run_whose_checkpoint_is_lost_starts_from_the_base_model() -> None:
    search = grow(("root", None, "ok", 0.1), ("evolve", 0, "running", None))
    search.set_resume_from(1, 0, 5)
    assert search.resume_chain(1) == (0, 1)
    search.set_resume_from(1, None, None)
    assert search.resume_chain(1) == (1,)


def test_the_best_nodes_checkpoints_are_offered_to_another_branch_where_that_is_asked_for() -> None:
    search = grow(
        ("root", None, "ok", 0.1),
        ("evolve", 0, "ok", 0.2),
        ("evolve", 0, "ok", 0.3),
        ("evolve", 1, "running", None),
        ("scratch", 2, "running", None),
    )
    search.node(1).resume_from = search.node(2).resume_from = (0, 4)
    assert search.offered_checkpoint_nodes(3) == (0, 1)
    search.offers_best = True
    assert search.offered_checkpoint_nodes(3) == (2, 0, 1)
    assert search.offered_checkpoint_nodes(4) == ()
    with pytest.raises(SearchError, match="resume source 3 is not offered"):
        search.set_resume_from(3, 3, 5)
    search.set_resume_from(3, 2, 5)
    assert search.resume_chain(3) == (0, 2, 3)
    search.veto(2)
    assert search.offered_checkpoint_nodes(search.create("evolve", 1)) == (0, 1)
