"""`llmzero export` for Perfetto and Optuna, from recorded searches."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.cli.main import main
from llmzero_ray.records import events as ev
from llmzero_ray.report.facts import SearchFacts
from tests.blackbox.inputs import RUNS, copy_of


def trace_of(root: Path, tmp_path: Path) -> list[dict[str, Any]]:
    target = tmp_path / "trace.json"
    assert main(["export", str(root), "--perfetto", str(target)]) == 0
    events: list[dict[str, Any]] = json.loads(target.read_text())["traceEvents"]
    return events


@pytest.mark.parametrize("name", ["two_slots", "failed", "steered", "paused"])
def test_a_trace_has_each_phase_and_its_spans_nest(name: str, tmp_path: Path) -> None:
    events = trace_of(RUNS / name, tmp_path)
    spans = [one for one in events if one["ph"] == "X"]
    facts = SearchFacts(RUNS / name)
    begun = {e.node for e in facts.events if isinstance(e, ev.PhaseStarted)}
    names = {"default recipe" if node < 0 else f"node {node}" for node in begun}
    assert {span["name"] for span in spans if span["cat"] == "phase"} == names
    proposed = {e.node for e in facts.events if isinstance(e, ev.PhasePlanned) and e.node >= 0}
    found = {span["name"] for span in spans if span["cat"] == "proposal"}
    assert found == {f"proposal for node {node}" for node in proposed}
    last = round(1e6 * (facts.events[-1].time - facts.events[0].time))
    for slot in {span["tid"] for span in spans}:
        open_until: list[float] = [last]
        of_slot = [span for span in spans if span["tid"] == slot]
        for span in sorted(of_slot, key=lambda one: (one["ts"], -one["dur"])):
            assert span["ts"] >= 0 and span["dur"] >= 0
            while span["ts"] >= open_until[-1] and len(open_until) > 1:
                open_until.pop()
            assert span["ts"] + span["dur"] <= open_until[-1], span
            open_until.append(span["ts"] + span["dur"])


@pytest.mark.parametrize("text", ['{"question": "1 + 1", "answer": "2"}\n', '{"traceEvents": []}'])
def test_a_trace_replaces_a_trace_and_nothing_else_that_holds_something(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "rows.jsonl"
    kept.write_text(text)
    assert main(["export", str(RUNS / "two_slots"), "--perfetto", str(kept)]) == 2
    assert f"{kept} exists and is no trace of a search" in capsys.readouterr().err
    assert kept.read_text() == text
    assert main(["export", str(RUNS / "two_slots"), "--perfetto", str(tmp_path)]) == 2
    assert "is no trace of a search" in capsys.readouterr().err
    os.mkfifo(tmp_path / "pipe")
    assert main(["export", str(RUNS / "two_slots"), "--perfetto", str(tmp_path / "pipe")]) == 2
    assert (tmp_path / "pipe").is_fifo() and "is no trace of a search" in capsys.readouterr().err
    assert main(["export", str(RUNS / "two_slots"), "--perfetto", str(kept / "trace.json")]) == 2
    assert "cannot be written (Not a directory)" in capsys.readouterr().err
    kept.write_text("")  # as mktemp makes it
    assert main(["export", str(RUNS / "two_slots"), "--perfetto", str(kept)]) == 0
    assert trace_of(RUNS / "failed", tmp_path) != trace_of(RUNS / "two_slots", tmp_path)


def test_a_study_has_a_trial_per_node_and_gets_each_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    optuna = pytest.importorskip("optuna")
    url = f"sqlite:///{tmp_path / 'study.db'}"
    facts = SearchFacts(RUNS / "two_slots")
    for expected in (f"{len(facts.runs)} new trials", "0 new trials"):
        assert main(["export", str(RUNS / "two_slots"), "--optuna", url]) == 0
        assert expected in capsys.readouterr().out
    study = optuna.load_study(study_name=facts.config.name, storage=url)
    assert facts.best is not None
    assert study.best_trial.user_attrs["node"] == facts.best.node
    assert study.best_value == facts.best.score
    lr = "actor_rollout_ref.actor.optim.lr"
    for trial in study.trials:
        run = facts.runs[trial.user_attrs["node"]]
        assert trial.params[lr] == run.spec.hyperparameters[lr]
        curves = facts.curves(run.node)
        assert [trial.intermediate_values[run.base_step + step] for step in curves.val_steps] == list(
            curves.val_scores
        )
        assert len(trial.intermediate_values) == len(curves.val_steps) > 0


def test_a_study_of_another_search_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    url = f"sqlite:///{tmp_path / 'study.db'}"
    assert main(["export", str(RUNS / "two_slots"), "--optuna", url]) == 0
    assert main(["export", str(copy_of("two_slots", tmp_path)), "--optuna", url]) == 2
    assert "is not of" in capsys.readouterr().err
    assert main(["export", str(RUNS / "two_slots"), "--optuna", ""]) == 2
    assert "--optuna is empty; must be a URL" in capsys.readouterr().err
    assert main(["export", str(RUNS / "two_slots"), "--optuna", "nosuch"]) == 2
    assert "sqlite:///study.db" in capsys.readouterr().err
    assert main(["export", str(RUNS / "two_slots"), "--optuna", f"sqlite:///{tmp_path}/none/study.db"]) == 2
    assert capsys.readouterr().err.endswith("unable to open database file.\n")


def test_a_task_that_is_gone_is_named_with_the_option_for_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", str(RUNS / "two_slots"), "--verl", str(tmp_path / "verl")]
    assert main(command) == 2
    assert capsys.readouterr().err.endswith("name its directory with --task DIR.\n")
    assert main([*command, "--task", str(tmp_path / "nothing")]) == 2
    assert "--task" not in capsys.readouterr().err
