"""`search --dry-run`: where its figures come from, and what it says."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.cli.dry_run import show_estimate
from llmzero_ray.cli.step_times import DOCTOR_FILE, measured, step_seconds, validation_seconds
from llmzero_ray.config import SearchConfig, parse_config
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.errors import ConfigError, TaskError
from llmzero_ray.records import MetricPoint, PhaseResult
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import load_points
from llmzero_ray.tasks.tiny_model import SHAPE
from tests.blackbox.inputs import copy_of
from tests.builders import with_blocks

SLOTS = [
    {"slot": 0, "step_s": 3.0, "startup_s": 60.0, "validation_s": 4.0},
    {"slot": 1, "step_s": 5.0, "startup_s": 50.0, "validation_s": 2.0},
]


@pytest.fixture
def make(task_dir: Path, tmp_path: Path) -> Callable[..., SearchConfig]:
    def make_config(**blocks: Any) -> SearchConfig:
        base = {
            "name": "dry",
            "storage": str(tmp_path / "runs"),
            "task": {"dir": str(task_dir)},
            "model": {"path": str(tmp_path / "model"), "lora_rank": 8},
            "budget": {"runs": 5},
            "phase": {"n_steps": 40, "max_steps": 100, "test_freq": 10, "save_freq": 10},
            "root": {"overrides": {"lr": 1e-3, "train_batch_size": 16, "n": 4}},
        }
        return parse_config(with_blocks(base, blocks))

    return make_config


def left_by_doctor(config: SearchConfig, then: SearchConfig) -> None:
    place = Path(config.storage) / config.name
    place.mkdir(parents=True)
    body = {"format": 1, "measured": {"config": then.to_json(), "slots": SLOTS}}
    (place / DOCTOR_FILE).write_text(json.dumps(body))


def test_a_figure_given_by_hand_goes_before_all_others(make: Callable[..., SearchConfig]) -> None:
    config = make()
    left_by_doctor(config, config)
    assert measured(config, seconds_per_step=7.0, like="nowhere").step_s == 7.0


def test_the_slowest_slot_of_the_doctor_counts(make: Callable[..., SearchConfig]) -> None:
    config = make()
    left_by_doctor(config, config)
    found = measured(config, seconds_per_step=None, like=None)
    assert (found.step_s, found.validation_s, found.cold_start_s) == (5.0, 4.0, 60.0)
    assert found.notes == ()


def test_what_was_measured_under_other_settings_is_said(make: Callable[..., SearchConfig]) -> None:
    config = make(root={"overrides": {"lr": 1e-3, "train_batch_size": 32, "n": 4}}, budget={"runs": 9})
    left_by_doctor(config, make())
    notes = measured(config, seconds_per_step=None, like=None).notes
    assert notes == ("measured with root.overrides.train_batch_size: 16, not 32",)


def test_a_model_of_the_hub_is_the_same_in_the_directory_of_its_commit(
    make: Callable[..., SearchConfig],
) -> None:
    config = make(model={"path": "hf://ann/base-4b"})
    left_by_doctor(config, make(model={"path": "/cache/models--ann--base-4b/x", "hub_id": "ann/base-4b"}))
    assert measured(config, seconds_per_step=None, like=None).notes == ()
    (note,) = measured(make(model={"path": "hf://ann/other"}), seconds_per_step=None, like=None).notes[:1]
    assert note == "measured with model.path: '/cache/models--ann--base-4b/x', not 'hf://ann/other'"


def test_without_any_figure_the_ways_to_get_one_are_named(make: Callable[..., SearchConfig]) -> None:
    with pytest.raises(ConfigError, match=r"llmzero doctor.*--like SEARCH.*--seconds-per-step") as refused:
        show_estimate(make())
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_seconds_that_are_none_are_refused(make: Callable[..., SearchConfig], seconds: float) -> None:
    with pytest.raises(ConfigError, match="must be a number > 0"):
        show_estimate(make(), seconds_per_step=seconds)


def test_a_search_that_is_not_there_cannot_be_taken_as_an_example(make: Callable[..., SearchConfig]) -> None:
    with pytest.raises(ConfigError, match="there is no search here"):
        show_estimate(make(), like="nowhere")


def test_a_task_that_is_not_there_is_refused_unless_prepare_would_make_it(
    make: Callable[..., SearchConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(TaskError):
        show_estimate(make(task={"dir": nowhere}), seconds_per_step=1.0)
    assert show_estimate(make(task={"dir": nowhere, "family": "echo"}), seconds_per_step=1.0) == 0
    assert not Path(nowhere).exists()


def test_what_the_estimate_leaves_out_is_said(
    make: Callable[..., SearchConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_estimate(make(), seconds_per_step=1.0) == 0
    plain = capsys.readouterr().out
    assert "ends with budget.runs (5)\n" in plain and "confirm.k" not in plain
    config = make(budget={"compute": 1.0}, confirm={"k": 3}, search={"method": "random"})
    assert show_estimate(config, seconds_per_step=1.0) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "ends with budget.runs (5), or sooner with budget.compute, which is not estimated" in shown
    assert "not counted: the evaluation of confirm.k (3) strategies" in shown
    assert "standard phases" in shown


def test_a_plan_that_the_search_would_refuse_is_refused(make: Callable[..., SearchConfig]) -> None:
    with pytest.raises(ConfigError, match="did you mean 'learning_rate'"):
        show_estimate(make(search={"method": "grid", "grid": {"learnig_rate": [1.0]}, "n_trials": 1}))


def test_steps_hours_and_disk_are_shown_for_three_cases(
    make: Callable[..., SearchConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(SHAPE))
    config = make(budget={"runs": 5, "wall_clock_hours": 0.1}, checkpoints={"max_gib": 0.001})
    assert show_estimate(config, seconds_per_step=10.0) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = {line.split("  ")[1].strip(): line.split()[-3:] for line in lines if line.startswith("  ")}
    assert cells["training steps"] == ["80", "200", "440"]
    assert cells["dollars for agents"] == ["0.00"] * 3
    # 233,472 bytes an adapter: 5 x 4 of the phases, 6 of the default recipe, 3 for the full checkpoint.
    assert float(cells["adapters on disk (GiB)"][1]) == pytest.approx(29 * 233472 / 2**30, rel=0.01)
    output = "\n".join(lines)
    assert "10 s a training step, from --seconds-per-step" in output
    assert "assumed, not measured: seconds of validation and start" in output
    assert "as planned: budget.wall_clock_hours (0.1) ends it after about" in output
    assert "checkpoints.max_gib (0.001)" in output


def test_on_gpus_an_estimate_of_the_stages_stands_in_for_a_measured_step(
    make: Callable[..., SearchConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    place = {"model": {"path": "/shared/models/Qwen3-4B"}, "slots": {"gpu_memory_gib": 39.4}}
    config = make(engine={"platform": "gpu"}, **place)
    assert show_estimate(config) == 0
    printed = " ".join(capsys.readouterr().out.split())
    stages = r"half their cap \(at their cap\): rollout \d+ \(\d+\), update \d+ \(\d+\), validation at"
    assert re.search(stages, printed), printed
    assert "an estimate for these cards" in printed
    left_by_doctor(config, config)
    assert show_estimate(config) == 0
    assert "5 s a training step, from " in capsys.readouterr().out
    # A model of unknown shape, and the CPU, need a measured step as before.
    for other in (
        make(engine={"platform": "gpu"}, name="other"),
        make(engine={"platform": "cpu"}, name="cpu"),
    ):
        with pytest.raises(ConfigError, match="is not measured yet"):
            show_estimate(other)


def test_nothing_is_written_by_an_estimate(make: Callable[..., SearchConfig]) -> None:
    config = make()
    show_estimate(config, seconds_per_step=1.0)
    assert not Path(config.storage).exists()


def test_steps_are_timed_by_verl_where_it_logs_them_else_by_their_reports() -> None:
    def point(step: int, wall_s: float, **metrics: float) -> MetricPoint:
        return MetricPoint(node=0, attempt=0, step=step, global_step=step, wall_s=wall_s, metrics=metrics)

    plain = [point(0, 1.0), point(1, 3.0), point(2, 6.0)]
    assert (step_seconds(plain), validation_seconds(plain)) == ([2.0, 3.0], [])
    timed = [point(0, 1.0), point(1, 3.0, **{"timing_s/step": 1.5, "timing_s/testing": 0.5})]
    assert (step_seconds(timed), validation_seconds(timed)) == ([1.5], [0.5])


def test_another_search_gives_the_median_of_its_steps_and_starts(tmp_path: Path) -> None:
    root = copy_of("two_slots", tmp_path / "runs")
    storage = SearchStorage(root.parent, root.name)
    core = Follower.of(storage).core
    found = measured(core.config, seconds_per_step=None, like=str(root))
    points = [load_points(storage, node) for node in core.runs]
    assert found.step_s == statistics.median(s for own in points for s in step_seconds(own)) > 0
    results = [run.outcome for run in core.runs.values() if isinstance(run.outcome, PhaseResult)]
    assert {result.warm for result in results} == {True, False}
    assert found.cold_start_s == statistics.median(r.setup_s for r in results if not r.warm)
    assert found.source == str(root)
    assert found.notes == ()
    here = core.config.model_copy(update={"storage": str(root.parent)})
    named = measured(here, seconds_per_step=None, like=root.name)
    assert named.step_s == found.step_s
