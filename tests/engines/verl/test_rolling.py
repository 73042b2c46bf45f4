"""The rolling full checkpoint on real VeRL: a phase that goes on from it is the one that was never disturbed.

The data set is 4 steps long, the schedule is a cosine, and a full checkpoint is due exactly at its end.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.engines.base import Stage
from llmzero_ray.engines.verl.rolling_checkpoint import directory_of
from llmzero_ray.errors import EngineLostError
from llmzero_ray.records import MetricPoint, PhaseFailure, PhaseResult, PhaseSpec
from llmzero_ray.storage.manifests import problem_of
from tests.engines.verl.conftest import (
    ACTOR,
    ROLLOUT,
    Lab,
    abandoned_segments,
    assert_same_metrics,
    processes_of,
    socket_files,
)

pytestmark = [pytest.mark.verl, pytest.mark.slow]

LONG = pytest.mark.long
N_STEPS = 6
BATCH = 64  # of 256 rows


def long_phase(lab: Lab, rolling_dir: Path | None, **fields: Any) -> PhaseSpec:
    """6 steps at a falling learning rate, validated and rolled every 2, saved at 3 and 6 and when best."""
    changes = {
        "data.train_batch_size": BATCH,
        f"{ACTOR}.ppo_mini_batch_size": BATCH // 2,
        f"{ACTOR}.optim.lr_scheduler_type": "cosine",
        f"{ROLLOUT}.n": 2,
        "algorithm.use_kl_in_reward": True,
        "algorithm.kl_ctrl.kl_coef": 0.01,
        "algorithm.kl_ctrl.type": "adaptive",
    }
    spec = lab.spec(n_steps=N_STEPS, seed=11, **{key.replace(".", "__"): v for key, v in changes.items()})
    rolled = None if rolling_dir is None else str(rolling_dir)
    asked = dataclasses.replace(
        spec, node=900, test_freq=2, save_freq=3, rolling_dir=rolled, rolling_freq=2 if rolled else 0
    )
    return dataclasses.replace(asked, **fields)


@pytest.fixture(scope="session")
def undisturbed(lab: Lab) -> tuple[PhaseResult, list[MetricPoint]]:
    """The phase as it is when nothing happens and nothing is kept."""
    outcome, points = lab.run(long_phase(lab, None))
    assert isinstance(outcome, PhaseResult), outcome
    return outcome, points


@pytest.fixture(scope="session")
def kept(lab: Lab, undisturbed: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of the full checkpoints after steps 2 and 4, with the adapters, of a phase that saving did
    not disturb."""
    rolling, copies = (tmp_path_factory.mktemp("rolling") / name for name in ("phase", "copies"))
    seen: dict[int, list[str]] = {}
    stages: list[Stage | None] = []

    def look(point: MetricPoint) -> None:
        seen[point.step] = sorted(p.name for p in rolling.glob("*.full") if problem_of(p) is None)
        stages.append(lab.engine.stage())
        if point.step in (3, 5):
            step = point.step - 1
            shutil.copytree(directory_of(str(rolling), step), directory_of(str(copies), step))

    outcome, points = lab.run(long_phase(lab, rolling), each=look)
    assert_same_metrics(undisturbed[1], points)
    assert seen[3] == ["step_000002.full"]  # complete before anyone hears of step 3
    assert seen[5] == ["step_000004.full"]  # and the older one is gone
    assert_same_outcome(undisturbed[0], outcome)
    shutil.copytree(Path(outcome.checkpoints[0].path).parent, copies / "adapters")
    assert all(stage is not None and stage.name == "metrics" for stage in stages[1:])
    assert stages[2] is not None and stages[2].usual_s is not None and lab.engine.stage() is None
    return copies


def restored(
    lab: Lab, kept: Path, tmp_path: Path, skip: tuple[str, ...] = (), **fields: Any
) -> tuple[Any, list[MetricPoint]]:
    """The phase, repeated from copies of its full checkpoints."""
    return lab.run(repeat_of(lab, kept, tmp_path, (2, 4), **fields), skip=skip)


def repeat_of(lab: Lab, kept: Path, tmp_path: Path, steps: tuple[int, ...], **fields: Any) -> PhaseSpec:
    """A repeat that finds the full checkpoints after `steps`, and the adapters saved until then."""
    rolling, adapters = tmp_path / "rolling", tmp_path / "adapters"
    for step in steps:
        shutil.copytree(directory_of(str(kept), step), directory_of(str(rolling), step))
    for saved in (kept / "adapters").iterdir():
        if int(saved.name.removeprefix("step_")) <= steps[-1]:
            shutil.copytree(saved, adapters / saved.name)
    return long_phase(lab, rolling, restore=True, attempt=1, checkpoint_dir=str(adapters), **fields)


def test_a_repeat_from_the_full_checkpoint_is_the_undisturbed_phase(
    lab: Lab, undisturbed: Any, kept: Path, tmp_path: Path
) -> None:
    outcome, points = restored(lab, kept, tmp_path)
    assert [p.step for p in points] == [5, 6]
    assert_same_metrics(undisturbed[1][5:], points)
    assert_same_outcome(undisturbed[0], outcome)
    assert 0 < points[0].wall_s < points[1].wall_s <= outcome.wall_s


def test_a_damaged_or_unfinished_one_is_refused_and_the_older_one_used(
    lab: Lab, undisturbed: Any, kept: Path, tmp_path: Path
) -> None:
    spec, rolling = repeat_of(lab, kept, tmp_path, (2, 4)), tmp_path / "rolling"
    optimizer = next(directory_of(str(rolling), 4).rglob("optim_*"))
    with open(optimizer, "r+b") as file:
        file.truncate(optimizer.stat().st_size - 1)
    unfinished = directory_of(str(rolling), 6)
    shutil.copytree(directory_of(str(kept), 4), unfinished)
    (unfinished / "manifest.json").unlink()
    outcome, points = lab.run(spec)
    assert [p.step for p in points] == [3, 4, 5, 6]
    assert_same_metrics(undisturbed[1][3:], points)
    assert_same_outcome(undisturbed[0], outcome)


def test_a_full_checkpoint_of_another_phase_is_not_used(
    lab: Lab, undisturbed: Any, kept: Path, tmp_path: Path
) -> None:
    outcome, points = restored(lab, kept, tmp_path, seed=12, n_steps=1)
    assert isinstance(outcome, PhaseResult)
    assert [p.step for p in points] == [0, 1]


def test_parts_that_were_not_put_back_are_named_and_nothing_is_trained(
    lab: Lab, kept: Path, tmp_path: Path
) -> None:
    parts = ("adapter", "optimizer", "schedule", "random")
    outcome, points = restored(lab, kept, tmp_path, skip=tuple(f"restore.{part}" for part in parts))
    assert isinstance(outcome, PhaseFailure) and outcome.failure_class == "mismatch" and not points
    for part in parts:
        assert f"{part} is not what the full checkpoint holds" in outcome.cause
    assert (outcome.steps_done, outcome.best_step is None) == (4, False)


def test_the_comparison_of_curves_sees_an_order_of_rows_that_was_not_put_back(
    lab: Lab, undisturbed: Any, kept: Path, tmp_path: Path
) -> None:
    """It has no digest, as the other parts have."""
    outcome, points = restored(lab, kept, tmp_path, skip=("restore.data", "restore.check"))
    assert isinstance(outcome, PhaseResult), outcome
    with pytest.raises(AssertionError, match="actor/entropy"):
        assert_same_metrics(undisturbed[1][5:], points)


def test_a_stop_of_a_repeat_ends_the_whole_phase(
    lab: Lab, undisturbed: Any, kept: Path, tmp_path: Path
) -> None:
    spec = repeat_of(lab, kept, tmp_path, (2,))
    outcome, points = lab.run(spec, each=lambda point: lab.engine.stop("user") if point.step == 3 else None)
    assert isinstance(outcome, PhaseResult) and outcome.stop_reason == "user"
    assert points[0].step == 3 and outcome.steps_done == points[-1].step < N_STEPS
    assert outcome.start_score == undisturbed[0].start_score
    assert outcome.best_score is not None


# --- killed processes -------------------------------------------------------------------------------------


def host_of(lab: Lab) -> list[int]:
    return [lab.engine._driver.pid]


def fsdp_worker(lab: Lab) -> list[int]:
    return processes_of("WorkerDict")


def vllm_server(lab: Lab) -> list[int]:
    return processes_of("RecordingServer")


@pytest.mark.parametrize(
    "victim", [pytest.param(host_of, marks=LONG), fsdp_worker, pytest.param(vllm_server, marks=LONG)]
)
def test_a_killed_process_loses_the_engine_and_the_repeat_is_the_undisturbed_phase(
    lab: Lab, undisturbed: Any, tmp_path: Path, victim: Callable[[Lab], list[int]]
) -> None:
    rolling = tmp_path / "rolling"
    killed: list[int] = []
    bound: list[str] = []
    segments = abandoned_segments()

    def kill(point: MetricPoint) -> None:
        if point.step == 4:  # to find them takes longer than a step where the machine is busy
            killed.extend(victim(lab))
            pids = [*host_of(lab), *fsdp_worker(lab), *vllm_server(lab)]
            bound.extend(path for pid in pids for path in socket_files(pid))
        if point.step == 5:
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    first: list[MetricPoint] = []
    spec = long_phase(lab, rolling, checkpoint_dir=str(tmp_path / "adapters"))
    with pytest.raises(EngineLostError):
        lab.engine.run(spec, lambda point: (first.append(point), kill(point)))
    assert killed and first[-1].step < N_STEPS
    outcome, points = lab.run(dataclasses.replace(spec, restore=True, attempt=1))
    assert (outcome.warm, outcome.cold_reason) == (False, "engine lost")
    assert [p.step for p in points] == [5, 6]
    assert_same_metrics(undisturbed[1][:5], first[:5])
    assert_same_metrics(undisturbed[1][5:], points)
    assert_same_outcome(undisturbed[0], outcome)
    assert len(processes_of("WorkerDict")) == len(processes_of("RecordingServer")) == 1
    assert not bound  # no file that could be left
    assert abandoned_segments() <= segments


def assert_same_outcome(one: PhaseResult, other: Any) -> None:
    """Equal in all that is neither a time nor a path, and the adapters bit by bit."""
    assert isinstance(other, PhaseResult), other
    own = {"wall_s", "train_wall_s", "gpu_hours", "setup_s", "warm", "cold_reason", "checkpoints", "node"}
    for field in dataclasses.fields(PhaseResult):
        if field.name not in own:
            assert getattr(one, field.name) == getattr(other, field.name), field.name
    assert [(c.step, c.val_score) for c in one.checkpoints] == [
        (c.step, c.val_score) for c in other.checkpoints
    ]
    for mine, theirs in zip(one.checkpoints, other.checkpoints, strict=True):
        name = "adapter_model.safetensors"
        assert (Path(mine.path) / name).read_bytes() == (Path(theirs.path) / name).read_bytes(), mine.step
