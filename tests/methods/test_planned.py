"""The methods that plan their runs: which run comes next, from where, how long, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.config.schedule import ParameterRange, Ranges, Schedule, read_schedule, shipped
from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.errors import ConfigError, SearchError
from llmzero_ray.launch.preflight import check_plan
from llmzero_ray.methods import PlannedSearch, RunPlan
from llmzero_ray.methods.population import quantiles
from llmzero_ray.search import (
    MethodRules,
    SearchRules,
    load_method,
    make_search,
    plans_its_runs,
    shipped_methods,
)
from tests.builders import make_config


def make(method: str, budget: int | None = 8, seed: int = 1, **rules: Any) -> PlannedSearch:
    search = make_search(method, MethodRules(**rules), budget, seed)
    assert isinstance(search, PlannedSearch)
    return search


def begin(search: PlannedSearch) -> tuple[int, RunPlan]:
    decision = search.ask()
    assert decision.action not in ("stop", "wait"), decision
    node = search.create(decision.action, decision.on)  # type: ignore[arg-type]
    return node, search.node(node).plan


def run(search: PlannedSearch, scores: Callable[[int], float | None] | Sequence[float | None]) -> list[Any]:
    """The search to its end, one run at a time: (action, on, plan) of each."""
    score_of = scores if callable(scores) else lambda node: scores[node % len(scores)]
    done = []
    for _ in range(100):
        decision = search.ask()
        if decision.action == "stop":
            break
        node, plan = begin(search)
        done.append((decision.action, decision.on, plan))
        score = score_of(node)
        search.tell(node, "failed" if score is None else "completed", score, None if score is None else 5)
    assert search.ask().action == "stop"
    return done


def rising(node: int) -> float:
    return node / 100


# --- static recipes -----------------------------------------------------------------------------------------


def test_methods_that_plan_their_runs_are_told_from_those_that_agents_decide_for() -> None:
    rules = MethodRules(schedule="chemcot")  # type: ignore[arg-type]
    made = {name: make_search(name, rules, 8) for name in shipped_methods()}
    assert len(made) == 13
    planned = {name for name, search in made.items() if plans_its_runs(search)}
    assert planned == made.keys() - {"llmzero", "skills"}
    assert planned == {name for name in made if plans_its_runs(load_method(name))}
    assert all(isinstance(made[name], PlannedSearch) for name in planned)


def test_the_default_recipe_takes_the_whole_budget_in_one_phase() -> None:
    search = make("default")
    assert [(action, plan.source, plan.units) for action, _, plan in run(search, rising)] == [
        ("root", "default", 8.0)
    ]
    search.budget = 10
    assert search.ask().on == 0
    assert begin(search)[1] == RunPlan(
        source="unchanged", start="last", units=2.0, why="the budget was raised: the recipe continues"
    )
    assert search.ask().stop_reason == "budget"


def test_without_a_budget_the_default_recipe_goes_on_phase_by_phase() -> None:
    search = make("default", None)
    node, plan = begin(search)
    assert plan.units == 1.0
    assert search.ask().action == "wait"
    search.tell(node, "completed", 0.1, 5)
    assert begin(search)[1].units == 1.0


@pytest.mark.parametrize(
    ("method", "source"), [("random", "draw"), ("grid", "cell"), ("tpe", "suggest"), ("cmaes", "suggest")]
)
def test_the_budget_is_split_over_eight_recipes(method: str, source: str) -> None:
    done = run(make(method, 16), rising)
    assert [(plan.source, plan.start, plan.units, plan.number) for _, _, plan in done] == [
        (source, "base", 2.0, number) for number in range(8)
    ]
    assert [action for action, _, _ in done] == ["root"] + ["scratch"] * 7


def test_a_raised_budget_buys_further_random_recipes_but_no_further_cell_of_the_grid() -> None:
    random, grid = make("random", n_trials=2), make("grid", n_trials=2)
    for search in (random, grid):
        run(search, rising)
        search.budget = 16
    assert random.ask().action == "scratch"
    assert (grid.ask().action, grid.ask().stop_reason) == ("stop", "exhausted")
    assert grid.explain(grid.ask().to_dict()) == "done (2 runs begun, 8 of 16 standard phases)"


def test_runs_from_the_base_model_go_side_by_side() -> None:
    search = make("random")
    assert [begin(search)[0] for _ in range(3)] == [0, 1, 2]


# --- chains -------------------------------------------------------------------------------------------------


def test_an_unchanged_continuation_follows_its_last_node_whatever_it_scored() -> None:
    search = make("unchanged", 4)
    assert [on for _, on, _ in run(search, [0.5, 0.1, None, 0.2])] == [None, 0, 1, 2]
    assert {plan.start for _, _, plan in run(make("unchanged", 3), rising)[1:]} == {"last"}


def test_a_chain_waits_for_its_running_phase_and_says_so() -> None:
    for method in ("unchanged", "perturb", "guidebook"):
        search = make(method)
        begin(search)
        waiting = search.ask()
        assert waiting.action == "wait"
        assert "1 that train" in search.explain(waiting.to_dict())


def test_a_random_change_starts_from_the_best_adapter() -> None:
    search = make("perturb", 5)
    assert [on for _, on, _ in run(search, [0.3, 0.5, 0.1, 0.5, 0.2])] == [None, 0, 1, 1, 1]


def test_where_nothing_has_a_score_a_random_change_starts_from_the_root() -> None:
    assert [on for _, on, _ in run(make("perturb", 3), [None])] == [None, 0, 0]


def test_a_vetoed_node_is_not_gone_on_from() -> None:
    search = make("perturb", 8)
    for score in (0.3, 0.5):
        search.tell(begin(search)[0], "completed", score, 5)
    search.veto(1)
    assert search.ask().on == 0


def test_a_schedule_shares_the_budget_among_its_phases_and_ends() -> None:
    phases = [{"steps": 60, "changes": {"n": 6}}, {"steps": 20}]
    search = make("schedule", 8, schedule={"phases": phases})
    done = run(search, rising)
    assert [(plan.source, plan.start, plan.units, plan.number) for _, _, plan in done] == [
        ("phase", "base", 6.0, 0),
        ("phase", "last", 2.0, 1),
    ]
    search.budget = 12
    assert search.ask().stop_reason == "exhausted"
    assert sum(plan.units for _, _, plan in run(make("guidebook", None), rising)) == 3.0


# --- successive halving -------------------------------------------------------------------------------------


def test_halving_promotes_the_better_half_of_each_rung() -> None:
    done = run(make("asha", 8), [0.1, 0.3, 0.35, 0.2, 0.5, 0.55, 0.6])
    assert [(on, plan.source, plan.units) for _, on, plan in done] == [
        (None, "draw", 1.0),
        (0, "draw", 1.0),
        (1, "unchanged", 1.0),  # node 1 is the better of two; its rung 1 has .35
        (0, "draw", 1.0),
        (0, "draw", 1.0),
        (4, "unchanged", 1.0),  # two of four may go on: node 4 with .5 is next to node 1
        (5, "unchanged", 2.0),  # of rung 1, node 5 with .55 beats node 2
    ]


def test_halving_never_promotes_a_failure_and_no_rung_is_beyond_the_budget() -> None:
    assert {plan.source for _, _, plan in run(make("asha", 4), [None])} == {"draw"}
    assert {plan.source for _, _, plan in run(make("asha", 3, eta=4), rising)} == {"draw"}
    unlimited = make("asha", None)
    for score in (0.1, 0.2):
        unlimited.tell(begin(unlimited)[0], "completed", score, 5)
    assert unlimited.ask().on == 1


@pytest.mark.parametrize("eta", [2, 4])
def test_a_clone_is_in_no_rung_and_promotes_nothing(eta: int) -> None:
    """Its one phase is not what a promoted recipe trains, and its recipe is a person's."""
    search = make("asha", None, eta=eta)
    for number in range(eta):
        search.tell(begin(search)[0], "completed", number / 10, 5)
    best = eta - 1
    for _ in range(eta):
        search.tell(search.clone(best), "completed", 0.9, 5)
    decision = search.ask()
    assert (decision.on, decision.seen.plan.units) == (best, eta - 1)
    search.tell(begin(search)[0], "completed", 0.5, 5)
    assert search.ask().seen.plan.source == "draw"


# --- population based training ------------------------------------------------------------------------------


def test_the_worst_member_explores_from_the_best_and_the_others_go_on() -> None:
    done = run(make("pbt", 8), [0.4, 0.3, 0.2, 0.1, 0.5, 0.35, 0.25, 0.6])
    assert [(plan.source, plan.number) for _, _, plan in done[:4]] == [
        ("default", 0),
        ("draw", 1),
        ("draw", 2),
        ("draw", 3),
    ]
    assert [(on, plan.source, plan.number) for _, on, plan in done[4:]] == [
        (0, "unchanged", 0),
        (1, "unchanged", 1),
        (2, "unchanged", 2),
        (4, "explore", 3),  # member 3 has .1; the best is member 0, whose last node is 4
    ]


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
def test_members_that_train_side_by_side_count_with_their_runs_before(slots: int) -> None:
    """Member 3 is always the best and member 0 the worst, so none but member 0 copies anybody."""
    search, training, copies = make("pbt", 16), list[int](), list[tuple[int, int]]()
    while search.ask().action != "stop" or training:
        while len(training) < slots and search.ask().action not in ("wait", "stop"):
            node, plan = begin(search)
            training.append(node)
            if plan.source == "explore":
                assert plan.on is not None
                copies.append((plan.number, search.node(plan.on).plan.number))
        ended = training.pop(0)
        search.tell(ended, "completed", search.node(ended).plan.number / 10, 5)
    assert {copier for copier, _ in copies} == {0} and copies[-1] == (0, 3)


def test_a_member_whose_run_failed_takes_over_another_one() -> None:
    search = make("pbt", 6, population=2)
    for score in (None, 0.3):
        search.tell(begin(search)[0], "failed" if score is None else "completed", score)
    assert (begin(search)[1].source, search.node(2).parent) == ("explore", 1)
    assert begin(search)[1].source == "unchanged"  # member 1: node 2 still trains
    assert search.ask().action == "wait"
    alone = make("pbt", 6, population=2)
    for _ in range(2):
        alone.tell(begin(alone)[0], "failed")
    assert begin(alone)[1].source == "unchanged"  # nobody has a score


def test_the_donor_is_drawn_from_the_seed() -> None:
    def donor(seed: int) -> int | None:
        search = make("pbt", 16, seed, population=8, quantile=0.5)
        for score in (0.0, 1, 2, 3, 4, 5, 6, 7):
            search.tell(begin(search)[0], "completed", score / 10, 5)
        return search.ask().on

    assert donor(1) == donor(1)
    assert {donor(seed) for seed in range(40)} == {4, 5, 6, 7}


@pytest.mark.parametrize(
    ("scores", "lower", "upper"),
    [
        ({}, [], []),
        ({0: 0.5}, [], []),
        ({0: 0.5, 1: 0.4}, [1], [0]),
        ({0: 0.1, 1: 0.2, 2: 0.3}, [0], [2]),
        ({0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1, 4: 0.0}, [4, 3], [1, 0]),
    ],
)
def test_quantiles_are_the_ends_of_the_ranking(
    scores: dict[int, float], lower: list[int], upper: list[int]
) -> None:
    found = quantiles(scores, 0.25)
    assert (list(found[0]), list(found[1])) == (lower, upper)


def test_a_quantile_is_never_more_than_half_of_the_population() -> None:
    assert [len(part) for part in quantiles({0: 0.1, 1: 0.2, 2: 0.3}, 0.5)] == [1, 1]


# --- what all share -----------------------------------------------------------------------------------------


def test_a_plan_is_cut_to_what_is_left_of_the_budget() -> None:
    search = make("asha", 3)
    done = run(search, [0.1, 0.3, 0.5, 0.2])
    assert search.units == 3.0
    assert [plan.units for _, _, plan in done] == [1.0, 1.0, 1.0]
    short = make("pbt", 2, population=3)
    assert [plan.units for _, _, plan in run(short, rising)] == [1.0, 1.0]
    part = make("random", 4, n_trials=3)
    assert sum(plan.units for _, _, plan in run(part, rising)) == pytest.approx(4)
    longer = make("guidebook", 4)
    longer.budget = 1
    assert begin(longer)[1].units == pytest.approx(1 / 3)
    longer.budget = 4
    longer.tell(0, "completed", 0.5, 5)
    longer.budget = 1
    assert begin(longer)[1].units == pytest.approx(1 / 3)
    grown = make("default", 4)
    begin(grown)
    assert grown.ask().stop_reason == "budget"
    halved = make("asha", 4)
    for score in (0.1, 0.2, 0.3, 0.15):
        halved.tell(begin(halved)[0], "completed", score, 5)
    assert halved.ask().stop_reason == "budget"
    cut = make("schedule", 2, schedule={"phases": [{"steps": 1}, {"steps": 1}]})
    cut.tell(begin(cut)[0], "completed", 0.5, 5)
    cut.clone(0)
    assert cut.ask().stop_reason == "budget"
    most = make("random", 3, n_trials=2)
    most.tell(begin(most)[0], "completed", 0.5, 5)
    most.clone(0)
    assert begin(most)[1].units == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("rules", "runs", "steps"),
    [
        ({"method": "random"}, 24, 300),
        ({"method": "tpe", "n_trials": 2}, 5, 250),
        ({"method": "asha"}, 16, 400),  # the first of rung 3
        ({"method": "guidebook"}, 8, 267),
        ({"method": "schedule", "schedule": "chemcot"}, 8, 270),
        ({"method": "random"}, 16, None),
        ({"method": "asha"}, 8, None),
        *(({"method": method}, 24, None) for method in ("llmzero", "unchanged", "pbt", "perturb", "skills")),
    ],
    ids=str,
)
def test_a_new_search_whose_runs_would_be_cut_is_refused(
    rules: dict[str, Any], runs: int, steps: int | None
) -> None:
    config = make_config(search=rules, budget={"runs": runs}, phase={"n_steps": 100, "max_steps": 200})
    said = rf"longest run has .* x phase\.n_steps = {steps} steps; phase\.max_steps is 200 and must be"
    with pytest.raises(ConfigError, match=said) if steps else nullcontext():
        check_plan(config)
    if steps:
        check_plan(
            make_config(search=rules, budget={"runs": runs}, phase={"n_steps": 100, "max_steps": steps})
        )


@pytest.mark.parametrize(
    ("rules", "cells"),
    [
        ({"n_trials": 10}, 8),
        ({"n_trials": 4}, 8),
        ({"grid": "paper_ssmr"}, 16),
        ({"grid": {"lr": [1, 2, 3]}}, 3),
        ({}, None),
        ({"grid": "paper"}, None),
        ({"grid": "paper_ssmr", "n_trials": 16}, None),
    ],
    ids=str,
)
def test_a_new_grid_search_has_a_trial_for_each_cell(rules: dict[str, Any], cells: int | None) -> None:
    said = rf"the grid has {cells} cells; set search\.n_trials to {cells}"
    with pytest.raises(ConfigError, match=said) if cells else nullcontext():
        check_plan(make_config(search={"method": "grid", **rules}, budget={"runs": 16}))


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (
            {"method": "random", "ranges": {"learnig_rate": {"low": 0.1, "high": 0.2}}},
            "ranges: .*mean 'learn",
        ),
        (
            {"method": "tpe", "ranges": {"lr": {"low": 0.05, "high": 0.2}}},
            r"ranges: lr=0\.2 .* in \[0, 0\.1\]",
        ),
        ({"method": "asha", "ranges": {"lr": {"choices": ["a", "b"]}}}, "ranges: lr='a' "),
        ({"method": "pbt", "ranges": {"lr": {"choices": ["a"], "of_default": True}}}, "'a' is no factor"),
        ({"method": "random", "ranges": {"val_top_k": {"choices": [1]}}}, "ranges: .* may not be changed"),
        ({"method": "grid", "grid": {"lrr": [1.0, 2.0]}, "n_trials": 2}, "grid: .* did you mean 'lr'"),
        ({"method": "grid", "grid": {"lr": [1.0, 1e9]}, "n_trials": 2}, r"grid: lr=1000000\.0 "),
        ({"method": "grid", "grid": {"min_lr_ratio": [1.0]}, "n_trials": 1}, "is null in the root"),
        ({"method": "grid", "grid": {"lr": [], "kl": [1.0]}}, "grid: lr has no factor; give some"),
        ({"schedule": {"phases": [{"steps": 5, "changes": {"lr": 5}}]}}, r"schedule: lr=5\.0 "),
        (
            {"schedule": {"relative_to": {"lr": 0}, "phases": [{"steps": 5, "changes": {"lr": 1e-4}}]}},
            "schedule: relative_to: lr is 0",
        ),
    ],
    ids=str,
)
def test_values_that_no_proposal_may_set_are_refused(rules: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=rf"search\.{said}" if ": " in said else said):
        check_plan(make_config(search={"method": "schedule", **rules}))


@pytest.mark.parametrize(
    "rules",
    [
        {"method": "random", "ranges": "paper"},
        {"method": "grid", "grid": "paper"},
        {"method": "random", "ranges": {"min_lr_ratio": {"low": 0.0, "high": 0.5}}},
        *({"method": "schedule", "schedule": name} for name in ("chemcot", "wildsci", "ssmr", "guidebook")),
    ],
    ids=str,
)
def test_values_that_proposals_may_set_are_accepted(rules: dict[str, Any]) -> None:
    check_plan(make_config(search=rules))


def test_a_clone_costs_a_phase_and_is_no_member_of_a_population() -> None:
    search = make("pbt", 3, population=2)
    search.tell(begin(search)[0], "completed", 0.5, 5)
    clone = search.clone(0)
    assert search.node(clone).plan.number == -1
    assert begin(search)[1].number == 1
    assert "all 3 standard phases of the budget are used; raise budget.runs" in str(search.clone_problem())
    with pytest.raises(SearchError, match=r"node 2 is running"):
        search.clone(2)
    search.veto(clone)
    search.tell(clone, "completed", 0.1, 5)
    with pytest.raises(SearchError, match=r"node 1 is pruned"):
        search.clone(clone)


def test_a_run_that_the_journal_has_and_this_version_would_not_begin_is_taken_as_one_phase() -> None:
    search = make("unchanged")
    search.tell(search.create("root", None), "completed", 0.5, 5)
    search.create("scratch", 0, 7)
    assert search.node(7).plan.number == -1
    assert list(search.nodes) == [0, 7]
    assert search.offered_checkpoint_nodes(7) == ()
    with pytest.raises(SearchError, match=r"node 7 does not fit"):
        search.create("evolve", 0, 7)


def test_checkpoints_are_offered_along_the_resume_chain() -> None:
    search = make("unchanged")
    for node in range(3):
        begin(search)
        if node:
            search.set_resume_from(node, node - 1, 5)
        search.tell(node, "completed", 0.5, 4)
    begin(search)
    assert search.offered_checkpoint_nodes(3) == (0, 1, 2)
    assert search.cuts(2) == ((0, 5), (1, 5), (2, 4))
    search.set_resume_from(3, 0, 5)
    assert search.resume_chain(3) == (0, 3)
    search.set_resume_from(3, None, None)
    assert search.resume_chain(3) == (3,)
    with pytest.raises(SearchError, match="resume source 9 is not offered; allowed: nodes 0, 1, 2"):
        search.set_resume_from(3, 9, 5)
    with pytest.raises(SearchError, match=r"node 2 is completed"):
        search.set_resume_from(2, 1, 5)


def test_a_veto_takes_what_was_trained_from_the_node_along() -> None:
    search = make("unchanged")
    for _ in range(2):
        search.tell(begin(search)[0], "completed", 0.5, 5)
    begin(search)
    assert search.node(1).created_on == 0
    assert search.veto(1) == (2,)
    assert (search.node(2).terminal, search.node(0).terminal) == (True, False)
    with pytest.raises(SearchError, match=r"stop the search instead"):
        search.veto(0)


def test_what_cannot_be_told_is_refused() -> None:
    search = make("random")
    begin(search)
    with pytest.raises(SearchError, match=r"status is 'ended'"):
        search.tell(0, "ended")  # type: ignore[arg-type]
    with pytest.raises(SearchError, match=r"score is nan"):
        search.tell(0, "completed", float("nan"))
    search.tell(0, "completed", 0.5, 5)
    with pytest.raises(SearchError, match=r"already completed"):
        search.tell(0, "completed", 0.5, 5)
    with pytest.raises(SearchError, match=r"node 9 is unknown"):
        search.node(9)


def test_plain_rules_do_for_a_planned_method() -> None:
    search = make_search("pbt", SearchRules(C=2.0), 8)
    assert isinstance(search, PlannedSearch)
    assert (search.rules.C, search.rules.population) == (2.0, 4)


def test_decisions_are_explained_with_what_is_spent() -> None:
    search = make("random")
    assert (
        search.explain(search.ask().to_dict())
        == "random recipe 1 of 8 (0 runs begun, 0 of 8 standard phases)"
    )
    run(search, rising)
    assert (
        search.explain(search.ask().to_dict()) == "the budget is spent (8 runs begun, 8 of 8 standard phases)"
    )
    free = make("unchanged", None)
    assert free.explain(free.ask().to_dict()).endswith("0 of no limit)")


def test_a_plan_is_the_same_after_a_journal() -> None:
    plan = RunPlan(source="explore", start="last", units=0.5, number=3, why="so")
    assert RunPlan.from_dict(plan.to_dict()) == plan


# --- files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["chemcot", "papersearchqa", "ssmr", "wildsci", "guidebook"])
def test_a_shipped_schedule_is_read_by_its_name(name: str) -> None:
    found = MethodRules(schedule=name).schedule  # type: ignore[arg-type]
    assert isinstance(found, Schedule)
    assert sum(found.shares) == pytest.approx(1)
    assert found == read_schedule(name)
    assert MethodRules.model_validate(MethodRules(schedule=name).model_dump(mode="json")).schedule == found  # type: ignore[arg-type]


def test_shipped_ranges_and_grids_are_read_by_name() -> None:
    rules = MethodRules.model_validate({"ranges": "paper", "grid": "lr_kl"})
    assert rules.ranges is not None
    assert rules.ranges["lr"] == ParameterRange(low=1e-5, high=1e-4, log=True)
    assert shipped(Ranges, "paper") == rules.ranges
    assert rules.grid == {"lr": (0.2, 0.6, 1.0, 2.0), "kl_loss_coef": (1.0, 10.0)}


def test_a_schedule_is_made_of_the_strategy_of_a_search(tmp_path: Path) -> None:
    place = Path(__file__).parents[1] / "blackbox/runs/finished/strategy.yaml"
    written = read_yaml(place)
    found = read_schedule(str(place))
    total = written["total_steps"]
    assert found.source == f"search {written['search']['name']}"
    assert found.shares == tuple(phase["cut_step"] / total for phase in written["phases"])
    assert [phase.changes for phase in found.phases] == [
        {change["key"]: change["new"] for change in phase["changes"]} for phase in written["phases"]
    ]
    assert (found.lora_rank, found.base_model) == (16, written["base_model"])
    path = tmp_path / "strategy.yaml"
    path.write_text("format: 1\nphases: [{}]\n")
    with pytest.raises(ValueError, match=r"strategy\.yaml: phase 1: .*cut_step"):
        read_schedule(str(path))
    path.write_text(
        "format: tune-1\nmetric: x\nmode: max\nvalue: 1.0\nphases:\n"
        "- {node: 0, trial: a, cut_step: 1, config: {}}\n"
    )
    with pytest.raises(ValueError, match="is the strategy of a search under Ray Tune"):
        read_schedule(str(path))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"schedule": "wildsy"}, r"'wildsy' is not a file; shipped are .* Did you mean wildsci\?"),
        ({"ranges": "nothing_like_it"}, r"shipped are paper, relative\.$"),
        ({"ranges": {"lr": {"low": 1.0}}}, r"needs either low and high, or choices"),
        ({"ranges": {"lr": {"low": 1, "high": 2, "choices": [1]}}}, r"needs either low and high, or choices"),
        ({"ranges": {"lr": {"low": 2.0, "high": 1.0}}}, r"low is 2 and high 1; must rise"),
        ({"ranges": {"lr": {"low": 0.0, "high": 1.0, "log": True}}}, r"with log low > 0"),
    ],
)
def test_a_wrong_file_or_range_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MethodRules.read(given)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ranges.yaml"
    path.write_text("lr: [")
    with pytest.raises(ConfigError, match=r"ranges\.yaml: broken YAML"):
        MethodRules.read({"ranges": str(path)})
