"""Which full checkpoint counts, and for which phase; what a phase has reported, there and back."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmzero_ray.engines.verl import rolling_checkpoint
from llmzero_ray.engines.verl.phase import PhaseState, Progress
from llmzero_ray.records import MetricPoint, PhaseSpec, ResumeFrom
from llmzero_ray.records.metrics import VAL_TOKENS


def phase(rolling_dir: Path, **fields: Any) -> PhaseSpec:
    spec = PhaseSpec(
        search="demo", node=4, kind="evolve", parent=1, resume_from=ResumeFrom(node=1, step=20),
        adapter="/storage/checkpoints/0001/step_000020", base_step=20, n_steps=40,
        hyperparameters={"lr": 1e-3, "betas": (0.9, 0.999), "clip": None}, seed=7, save_freq=10,
        test_freq=10, checkpoint_dir="/c", rolling_dir=str(rolling_dir), rolling_freq=10,
        restore=True,
    )  # fmt: skip
    return dataclasses.replace(spec, **fields)


def write(rolling_dir: Path, spec: PhaseSpec, step: int, n_gpus: int = 1) -> Path:
    directory = rolling_checkpoint.directory_of(str(rolling_dir), step)
    (directory / "worker").mkdir(parents=True)
    (directory / "worker" / "optim.pt").write_text(f"moments after {step}")
    (directory / rolling_checkpoint.STATE).write_text(json.dumps({"steps_done": step}))
    rolling_checkpoint.commit(directory, spec, n_gpus)
    return directory


def names(rolling_dir: Path) -> list[str]:
    return sorted(path.name for path in rolling_dir.iterdir())


def test_the_older_one_goes_when_the_newer_one_is_complete(tmp_path: Path) -> None:
    spec = phase(tmp_path)
    write(tmp_path, spec, 10)
    unfinished = rolling_checkpoint.directory_of(str(tmp_path), 20)
    unfinished.mkdir()
    (unfinished / rolling_checkpoint.STATE).write_text("{}")
    found = rolling_checkpoint.newest(spec, 1)
    assert found is not None and (found.step, found.state) == (10, {"steps_done": 10})
    rolling_checkpoint.commit(unfinished, spec, 1)
    assert names(tmp_path) == ["step_000020.full"]


def test_a_repeat_on_another_machine_at_another_attempt_is_the_same_phase(tmp_path: Path) -> None:
    write(tmp_path, phase(tmp_path), 10)
    moved = shutil.copytree(tmp_path, tmp_path.with_name("moved"))
    again = phase(moved, attempt=2, checkpoint_dir="/d", adapter="/elsewhere", max_wall_s=5.0)
    found = rolling_checkpoint.newest(again, 1)
    assert found is not None and found.step == 10 and found.path.startswith(str(moved))


@pytest.mark.parametrize(
    ("fields", "n_gpus", "named"),
    [
        ({"node": 5}, 1, "node"),
        ({"seed": 8}, 1, "seed"),
        ({"n_steps": 41}, 1, "n_steps"),
        ({"resume_from": None}, 1, "resume_from"),
        ({"hyperparameters": {"lr": 2e-3, "betas": (0.9, 0.999), "clip": None}}, 1, "hyperparameters"),
        ({}, 2, "ranks"),
    ],
)
def test_a_full_checkpoint_of_another_phase_is_refused_by_what_differs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fields: dict[str, Any], n_gpus: int, named: str
) -> None:
    write(tmp_path, phase(tmp_path), 10)
    with caplog.at_level(logging.WARNING):
        assert rolling_checkpoint.newest(phase(tmp_path, **fields), n_gpus) is None
    assert f"it belongs to another phase ({named} differ)" in caplog.text


def test_a_damaged_one_is_refused_and_the_older_one_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = phase(tmp_path)
    kept = shutil.copytree(write(tmp_path, spec, 10), tmp_path / "copy")
    newer = write(tmp_path, spec, 20)
    kept.rename(rolling_checkpoint.directory_of(str(tmp_path), 10))
    (newer / "worker" / "optim.pt").write_text("moments after 21")
    found = rolling_checkpoint.newest(spec, 1)
    assert found is not None and found.step == 10
    assert "step_000020.full is not used: worker/optim.pt is not what was saved" in caplog.text


def test_a_storage_that_fails_leaves_the_older_one_counting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = phase(tmp_path)
    write(tmp_path, spec, 10)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    write(tmp_path, spec, 20)
    found = rolling_checkpoint.newest(spec, 1)
    assert found is not None and found.step == 10
    assert "was not completed" in caplog.text and "the storage is full" in caplog.text


def test_a_phase_that_does_not_ask_starts_from_the_beginning(tmp_path: Path) -> None:
    spec = phase(tmp_path)
    write(tmp_path, spec, 10)
    assert rolling_checkpoint.newest(dataclasses.replace(spec, restore=False), 1) is None
    assert rolling_checkpoint.newest(dataclasses.replace(spec, rolling_dir=None), 1) is None


def point(step: int, val_score: float | None) -> MetricPoint:
    metrics = {} if val_score is None else {VAL_TOKENS: 100.0 + step}
    return MetricPoint(
        node=4, attempt=0, step=step, global_step=step, wall_s=float(step), metrics=metrics,
        val_score=val_score,
    )  # fmt: skip


def test_progress_comes_back_from_its_state_with_adapters_in_the_new_place() -> None:
    progress = Progress(wall_s=12.5, train_wall_s=10.0)
    for step, score in ((0, 0.9), (10, 0.5), (20, 0.7), (30, 0.7), (40, 0.6), (45, None)):
        progress.saw(point(step, score))
    progress.saved = {20: "/old/step_000020", 40: "/old/step_000040"}
    again = Progress.from_state(json.loads(json.dumps(progress.to_state())), "/new")
    assert (again.steps_done, again.scores) == (45, progress.scores)
    assert (again.wall_s, again.train_wall_s, again.val_tokens) == (12.5, 10.0, 140.0)
    assert [(c.step, c.path, c.val_score) for c in again.checkpoints] == [
        (20, "/new/step_000020", 0.7),
        (40, "/new/step_000040", 0.6),
    ]
    result = again.result(phase(Path("/r")), "verdict v1: no hope")
    assert (result.status, result.best_step, result.best_score) == ("early_stopped", 20, 0.7)  # never step 0
    assert (result.start_score, result.final_score, result.steps_done) == (0.9, 0.6, 45)


class Ranks:
    """A worker group of one rank that holds nothing."""

    def save_full(self, path: str) -> list[dict[str, str]]:
        Path(path).mkdir()
        return [{"adapter": "a"}]

    def load_full(self, _path: str, _skip: Any) -> list[dict[str, str]]:
        return [{"adapter": "a"}]


class Loader:
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state == {}

    def __iter__(self) -> Iterator[None]:
        return iter(())


def trainer(**parts: Any) -> Any:
    return SimpleNamespace(
        actor_rollout_wg=Ranks(), train_dataloader=Loader(), total_training_steps=40, **parts
    )


@pytest.mark.parametrize("in_reward", [False, True])
def test_the_weight_of_the_kl_in_the_reward_is_kept_where_the_phase_has_one(
    tmp_path: Path, in_reward: bool
) -> None:
    pytest.importorskip("verl")
    from llmzero_ray.engines.verl import full_checkpoint

    spec = phase(tmp_path, hyperparameters={"algorithm.use_kl_in_reward": in_reward})
    state = PhaseState(spec=spec, emit=lambda _: None, saved=lambda _: None, progress=Progress(steps_done=10))
    # A warm trainer has the weight of the phase before.
    full_checkpoint.save_if_due(trainer(kl_ctrl_in_reward=SimpleNamespace(value=0.25)), state, 10)
    state.restore, state.skip = str(rolling_checkpoint.directory_of(str(tmp_path), 10)), ("restore.check",)
    # VeRL gives a trainer one for a phase with the KL in its reward.
    fresh = trainer(**({"kl_ctrl_in_reward": SimpleNamespace(value=0.001)} if in_reward else {}))
    full_checkpoint.restore(fresh, state)
    assert fresh.global_steps == 10
    assert not in_reward or fresh.kl_ctrl_in_reward.value == 0.25
