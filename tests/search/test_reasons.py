"""Decisions of the tree search in words: each kind of decision names the numbers that decided it."""

from __future__ import annotations

import dataclasses

import pytest

from llmzero_ray.errors import ConfigError
from llmzero_ray.search import SearchRules, TreeSearch
from llmzero_ray.search.registry import make_search
from tests.search.builders import add, grow

CLOSED = {"rho_min": 0.0}
"""No run is forced to begin from scratch."""


def why(search: TreeSearch) -> str:
    """The next decision in words, by way of what the journal holds of it."""
    return search.explain(search.ask().to_dict())


def test_the_first_run_needs_no_number() -> None:
    assert why(TreeSearch(SearchRules(), None)) == "first run of the search"


def test_a_forced_scratch_run_names_the_share_and_the_bound() -> None:
    search = grow(("root", None, "ok", 0.5), *(("evolve", 0, "ok", 0.6),) * 2, rho_min=0.4)
    assert why(search) == "1 of 3 runs from scratch = 0.333 < 0.4; node 1 is the best so far"


def test_a_new_child_is_weighed_against_the_best_child_or_has_no_rival() -> None:
    search = grow(("root", None, "ok", 0.5), **CLOSED)
    assert why(search) == "0: new child 1.000 without a rival"  # ln 1 = 0: the value of its only score
    add(search, "evolve", 0, "ok", 0.1)
    found = why(search)
    assert found.startswith("0: ") and " node 1 " in found


def test_a_full_node_passes_the_search_on() -> None:
    runs = (("root", None, "ok", 0.1), ("evolve", 0, "ok", 0.2), ("evolve", 0, "ok", 0.9))
    found = why(grow(*runs, **CLOSED))
    assert found.startswith("0: full, node 2 ") and "; 2: new child " in found


def test_a_child_that_promises_more_than_a_new_one_is_entered() -> None:
    search = grow(("root", None, "ok", 0.0), ("evolve", 0, "ok", 1.0), C=0.0, **CLOSED)
    assert why(search) == "0: node 1 1.000 >= new child 0.000; 1: new child 1.000 without a rival"


def test_only_the_last_levels_of_a_deep_descent_are_shown() -> None:
    chain = (("root", None, "ok", 0.0), *(("evolve", n, "ok", (n + 1) / 10) for n in range(6)))
    found = why(grow(*chain, C=0.0, **CLOSED))
    assert found.startswith("(3 levels above); 3: node 4 ") and found.endswith(
        "6: new child 1.000 without a rival"
    )


def test_a_fact_that_a_newer_version_wrote_does_not_hide_the_reason() -> None:
    search = grow(("root", None, "ok", 0.5), **CLOSED)
    written = search.ask().to_dict()
    newer = {**written, "seen": {**written["seen"], "n_created": 17}}
    assert search.explain(newer) == search.explain(written)


def test_waiting_names_what_runs() -> None:
    search = grow(("root", None, "running", None))
    assert why(search) == "nothing can be created before one of the 1 running runs ends"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("budget", "budget: 1 of 1 runs begun"),
        ("exhausted", "exhausted: no node can get another child"),
        ("user", "user: a person ended the search"),
        ("dollars", "dollars: a limit of the search was reached"),
    ],
)
def test_an_end_names_its_reason(reason: str, expected: str) -> None:
    search = grow(("root", None, "ok", 0.5), budget=1)
    decision = dataclasses.replace(search.ask(), stop_reason=reason)  # type: ignore[arg-type]
    assert search.explain(decision.to_dict()) == expected


def test_a_method_is_found_by_its_name_or_by_its_factory() -> None:
    assert isinstance(make_search("llmzero", SearchRules(), 3), TreeSearch)
    own = make_search("tests.independent_runs:IndependentRuns", SearchRules(), 3)
    assert not isinstance(own, TreeSearch)
    with pytest.raises(ConfigError, match=r"search\.method"):
        make_search("no_such_package:factory", SearchRules(), 3)
