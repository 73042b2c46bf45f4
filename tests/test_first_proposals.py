"""The measurement of first proposals on the scripted engine, and its table: errors worked out by hand, from a
file that was interrupted."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks import first_proposals
from benchmarks.first_proposals import mean_and_error, results, run_error, table
from llmzero_ray.engines.base import Slot
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.tasks.prepare import prepare
from tests.fakes import ScriptedEngine


def row(arm: str, seed: int, gain: float, *, checkpoint: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "task": "chain_sum", "steps": 10, "checkpoint": checkpoint, "arm": arm, "seed": seed, "start": 0.8,
        "gain": gain, "item_error": 0.01, **more,
    }  # fmt: skip


def test_the_run_error_is_the_deviation_between_seeds_pooled_over_checkpoints() -> None:
    assert run_error([[(0.01, 0.01), (0.03, 0.01)], [(0.0, 0.01), (0.0, 0.01)]]) == pytest.approx(0.01)
    assert run_error([[(0.01, 0.01)]]) is None


def test_seeds_reduce_the_runs_share_of_the_error_and_checkpoints_both() -> None:
    mean, error = mean_and_error([[(0.02, 0.01), (0.04, 0.01)]], 0.02)
    assert (mean, error) == (pytest.approx(0.03), pytest.approx(math.sqrt(0.01**2 + 0.02**2 / 2)))
    mean, error = mean_and_error([[(0.02, 0.01)], [(0.04, 0.01)]], 0.0)
    assert (mean, error) == (pytest.approx(0.03), pytest.approx(0.01 / math.sqrt(2)))


def test_the_table_names_losses_where_unchanged_held_and_what_failed(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    rows = [
        row("unchanged", 1, 0.01), row("unchanged", 2, -0.01),
        row("expert", 1, 0.02), row("expert", 2, 0.02),
        row("random", 1, -0.2), {**row("random", 2, 0.0), "failed": "refused: lr"},
    ]  # fmt: skip
    path.write_text("".join(json.dumps(one) + "\n" for one in rows) + '{"task": "chain_su')
    assert results(path) == rows
    text = table(results(path))
    assert "from the unchanged arm: 0.0141" in text
    # Items .01, runs .0141 over the root of two seeds: .0141 together.
    assert "+0.0200 ± 0.0141" in text
    assert "expert: 2 phases, 0 failed or refused, 0 checkpoints lost" in text
    assert "random: 1 phases, 1 failed or refused, 1 checkpoints lost" in text


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[ScriptedEngine]]:
    """(file of the results, engines made): the scripted engine on a small prepared task."""
    prepare(dir=tmp_path / "out.work" / "task-echo", family="echo", n_train=64, n_val=32, n_test=64, seed=1,
            make_model=False)  # fmt: skip
    made: list[ScriptedEngine] = []

    def engine(_: Any, task: PreparedTask, slot: Slot, __: str) -> ScriptedEngine:
        made.append(ScriptedEngine({}, task, slot))
        return made[-1]

    slot = Slot(search="first", index=0, placement_groups=("",), gpus_per_node=1, cpus_per_gpu=1)
    monkeypatch.setattr(first_proposals, "make_engine", engine)
    monkeypatch.setattr(first_proposals, "local_slot", lambda _: contextlib.nullcontext(slot))
    return tmp_path / "out.jsonl", made


def run(out: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> list[dict[str, Any]]:
    """The results after the command with two checkpoints and two seeds."""
    given = [
        "--out",
        str(out),
        "--tasks",
        "echo",
        "--checkpoints",
        "1",
        "2",
        "--seeds",
        "1",
        "2",
        "--steps",
        "10",
    ]
    monkeypatch.setattr("sys.argv", ["first_proposals", *given, *more])
    first_proposals.main()
    return results(out)


def test_every_arm_is_trained_from_every_checkpoint_with_every_seed_once(
    scripted: tuple[Path, list[ScriptedEngine]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, made = scripted
    half = run(out, monkeypatch, "--checkpoints", "1")
    assert {found["checkpoint"] for found in half} == {1}
    found = run(out, monkeypatch)
    assert found[: len(half)] == half
    assert len({(one["arm"], one["checkpoint"], one["seed"]) for one in found}) == len(found) == 3 * 2 * 2
    assert run(out, monkeypatch) == found
    assert len(made) == 2  # nothing was missing the third time
    unchanged = [one for one in found if one["arm"] == "unchanged"]
    assert all(one["changes"] == {} and one["gain"] > 0 for one in unchanged)
    # The scripted engine learns fastest at half the recipe's rate, and the same from one seed to another.
    assert unchanged[0]["gain"] == unchanged[1]["gain"]
    assert all(one["changes"] for one in found if one["arm"] == "random")
    assert "echo, 2 x 10 steps" in capsys.readouterr().out
