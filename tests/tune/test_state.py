"""The search's records: what is written makes the same search again, whatever was cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.errors import StorageError
from llmzero_ray.hyperparameters import Parameter, Space
from llmzero_ray.records import ResumeFrom
from llmzero_ray.search import SearchRules
from llmzero_ray.tune.phase_start import PhaseStart
from llmzero_ray.tune.record_log import RecordLog
from llmzero_ray.tune.state import TuneSearch
from llmzero_ray.tune.trial_space import TrialSpace

LR = Parameter(
    key="lr", alias="lr", kind="float", low=0.0, high=1.0, default=0.1, doc="", group="optimisation"
)
TRIALS = TrialSpace(space=Space(trainer="toy", parameters=(LR,)), root={"lr": 0.1})


def make_search(**given: Any) -> TuneSearch:
    values: dict[str, Any] = {
        "search_id": "toy",
        "metric": "loss",
        "mode": "min",
        "trials": TRIALS,
        "rules": SearchRules(),
        "budget": 8,
        "phase_steps": 3,
    }
    return TuneSearch(**{**values, **given})


def train(search: TuneSearch, node: int, losses: list[float]) -> None:
    search.assign(node, f"trial{node}")
    for step, loss in enumerate(losses, start=1):
        result = {"loss": loss, "training_iteration": step, "config/lr": 0.1}
        search.report(node, step, result, f"trial{node}/checkpoint_{step:06d}")
    search.end(node, "completed")


def make_two_phases(**given: Any) -> TuneSearch:
    search = make_search(**given)
    search.begin("root", None)
    search.plan(0, {"lr": 0.1}, 3)
    train(search, 0, [3.0, 1.0, 2.0])
    search.begin("evolve", 0)
    search.plan(1, {"lr": 0.2}, 3, ResumeFrom(node=0, step=2))
    return search


def states(search: TuneSearch) -> Any:
    return search.phases, {node: vars_of(search, node) for node in search.phases}


def vars_of(search: TuneSearch, node: int) -> tuple[Any, ...]:
    at = search.tree.node(node)
    return at.status, at.score, at.best_step, at.resume_from, at.parent


def test_scores_are_larger_is_better_and_steps_count_along_the_path() -> None:
    search = make_two_phases()
    assert search.tree.node(0).score == -1.0 and search.tree.node(0).best_step == 2
    assert search.phases[1].base_step == 2
    search.report(1, 1, {"loss": 0.5, "training_iteration": 1}, None)
    view = search.view(1)
    assert view.curves.start_score == -1.0 and view.curves.val_scores == (-0.5,) and view.base_step == 2


def test_the_records_make_the_same_search_again(tmp_path: Path) -> None:
    search = make_two_phases()
    search.open_log(tmp_path)
    train(search, 1, [0.9, 0.8, 0.7])
    again = make_search()
    again.open_log(tmp_path)
    assert states(again) == states(search)
    assert again.records == search.records


def test_a_record_that_a_death_cut_off_is_none(tmp_path: Path) -> None:
    search = make_two_phases()
    search.open_log(tmp_path)
    path = tmp_path / "llmzero-toy.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind": "end", "no')
    again = make_search()
    again.open_log(tmp_path)
    assert states(again) == states(search)
    train(again, 1, [0.9])
    third = make_search()
    third.open_log(tmp_path)
    assert states(third) == states(again)


def test_a_damaged_record_is_one_message(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"kind": "begin"}\n{"kind\n{"kind": "end"}\n')
    with pytest.raises(StorageError, match=r"line 2 is damaged"):
        RecordLog(path)


def test_what_a_restored_trial_reports_again_replaces_what_came_after_its_checkpoint() -> None:
    search = make_search()
    search.begin("root", None)
    search.plan(0, {"lr": 0.1}, 5)
    for step, loss in ((1, 3.0), (2, 2.0), (3, 1.0), (2, 2.5)):
        search.report(0, step, {"loss": loss}, f"t/checkpoint_{step:06d}")
    assert {step: point.score for step, point in search.phases[0].steps.items()} == {1: -3.0, 2: -2.5}
    assert search.phases[0].newest == (2, "t/checkpoint_000002")


def test_the_strategy_is_written_when_a_phase_is_the_best(tmp_path: Path) -> None:
    search = make_two_phases()
    search.open_log(tmp_path)
    train(search, 1, [0.9, 0.7, 0.8])
    found = read_yaml(tmp_path / "strategy.yaml")
    assert (found["metric"], found["mode"], found["value"]) == ("loss", "min", 0.7)
    assert [(phase["config"], phase["cut_step"]) for phase in found["phases"]] == [
        ({"lr": 0.1}, 2),
        ({"lr": 0.2}, 2),
    ]


@pytest.mark.parametrize(
    "start",
    [
        PhaseStart(node=0, kind="root", resume_from=None, base_step=0, n_steps=None),
        PhaseStart(node=12, kind="debug", resume_from=ResumeFrom(node=3, step=40), base_step=70, n_steps=10),
    ],
)
def test_a_trial_reads_its_phase_from_its_configuration(start: PhaseStart) -> None:
    assert PhaseStart.of({"llmzero_phase": str(start)}) == start
    assert PhaseStart.of({}) is None
