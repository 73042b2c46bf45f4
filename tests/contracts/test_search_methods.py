"""Every search method keeps the same contract, and the coordinator drives each through a whole search."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest

from llmzero_ray.agents.backend import make_agents
from llmzero_ray.coordinator import build_request, check_decisions, refusal, replay
from llmzero_ray.errors import ConfigError, SearchError
from llmzero_ray.records import Event, from_json, to_json
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.metrics import Curves
from llmzero_ray.search import (
    MethodRules,
    SearchMethod,
    SearchRules,
    load_method,
    make_search,
    plans_its_runs,
    shipped_methods,
)
from tests.builders import LR, ROOT, Driver, make_config, make_proposal
from tests.independent_runs import IndependentRuns

PLANNED = sorted(name for name in shipped_methods() if plans_its_runs(load_method(name)))
OWN = "tests.independent_runs:IndependentRuns"


class SearchMethodContract:
    """What a coordinator relies on; a method of one's own is tested by a subclass with its factory."""

    ends_with: tuple[str, ...] = ("budget",)

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
        search = self.make(3)
        assert search.ask().action == "root"
        while (decision := search.ask()).action != "stop":
            search.tell(self.begin(search), "completed", len(search.nodes) / 10, 5)
        assert decision.stop_reason in self.ends_with

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

    def test_the_last_cut_of_a_node_is_its_best_step(self) -> None:
        search = self.grown(2)
        assert search.cuts(1)[-1] == (1, 5)
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
        search = self.make(2)
        while search.ask().action != "stop":
            search.tell(self.begin(search), "completed", len(search.nodes) / 10, 5)
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


class TestSkills(SearchMethodContract):
    def make(self, budget: int | None) -> SearchMethod:
        return make_search("skills", SearchRules(), budget)


class PlannedContract(SearchMethodContract):
    """The methods that plan their runs themselves."""

    method: str
    rules: ClassVar[dict[str, Any]] = {}

    def make(self, budget: int | None) -> SearchMethod:
        return make_search(self.method, MethodRules.model_validate(self.rules), budget, seed=3)


class TestDefault(PlannedContract):
    method = "default"


class TestUnchanged(PlannedContract):
    method = "unchanged"


class TestRandom(PlannedContract):
    method = "random"


class TestTpe(PlannedContract):
    method = "tpe"


class TestCmaEs(PlannedContract):
    method = "cmaes"


class TestAsha(PlannedContract):
    method = "asha"


class TestPbt(PlannedContract):
    method, rules = "pbt", {"population": 2}


class TestPerturb(PlannedContract):
    method = "perturb"


class EndingContract(PlannedContract):
    """Those that have a last run, whatever the budget."""

    def test_a_raised_budget_lets_the_search_go_on(self) -> None:
        search = self.make(2)
        search.tell(self.begin(search), "completed", 0.5, 5)
        search.budget = 3
        assert search.ask().action != "stop"


class TestGrid(EndingContract):
    method = "grid"


class TestSchedule(EndingContract):
    method, rules = "schedule", {"schedule": "chemcot"}


class TestGuidebook(EndingContract):
    """It has three phases; the contract grows four."""

    method, rules = "guidebook", {"schedule": "ssmr"}


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
    with pytest.raises(ConfigError, match=r"search\.method is 'chance'; must be llmzero, default, "):
        make_search("chance", SearchRules(), 4)


# --- whole searches by the methods that plan their runs -----------------------------------------------------


class Planned(Driver):
    """A search whose proposer answers at once; a phase scores by its learning rate, its node's number and its
    start, and a node in `failing` fails."""

    failing: ClassVar[tuple[int, ...]] = (2,)

    def go_on(self, most: int = 1000) -> Planned:
        """Answer and train until the search has ended, or `most` events are in the journal."""
        while self.core.finished is None and len(self.journal) < most:
            if not self.core.slots[0].ready:
                self.ready()
                continue
            commands = self.core.outstanding()
            if asked := [one for one in commands if isinstance(one, cmd.Propose)]:
                request = build_request(self.core, asked[0], lambda _: Curves())
                agents = make_agents(self.config, 512)
                proposal = agents.proposer.propose(request)  # type: ignore[arg-type]
                self.post(ev.Proposed(node=asked[0].node, proposal=proposal, tries=asked[0].tries))
            elif trained := [one for one in commands if isinstance(one, cmd.RunPhase)]:
                self._train(trained[0])
            elif any(isinstance(one, cmd.WriteOutcome) for one in commands):
                self.post(ev.OutcomeWritten())
            else:
                raise AssertionError(f"nothing to do: {commands}")
        return self

    def _train(self, command: cmd.RunPhase) -> None:
        spec = command.spec
        if not self.core.runs[spec.node].started:
            self.start(spec.node)
        elif spec.node in self.failing:
            self.fail(spec.node)
        else:
            rate = float(str(spec.hyperparameters["actor_rollout_ref.actor.optim.lr"]))
            score = round(0.3 + 50 * rate + 0.01 * (spec.node % 3), 6)
            self.finish(spec.node, score=score, best_step=1, saved=(1, spec.n_steps))

    @classmethod
    def after_kill(cls, config: Any, journal: list[Event]) -> Planned:
        """A coordinator that finds this journal."""
        found = cls.__new__(cls)
        found.config, found.now, found.commands = config, 0.0, []
        found.journal = [from_json(json.loads(json.dumps(to_json(event)))) for event in journal]
        found.deliveries = {(event.source, event.attempt, event.sequence) for event in journal}
        found.core = replay(found.journal, ROOT)
        found.core.resume()
        pending = [one.event for one in found.core.outstanding() if isinstance(one, cmd.Record)]
        found.post(*pending)
        return found


def planned_config(method: str) -> Any:
    search = {"method": method, **({"schedule": "wildsci"} if method == "schedule" else {})}
    return make_config(
        search=search,
        budget={"runs": 8},
        phase={"n_steps": 20, "max_steps": 160, "test_freq": 10, "save_freq": 10},
        final={"test": False, "default_recipe": False},
    )


@pytest.mark.parametrize("method", PLANNED)
def test_a_whole_search_costs_its_budget_and_every_decision_can_be_taken_again(method: str) -> None:
    config = planned_config(method)
    search = Planned(config).go_on()
    assert search.core.finished is not None
    assert search.core.finished.reason in ("budget", "exhausted")
    trained = [run.spec.n_steps for run in search.core.runs.values() if run.spec is not None]
    assert abs(sum(trained) - 8 * 20) <= len(trained)  # each length is rounded
    refused = [event.message for event in search.journal if isinstance(event, ev.ProposalRefused)]
    assert refused == []
    checks = list(check_decisions(search.journal, ROOT))
    assert [check.differences for check in checks if check.differences] == []
    assert all(check.reason for check in checks)


@pytest.mark.parametrize("method", PLANNED)
def test_a_search_that_was_killed_anywhere_goes_on_to_the_same_end(method: str) -> None:
    config = planned_config(method)
    whole = Planned(config).go_on()

    def outcome(search: Planned) -> list[Any]:
        return [
            (run.spec.n_steps, run.spec.resume_from, dict(run.spec.hyperparameters), run.score)
            for run in search.core.runs.values()
            if run.spec is not None
        ]

    for at in range(3, len(whole.journal), max(1, len(whole.journal) // 4)):
        again = Planned.after_kill(config, whole.journal[:at]).go_on()
        assert outcome(again) == outcome(whole), at


@pytest.mark.parametrize("method", ["random", "tpe", "asha", "pbt", "grid"])
def test_a_clone_beyond_the_budget_is_refused_and_a_journal_that_has_one_opens(method: str) -> None:
    search = Planned(planned_config(method))
    while search.core.search.clone_problem() is None:
        search.go_on(len(search.journal) + 1)
    asked = ev.CloneAsked(of=0, step=None, changes={LR: 2e-4}, source="user:1")
    assert "raise budget.runs" in str(refusal(search.core, asked))
    node, seen = len(search.core.search.nodes), search.core.search.ask().seen.to_dict()
    decided = ev.Decided(
        action="evolve", on=0, node=node, slot=0, stop_reason=None, seen=seen, clone=asked.source
    )
    assert replay([*search.journal, asked, decided], ROOT).runs[node].clone == asked
    ended = search.go_on().core.finished
    assert ended is not None
    assert ended.reason in ("budget", "exhausted")


@pytest.mark.parametrize(
    ("changes", "n_steps"),
    [
        ({"lr_scheduler": "constant"}, 160),
        ({"lr_scheduler": "cosine"}, 80),
        ({"lr_warmup_ratio": 0.1}, 80),
        ({"lr_warmup_steps": 3}, 160),
    ],
    ids=str,
)
def test_a_rate_that_depends_on_the_length_knows_it_although_compute_limits_it(
    changes: dict[str, Any], n_steps: int
) -> None:
    config = make_config(
        search={
            "method": "schedule",
            "schedule": {"phases": [{"steps": 1, "changes": changes}] * 2},
        },
        budget={"runs": 8, "compute": 1.0, "token_cost": {"rollout": 1.0, "trained": 1.0}},
        phase={"n_steps": 20, "max_steps": 160, "test_freq": 10, "save_freq": 10},
        final={"test": False, "default_recipe": False},
    )
    specs = [run.spec for run in Planned(config).go_on().core.runs.values()]
    assert [spec.n_steps for spec in specs if spec is not None][:1] == [n_steps]


def test_the_default_recipe_needs_room_for_its_one_phase() -> None:
    with pytest.raises(ConfigError, match=r"one phase of budget\.runs x phase\.n_steps = 160 steps"):
        make_config(search={"method": "default"}, budget={"runs": 8})


def test_the_method_schedule_needs_its_schedule() -> None:
    with pytest.raises(ConfigError, match=r"search\.method is schedule, which needs search\.schedule"):
        make_config(search={"method": "schedule"})
