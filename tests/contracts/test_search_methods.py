"""Every search method keeps the same contract, and the coordinator drives each through a whole search."""

from __future__ import annotations

import pytest

from llmzero_ray import commands as cmd
from llmzero_ray import events as ev
from llmzero_ray.coordinator import check_decisions, replay
from llmzero_ray.errors import ConfigError, SearchError
from llmzero_ray.search import SearchMethod, SearchRules, make_search
from tests.builders import ROOT, Driver, make_config, make_proposal
from tests.independent_runs import IndependentRuns

OWN = "tests.independent_runs:IndependentRuns"


class SearchMethodContract:
    """What a coordinator relies on; a method of one's own is tested by a subclass with its factory."""

    def make(self, budget: int | None) -> SearchMethod:
        raise NotImplementedError

    def grown(self, n: int, budget: int | None = None) -> SearchMethod:
        """A search in which `n` runs have ended, each as it was decided."""
        search = self.make(budget)
        for score in range(n):
            self.begin(search)
            search.tell(score, "completed", score / 10, 5)
        return search

    def begin(self, search: SearchMethod) -> int:
        decision = search.ask()
        assert decision.action not in ("stop", "wait")
        return search.create(decision.action, decision.on)  # type: ignore[arg-type]

    def test_a_search_begins_with_its_root_and_ends_with_its_budget(self) -> None:
        assert self.make(3).ask().action == "root"
        ended = self.grown(3, budget=3).ask()
        assert (ended.action, ended.stop_reason) == ("stop", "budget")

    def test_asking_changes_nothing(self) -> None:
        search = self.grown(2)
        assert search.ask() == search.ask()
        assert list(search.nodes) == [0, 1]

    def test_the_same_calls_give_the_same_decisions(self) -> None:
        assert self.grown(4).ask() == self.grown(4).ask()

    def test_what_is_shown_is_known_of_the_node(self) -> None:
        search = self.make(None)
        node = self.begin(search)
        assert search.node(node).is_running
        search.tell(node, "completed", 0.4, 7)
        found = search.node(node)
        assert (found.status, found.score, found.best_step) == ("completed", 0.4, 7)
        assert search.best is not None
        assert search.best.id == node

    def test_a_run_ends_once_and_a_node_is_known_or_refused(self) -> None:
        search = self.grown(1)
        with pytest.raises(SearchError):
            search.tell(0, "completed", 0.1, 1)
        with pytest.raises(SearchError):
            search.node(99)

    def test_the_recipe_of_a_node_ends_with_its_best_step(self) -> None:
        search = self.grown(2)
        assert search.recipe(1)[-1] == (1, 5)
        assert search.resume_chain(1)[-1] == 1

    def test_a_checkpoint_that_is_not_offered_is_refused(self) -> None:
        search = self.grown(1)
        node = self.begin(search)
        search.set_resume_from(node, None, None)
        with pytest.raises(SearchError):
            search.set_resume_from(node, 98, 3)

    def test_a_veto_prunes_and_names_what_still_trains(self) -> None:
        search = self.grown(1)
        node = self.begin(search)
        assert search.veto(node) == (node,)
        assert search.node(node).pruned
        with pytest.raises(SearchError):
            search.veto(0)

    def test_a_raised_budget_lets_the_search_go_on(self) -> None:
        search = self.grown(2, budget=2)
        search.budget = 3
        assert search.ask().action != "stop"

    def test_a_decision_is_explained_from_what_the_journal_keeps_of_it(self) -> None:
        search = self.grown(2)
        assert search.explain(search.ask().to_dict())


class TestTreeSearch(SearchMethodContract):
    def make(self, budget: int | None) -> SearchMethod:
        return make_search("llmzero", SearchRules(), budget)


class TestIndependentRuns(SearchMethodContract):
    def make(self, budget: int | None) -> SearchMethod:
        return make_search(OWN, SearchRules(), budget)


# --- the coordinator with another method --------------------------------------------------------------------


def driven(runs: int = 3) -> Driver:
    """A whole search of independent runs, each proposed from scratch and trained."""
    search = Driver(make_config(search={"method": OWN}, budget={"runs": runs}, final={"test": False}))
    search.ready()
    for node in range(runs):
        if node:
            search.propose(node, make_proposal(lr=1e-4 * node))
        search.start(node)
        search.finish(node, score=0.5 + node / 10)
    return search


def test_a_search_by_another_method_runs_to_its_end() -> None:
    search = driven()
    assert isinstance(search.core.search, IndependentRuns)
    asked = [command for command in search.commands if isinstance(command, cmd.Propose)]
    assert [(command.node, command.from_scratch) for command in asked] == [(1, True), (2, True)]
    trained = [command for command in search.commands if isinstance(command, cmd.RunPhase)]
    assert all(command.spec.resume_from is None for command in trained)
    stop = [event for event in search.journal if isinstance(event, ev.Decided)][-1]
    assert (stop.action, stop.stop_reason) == ("stop", "budget")
    best = search.core.best
    assert best is not None
    assert best.node == 2


def test_its_journal_replays_to_the_same_nodes_and_decisions() -> None:
    search = driven()
    again = replay(search.journal, ROOT)
    assert again.search.nodes == search.core.search.nodes
    checks = list(check_decisions(search.journal, ROOT))
    assert [check.differences for check in checks] == [()] * 4
    assert [check.reason for check in checks] == [f"{n} of 3 runs begun" for n in range(4)]


def test_a_veto_of_one_run_leaves_the_others() -> None:
    search = Driver(make_config(search={"method": OWN}, budget={"runs": 3}, slots={"count": 2}))
    search.ready(0, 1)
    search.post(ev.NodeVetoed(node=1, reason="no"))
    assert search.core.search.node(1).pruned
    assert not search.core.search.node(0).pruned


def test_a_method_that_cannot_be_loaded_is_named_with_its_key() -> None:
    with pytest.raises(ConfigError, match=r"search\.method is 'no\.such:method', which cannot be loaded"):
        make_search("no.such:method", SearchRules(), 4)
    with pytest.raises(ConfigError, match=r"search\.method is 'random'; must be llmzero or package\.module:"):
        make_config(search={"method": "random"})
