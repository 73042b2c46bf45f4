"""The paper's tables from recorded searches, and the audit of what agents stated."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from llmzero_ray.cli.main import main
from llmzero_ray.config import load_config
from llmzero_ray.config.schedule import read_schedule
from llmzero_ray.coordinator.runs import FinalJob
from llmzero_ray.hyperparameters.verl_keys import KL_LOSS_COEF, LR, TEMPERATURE
from llmzero_ray.methods.chains import FixedSchedule
from llmzero_ray.methods.paper.figures import along, best_so_far, draw, with_test_scores
from llmzero_ray.methods.paper.tables import labels, moves, paper_tables
from llmzero_ray.methods.plan_proposer import PlanProposer
from llmzero_ray.report.audit import Audited, audit
from llmzero_ray.report.facts import SearchFacts
from tests.builders import make_config, make_scored
from tests.report.builder import Phase, SearchBuilder
from tests.searches import CHECKOUT

RUNS = CHECKOUT / "tests" / "blackbox" / "runs"


@pytest.fixture
def demo(tmp_path: Path) -> SearchFacts:
    shutil.copytree(RUNS / "demo", tmp_path / "demo")
    return SearchFacts(tmp_path / "demo")


def trained_by(directory: Path, schedule: str) -> SearchFacts:
    """A search that trained a schedule from the paper's default recipe (Table 12)."""
    config = make_config(
        name=schedule,
        search={"method": "schedule", "schedule": schedule},
        root={"overrides": load_config("paper_4b").root.overrides},
        engine={"max_prompt_length": 512, "max_response_length": 8192},
        final={"test": False, "default_recipe": False},
    )
    search = SearchBuilder(directory, config=config)
    propose = PlanProposer("schedule", FixedSchedule(config.search).values).propose
    for number in range(len(read_schedule(schedule).phases)):
        search.answers[number] = propose
        search.phases[number] = Phase(val={1: 40 + number}, steps=1)
    search.ready().play()
    return SearchFacts(search.root)


def stated(facts: SearchFacts, node: int, summary: str = "", *evidence: str) -> list[Audited]:
    """The audit of one statement in place of what a node's proposal said."""
    run = facts.runs[node]
    assert run.proposal is not None
    diagnosis = dataclasses.replace(run.proposal.diagnosis, summary=summary, evidence=evidence)
    run.proposal = dataclasses.replace(run.proposal, diagnosis=diagnosis)
    return [one for one in audit(facts) if one.node == node]


def test_the_recorded_statements_of_the_demo_agree_with_its_series(demo: SearchFacts) -> None:
    found = audit(demo)
    assert len(found) == 25
    assert all(one.agrees for one in found)


@pytest.mark.parametrize(
    ("evidence", "agrees"),
    [
        ("critic/score/mean 0.293 -> 0.398 (x1.36) over steps 1-10", [True, True]),
        ("critic/score/mean 0.293 -> 0.598 (x1.36) over steps 1-10", [True, False]),
        ("validation 0.469 at the start, 0.531@5, 0.862@10", [True, False, True]),
        ("no/such_metric 1 -> 2, validation 0.9@7", []),
    ],
)
def test_numbers_are_those_of_the_series_to_their_digits(
    demo: SearchFacts, evidence: str, agrees: list[bool]
) -> None:
    assert sorted(one.agrees for one in stated(demo, 1, "", evidence)) == sorted(agrees)


@pytest.mark.parametrize(
    ("kind", "factors", "agrees"),
    [
        ("conservative", {LR: 2.0, KL_LOSS_COEF: 2.0, TEMPERATURE: 1.1}, False),
        ("aggressive", {LR: 2.0, KL_LOSS_COEF: 2.0, TEMPERATURE: 1.1}, True),
        ("conservative", {LR: 0.5}, True),
        ("conservative", {}, False),
    ],
)
def test_more_conservative_settings_are_those_that_tighten(
    demo: SearchFacts, kind: str, factors: dict[str, float], agrees: bool
) -> None:
    """The first case is the demo's: a doubled rate and a hotter sampling were called too conservative."""
    on, source = demo.runs[1], demo.runs[0].spec
    assert on.spec is not None and source is not None
    base = dict(source.hyperparameters)
    changed = {key: float(str(base[key])) * factor for key, factor in factors.items()}
    on.spec = dataclasses.replace(on.spec, hyperparameters={**base, **changed})
    (found,) = stated(demo, 2, f"Regressed -0.05 under more {kind} settings.")
    assert found.agrees is agrees
    if factors.get(LR) == 2.0:
        assert found.found.startswith("2 loosened, 1 tightened: lr 0.001 -> 0.002")


def test_the_tables_hold_strategies_nodes_and_directions(demo: SearchFacts) -> None:
    text = paper_tables([demo])
    assert "| 3 | 2 | 20-25 | 0.8594 | lr 0.0005 → 0.00025; kl_loss_coef 0.002 → 0.004; n 12 → 16 |" in text
    assert "| 1* | evolve | node 0 at 10 | 10 | 0.038 |" in text
    assert "| lr | regularization | 2 | 0 | 2 | 0 | 0 of 1 |" in text
    assert "| all of them | capacity | 2 | 2 | 0 | 0 | 0 of 1 |" in text
    assert "| all of them | regularization | 4 | 2 | 2 | 0 | 0 of 1 |" in text  # of two hyper-parameters
    assert "| demo | 2 | more | more |" in text
    assert "| demo | 3 | more | more |" in text
    assert "25 statements were checked, 0 disagree" in text
    assert dict(moves(demo))[LR] == [-1, -1]


def test_a_phase_without_changes_goes_on_and_only_the_first_is_the_default_recipe() -> None:
    text = paper_tables([SearchFacts(RUNS / "model")])
    assert "| 1 | 0 | 0-10 | 0.3405 | the default recipe |" in text
    assert "| 2 | 2 | 10-20 | 0.4185 | nothing: it continues |" in text


def test_searches_of_one_name_are_told_apart_by_where_they_lie(demo: SearchFacts, tmp_path: Path) -> None:
    other = SearchFacts(RUNS / "demo")
    here = f"{tmp_path.parent.name}/{tmp_path.name}/demo"
    assert labels([demo, other, SearchFacts(RUNS / "model")]) == [here, "blackbox/runs/demo", "model"]
    assert labels([other, other]) == ["blackbox/runs/demo (1)", "blackbox/runs/demo (2)"]
    assert f"| {here} | 3 | more | more |" in paper_tables([demo, other])


def test_a_parameter_that_turns_along_a_strategy_is_counted_once_a_turn(demo: SearchFacts) -> None:
    last = demo.path[-1].run
    assert last.spec is not None
    doubled = {**last.spec.hyperparameters, LR: 0.001}
    last.spec = dataclasses.replace(last.spec, hyperparameters=doubled)
    text = paper_tables([demo])
    assert "| lr | regularization | 2 | 1 | 1 | 1 | 1 of 1 |" in text
    assert "| demo | 3 | more | both ways |" in text


@pytest.mark.parametrize(
    ("schedule", "capacity", "turned"),
    [
        ("chemcot", ["unchanged", "unchanged", "more", "more"], {"lr", "temperature", "kl_loss_coef"}),
        ("ssmr", ["unchanged", "unchanged", "more"], {"lr", "temperature", "kl_loss_coef"}),
        ("wildsci", ["unchanged"] * 3, {"lr", "temperature", "kl_loss_coef"}),
        ("papersearchqa", ["unchanged"] * 3, {"lr", "temperature"}),
        ("guidebook", ["more", "more"], set()),
    ],
)
def test_the_papers_strategies_only_add_capacity_and_turn_regularization(
    tmp_path: Path, schedule: str, capacity: list[str], turned: set[str]
) -> None:
    """Section 4.3.2: response length and rollouts never reverse, also where ChemCoT's batch shrinks."""
    facts = trained_by(tmp_path, schedule)
    assert len(facts.path) == len(read_schedule(schedule).phases)
    rows = [line.split(" | ") for line in paper_tables([facts]).splitlines() if line.startswith("| ")]
    groups = [row[2] for row in rows if row[0] == f"| {schedule}" and len(row) == 4]
    reversals = {row[0].removeprefix("| "): int(row[5]) for row in rows if len(row) == 7 and row[5].isdigit()}
    assert groups == capacity
    assert [reversals.get(name, 0) for name in ("n", "max_response_length")] == [0, 0]
    assert {name for name in ("lr", "temperature", "kl_loss_coef") if reversals.get(name)} == turned


def test_along_a_strategy_each_phase_counts_up_to_where_it_is_left(demo: SearchFacts) -> None:
    steps, scores = along(demo)
    assert steps == [0, 5, 10, 15, 20, 25]
    assert (scores[0], scores[-1]) == (0.46875, 0.859375)


def test_the_test_score_is_that_of_the_run_validated_best_so_far(demo: SearchFacts) -> None:
    """Nodes 0 to 2 validate better and better, node 3 as well as node 2; the last has the best test score."""
    for node, mean in enumerate((0.5, 0.7, 0.6, 0.8)):
        scored = make_scored("best", mean)
        what = f"node-{node}"
        demo.core.final.jobs[what] = FinalJob(what=what, node=node, done=True, score=scored)
    dots, line = with_test_scores(demo)
    assert [score for _, score in dots] == [0.5, 0.7, 0.6, 0.8]
    assert [score for _, score in line] == [0.5, 0.7, 0.6, 0.6]
    assert (
        line[-1][0] == dots[-1][0] == pytest.approx(sum(run.outcome.gpu_hours for run in demo.runs.values()))
    )


def test_compute_counts_every_phase_also_of_searches_that_did_not_count_it(demo: SearchFacts) -> None:
    curve = best_so_far(demo)
    assert curve[0] == (0.0, 0.46875)
    assert [score for _, score in curve] == sorted(score for _, score in curve)
    assert curve[-1][0] > 0


def test_the_command_writes_tables_and_figures(
    demo: SearchFacts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tables", str(tmp_path / "demo"), "--out", str(tmp_path / "found")]) == 0
    assert "## Nodes" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "found").iterdir()} == {
        "tables.md",
        "best_so_far.png",
        "strategies.png",
    }


def test_searches_of_several_models_have_a_figure_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = [SearchFacts(RUNS / name) for name in ("finished", "model")]
    assert "models.png" not in {path.name for path in draw(searches, tmp_path)}
    monkeypatch.setattr(SearchFacts, "base_model", property(lambda facts: f"/models/{facts.config.name}"))
    found = draw(searches, tmp_path)
    assert [path.name for path in found][-1] == "models.png"
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in found)
