"""The search under Tune: its journal and results make the same search again, whatever was cut off."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.coordinator import replay
from llmzero_ray.journal import JournalReader
from llmzero_ray.records import Change, Diagnosis, Proposal, ResumeFrom
from llmzero_ray.records import events as ev
from llmzero_ray.tune import tree_search
from llmzero_ray.tune.phase_start import PhaseStart
from llmzero_ray.tune.proposals import AsyncProposals
from llmzero_ray.tune.state import TuneSearch


def make_search(**given: Any) -> TuneSearch:
    values: dict[str, Any] = {
        "metric": "loss",
        "mode": "min",
        "space": {"lr": tune.uniform(0.0, 1.0)},
        "root": {"lr": 0.1},
        "budget": 8,
        "phase_steps": 3,
    }
    search = tree_search(**{**values, **given})[0].search
    search.offer_slots(1)
    return search


def reopened(search: TuneSearch, folder: Path) -> TuneSearch:
    """The search as another process finds it in a folder."""
    again: TuneSearch = pickle.loads(pickle.dumps(search))
    again._begin(())  # the pickle in the experiment's directory is as old as its start
    again.open_directory(folder)
    return again


def train(search: TuneSearch, node: int, losses: list[float]) -> None:
    search.assign(node, f"trial{node}")
    for step, loss in enumerate(losses, start=1):
        result = {"loss": loss, "training_iteration": step, "config/lr": 0.1}
        search.report(node, step, result, f"trial{node}/checkpoint_{step:06d}")
    search.end(node)


def propose(search: TuneSearch, node: int, lr: float, start: ResumeFrom) -> None:
    proposal = Proposal(
        diagnosis=Diagnosis(state="unknown", summary=""),
        changes=(Change(key="lr", old=None, new=lr, reason=""),),
        resume_from=start,
        n_steps=3,
        rationale="",
    )
    search.post(ev.Proposed(node=node, proposal=proposal))


def make_two_phases(folder: Path | None = None, **given: Any) -> TuneSearch:
    search = make_search(**given)
    if folder is not None:
        search.open_directory(folder)
    train(search, 0, [3.0, 1.0, 2.0])
    propose(search, 1, 0.2, ResumeFrom(node=0, step=2))
    return search


def states(search: TuneSearch) -> Any:
    nodes = {
        node: (found.status, found.score, found.best_step, found.parent)
        for node, found in search.tree.nodes.items()
    }
    starts = {node: phase.start for node, phase in search.phases.items()}
    return nodes, starts, search.points, search.checkpoints


def test_scores_are_larger_is_better_and_steps_count_along_the_path() -> None:
    search = make_two_phases()
    assert search.tree.node(0).score == -1.0 and search.tree.node(0).best_step == 2
    search.assign(1, "trial1")
    search.report(1, 1, {"loss": 0.5, "training_iteration": 1}, None)
    view = search.view(1)
    assert view.curves.start_score == -1.0 and view.curves.val_scores == (-0.5,) and view.base_step == 2
    assert view.score == -0.5


def test_the_journal_and_the_results_make_the_same_search_again(tmp_path: Path) -> None:
    search = make_two_phases(tmp_path)
    train(search, 1, [0.9, 0.8, 0.7])
    again = reopened(search, tmp_path)
    assert states(again) == states(search)
    assert again.strategy() == search.strategy()


def test_a_running_phase_goes_on_with_its_saved_results(tmp_path: Path) -> None:
    search = make_two_phases(tmp_path)
    search.assign(1, "trial1")
    search.report(1, 1, {"loss": 0.9, "training_iteration": 1}, "trial1/checkpoint_000001")
    search.report(1, 2, {"loss": 0.8, "training_iteration": 2}, None)
    (part,) = search.core.paths.parts(1).glob("???.jsonl")
    part.write_bytes(part.read_bytes() + b'{"step": 3, "glob')  # a death cut it off
    again = reopened(search, tmp_path)
    phase = again.phases[1]
    assert states(again) == states(search)
    assert phase.newest == (1, "trial1/checkpoint_000001") and again.waiting is not None
    again.assign(1, "trial1")
    again.report(1, 2, {"loss": 0.5, "training_iteration": 2}, None)
    steps = reopened(again, tmp_path).phases[1].steps
    assert [(step, point.val_score) for step, point in steps.items()] == [(0, -1.0), (1, -0.9), (2, -0.5)]


def test_a_driver_that_died_while_the_journal_began_leaves_a_search_with_its_root(tmp_path: Path) -> None:
    search = make_search()
    search.open_directory(tmp_path)
    for file in search.core.paths.journal.glob("*[2-9].e001.json"):
        file.unlink()
    assert list(reopened(search, tmp_path).phases) == [0]


def test_the_journal_is_that_of_any_search(tmp_path: Path) -> None:
    search = make_two_phases(tmp_path, budget=2)
    train(search, 1, [0.9, 0.8, 0.7])
    (folder,) = tmp_path.glob("llmzero-*")
    core = replay(JournalReader(folder / "journal").poll(), folder)
    assert core.stage == "finished" and core.best is not None
    assert (core.best.node, core.best.score) == (1, -0.7)


def test_what_a_restored_trial_reports_again_replaces_what_came_after_its_checkpoint() -> None:
    search = make_search(phase_steps=5)
    search.assign(0, "t")
    for step, loss in ((1, 3.0), (2, 2.0), (3, 1.0), (2, 2.5)):
        search.report(0, step, {"loss": loss}, f"t/checkpoint_{step:06d}")
    assert {step: point.val_score for step, point in search.phases[0].steps.items()} == {1: -3.0, 2: -2.5}
    assert search.phases[0].newest == (2, "t/checkpoint_000002")
    assert search.phases[0].trials == ["t"]  # no other trial took its place


@pytest.mark.parametrize(
    "wrong", [{"n_steps": None}, {"changes": {"lr": 0.05}}, {"changes": [{"key": "lr"}]}, {"diagnosis": None}]
)
def test_a_proposal_with_a_wrong_field_is_refused_with_the_reason(wrong: dict[str, Any]) -> None:
    given = {
        "diagnosis": Diagnosis(state="unknown", summary=""),
        "changes": (),
        "resume_from": None,
        "n_steps": 3,
        "rationale": "",
    }
    search = make_search()
    asked = AsyncProposals(search, lambda _: Proposal(**{**given, **wrong}))
    train(search, 0, [3.0, 1.0, 2.0])
    for _ in range(8):
        asked.collect()
        asked.wait(10.0)
    refused = [event.message for event in search.events if isinstance(event, ev.ProposalRefused)]
    assert len(refused) == 3
    assert all("a Proposal with a wrong field: " in message for message in refused)
    assert search.waiting.run.node == 1  # continued from the best checkpoint


def test_the_strategy_is_written_when_a_phase_is_the_best(tmp_path: Path) -> None:
    search = make_two_phases(tmp_path)
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
