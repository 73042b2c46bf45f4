"""A whole search on real VeRL by the command line: a failure is repaired, a hopeless phase is stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from llmzero_ray.agents.knowledge import expected_metrics, metric_notes, note_of
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.records import PhaseFailure, PhaseResult
from llmzero_ray.records import events as ev
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import load_curves, load_items
from llmzero_ray.storage.strategy import load_strategy
from tests.searches import CHECKOUT, run_search, verl_search
from tests.security.watched import Watched

pytestmark = [pytest.mark.verl, pytest.mark.slow]


@pytest.fixture(scope="module")
def watched() -> Watched:
    """The processes of that search, looked at all the time."""
    return Watched()


@pytest.fixture(scope="module")
def searched(
    tmp_path_factory: pytest.TempPathFactory, taught_task: PreparedTask, watched: Watched
) -> tuple[Path, str]:
    """(directory, output) of one search: root, an evolve run that diverges, its debug run, one at rate 0."""
    root = tmp_path_factory.mktemp("search")
    engine = {"backend": "tests.faulty_engine:make_engine"}
    config = verl_search(
        root,
        taught_task,
        lr=2e-3,
        engine=engine,
        confirm={"k": 2, "n": 32},
        stopper={"unmoved": False},  # the root would end at its half, and node 2 begin at an unscored step
    )
    outside = {name: value for name, value in os.environ.items() if not name.startswith("RAY_ADDRESS")}
    with watched.looking():
        done = run_search(config, root, env=outside | watched.environment)
    return root / "runs" / "real", done.stdout


def core_of(root: Path) -> Follower:
    follower = Follower(SearchStorage(str(root.parent), root.name))
    follower.poll()
    return follower


def test_the_divergence_is_a_failure_of_its_class_and_gets_a_debug_child(searched: tuple[Path, str]) -> None:
    runs = core_of(searched[0]).core.runs
    assert runs[0].status == "completed"
    assert (runs[1].kind, runs[1].status) == ("evolve", "failed")
    assert isinstance(runs[1].outcome, PhaseFailure)
    assert runs[1].outcome.failure_class == "nan" and "step" in runs[1].outcome.cause
    assert (runs[2].kind, runs[2].on, runs[2].status) == ("debug", 1, "completed")


def test_the_fix_moves_beside_the_failure_and_the_search_goes_on_below_it(searched: tuple[Path, str]) -> None:
    tree = core_of(searched[0]).core.search
    assert (tree.node(2).parent, tree.node(1).pruned) == (0, True)
    assert (tree.node(3).kind, tree.node(3).parent) == ("evolve", 2)


def test_a_phase_that_learns_nothing_is_ended_by_a_verdict(searched: tuple[Path, str]) -> None:
    follower = core_of(searched[0])
    run = follower.core.runs[3]
    assert run.status == "early_stopped"
    assert isinstance(run.outcome, PhaseResult)
    assert run.outcome.stop_reason.startswith("verdict")
    assert run.outcome.steps_done < run.spec.n_steps  # type: ignore[union-attr]
    verdicts = [e for e in follower.events if isinstance(e, ev.VerdictPosted) and e.node == 3]
    assert verdicts[-1].decision.stop


def test_phases_start_warm_but_the_first_and_the_one_after_the_divergence(
    searched: tuple[Path, str],
) -> None:
    """NaNs stay in vLLM's cache and would poison what comes next, so the engine starts afresh."""
    runs = core_of(searched[0]).core.runs
    assert [runs[node].outcome.warm for node in range(4)] == [False, True, False, True]  # type: ignore[union-attr]
    assert runs[2].outcome.cold_reason == "the previous phase failed (nan)"  # type: ignore[union-attr]


def test_a_child_begins_at_the_score_of_its_checkpoint(searched: tuple[Path, str]) -> None:
    follower = core_of(searched[0])
    spec = follower.core.runs[2].spec
    assert spec is not None
    assert spec.resume_from is not None
    source = load_items(follower.storage, spec.resume_from.node)[spec.resume_from.step]
    child = load_items(follower.storage, 2)[0]
    assert [item.response for item in child] == [item.response for item in source]


def test_strategy_adapter_report_and_test_scores_are_written(searched: tuple[Path, str]) -> None:
    root, output = searched
    core = core_of(root).core
    assert core.best is not None
    assert load_strategy(root / "strategy.yaml").phases[-1].node == core.best.node
    assert {p.name for p in (root / "best").iterdir()} >= {"adapter_model.safetensors", "adapter_config.json"}
    assert "](report.html)" in (root / "report.md").read_text()
    assert (root / "report.html").stat().st_size > 10_000
    assert REFERENCE not in core.runs
    assert "test  base model" in output.replace("  ", "  ")


def test_the_best_strategies_were_confirmed_on_fresh_items(searched: tuple[Path, str]) -> None:
    follower = core_of(searched[0])
    scored = [e for e in follower.events if isinstance(e, ev.FinalScored)]
    fresh = {e.node: e.mean for e in scored if e.split == "confirm"}
    assert [(e.split, e.n) for e in scored] == [("confirm", 32)] * 2 + [("test", 64)] * 2
    raw = sorted((run.score or 0.0 for run in follower.core.runs.values()), reverse=True)
    assert sorted((follower.core.runs[node or 0].score or 0.0 for node in fresh), reverse=True) == raw[:2]
    assert follower.core.best is not None
    assert fresh[follower.core.best.node] == max(fresh.values())
    # What was trained on knows none of them; they are kept row by row.
    assert (searched[0] / "final" / f"confirm-{follower.core.best.node}.parquet").is_file()


def test_every_decision_is_replayed_from_the_journal(searched: tuple[Path, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jobs.explain", str(searched[0])],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "debug" in done.stdout
    journal = sorted((searched[0] / "journal").glob("*.json"))
    assert json.loads(journal[0].read_text())


def test_every_metric_in_the_agents_notes_is_logged_and_every_logged_one_is_known(
    searched: tuple[Path, str],
) -> None:
    follower = core_of(searched[0])
    spec = follower.core.runs[0].spec
    assert spec is not None
    logged = set(load_curves(follower.storage, 0).metrics)
    assert expected_metrics(spec.hyperparameters) - logged == set()
    notes = metric_notes()
    assert {name for name in logged if note_of(name, notes) is None} == set()


@pytest.mark.usefixtures("searched")
def test_the_search_is_spoken_to_in_no_other_way_than_the_listed_ones(watched: Watched) -> None:
    for part in (
        "gcs_server",
        "raylet",
        "ray::SearchCoordinator",
        "llmzero_ray.engines.verl.driver",
        "ray::WorkerDict",
        "ray::RecordingServer",
        "VLLM::EngineCore",
    ):
        assert part in watched.titles
    assert watched.unknown == set()


@pytest.mark.usefixtures("searched")
def test_the_key_is_in_the_environment_of_the_command_alone(watched: Watched) -> None:
    assert watched.holders_of_key and all("jobs.search" in title for title in watched.holders_of_key)


def test_nothing_is_left_running(searched: tuple[Path, str]) -> None:
    left = [
        p.info["cmdline"]
        for p in psutil.process_iter(["cmdline"])
        if str(searched[0].parent.parent) in " ".join(p.info["cmdline"] or [])
    ]
    assert left == []
