"""The estimate of GPU memory as people see it: in `--dry-run` and in the doctor's table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from llmzero_ray.cli.doctor.memory import card_of, on_cards
from llmzero_ray.cli.dry_run import show_estimate
from llmzero_ray.cli.gpu_memory import memory_lines, show_memory
from llmzero_ray.config import SearchConfig, load_config, parse_config
from llmzero_ray.errors import TaskError
from llmzero_ray.estimate import Estimate, card_gib, is_for_gpus
from llmzero_ray.launch.nodes import nodes_up

ROOT = Path(__file__).parents[2]
MICRO = ("micro_batch_size", "log_prob_micro_batch_size", "ref_micro_batch_size")


def preset(size: str, *changes: str) -> SearchConfig:
    return load_config(ROOT / "jobs" / "configs" / f"qwen3_{size}.yaml", changes)


def shown(config: SearchConfig) -> str:
    console = Console(width=80, record=True)
    show_memory(console, Estimate(config))
    return console.export_text()


def fake_driver(place: Path, body: str, patch: pytest.MonkeyPatch) -> None:
    program = place / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    patch.setenv("PATH", str(place), prepend=":")


def test_a_dry_run_shows_the_table_and_the_verdict(
    task_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = preset("8b", f"task.dir={task_dir}", f"storage={tmp_path}", "root.overrides.batch=64")
    assert show_estimate(config, seconds_per_step=100.0) == 0
    output = capsys.readouterr().out
    assert "GPU memory of Qwen3-8B, GiB per GPU, a slot of 8 GPU(s) of 39.4 GiB" in output
    assert "GPU memory: fits: tightest is rollout" in output
    assert "training steps" in output


def test_memory_is_shown_before_there_is_a_task(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(TaskError):
        show_estimate(preset("4b", f"task.dir={tmp_path / 'none'}"), seconds_per_step=100.0)
    assert "GPU memory: fits" in capsys.readouterr().out


def test_the_table_fits_into_80_columns_and_its_items_add_up() -> None:
    lines = shown(preset("4b")).splitlines()
    rows = {line[:24].strip(): line[24:].split() for line in lines if line.startswith("  ")}
    assert rows["limit"] == ["33.5", "39.4", "39.4", "39.4", "39.4", "39.4"]
    found, _ = Estimate(preset("4b")).gpu_memory
    for column, stage in enumerate(found.stages):
        assert float(rows["likely"][column]) == pytest.approx(stage.total.likely / 2**30, abs=0.06)
        parts = [float(rows[item.name][0]) for item in stage.items if len(rows[item.name]) == 1]
        assert sum(parts) <= stage.total.likely / 2**30 + 0.5
    assert "…" not in "".join(lines)


def test_what_does_not_fit_is_said_with_what_would_help() -> None:
    output = shown(preset("8b", "root.overrides.dynamic_bsz=false"))
    assert "GPU memory: does not fit: tightest is update" in output
    assert "dynamic_bsz false -> true with max_token_len_per_gpu 16384" in output
    assert "GiB less there, then fits" in output


def test_what_only_later_phases_may_ask_for_is_said_as_well() -> None:
    changes = ["dynamic_bsz=false", *(f"{name}=2" for name in MICRO)]
    config = preset("8b", *(f"root.overrides.{change}" for change in changes), "slots.gpu_memory_gib=26")
    config = config.model_copy(
        update={"engine": config.engine.model_copy(update={"gpu_memory_utilization": 0.7})}
    )
    estimate = Estimate(config)
    root, demanding = estimate.gpu_memory
    assert (root.status, demanding.status) != (root.status, root.status)
    output = "\n".join(memory_lines(estimate))
    assert "a phase with responses of 8192 tokens and a temperature other than 1: " in output
    row, _ = on_cards(config, None, 26.0)
    assert "a phase with responses of 8192 tokens" in row.found


def test_a_model_that_is_not_known_gets_a_reason_instead() -> None:
    output = shown(preset("4b", "model.path=/nowhere/Mixtral-8x7B"))
    assert output.startswith("no memory estimate: /nowhere/Mixtral-8x7B/config.json cannot be read")
    assert "GPU memory" not in output


def test_without_the_cards_size_the_key_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    output = shown(preset("4b", "slots.gpu_memory_gib=null"))
    assert output.strip() == "no memory estimate: set slots.gpu_memory_gib (39.4 for an A100 of 40 GB)"


@pytest.mark.parametrize(
    ("engine", "expected"),
    [({"platform": "cpu"}, False), ({"platform": "gpu"}, True), ({"backend": "my.module:engine"}, False)],
)
def test_only_verl_on_gpus_is_estimated(engine: dict[str, Any], expected: bool) -> None:
    config = parse_config({"name": "s", "engine": engine, "slots": {"gpu_memory_gib": 39.4}})
    assert is_for_gpus(config) is expected
    if not expected:
        assert shown(config) == ""


def test_a_card_has_what_its_driver_does_not_keep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_driver(tmp_path, "echo '40960, 614'; echo '40960, 620'", monkeypatch)
    assert card_gib() == pytest.approx((40_960 - 620) / 1024)


@pytest.mark.parametrize("body", ["exit 9", "echo '[N/A], [N/A]'", "true"])
def test_a_driver_that_does_not_say_is_no_figure(
    body: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_driver(tmp_path, body, monkeypatch)
    assert card_gib() is None


# --- the doctor's row -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu_gib", "status"), [(79.2, "ok"), (39.4, "ok"), (28.0, "warn"), (24.0, "FAIL"), (None, "skipped")]
)
def test_the_doctors_row_follows_the_verdict(gpu_gib: float | None, status: str) -> None:
    config = preset("8b", "engine.gpu_memory_utilization=0.5")
    row, found = on_cards(config, None, gpu_gib)
    assert row.status == status
    assert (found is None) == (gpu_gib is None)
    assert bool(row.todo) == (status in ("warn", "FAIL"))


def test_a_model_without_an_estimate_is_skipped_by_the_doctor() -> None:
    row, found = on_cards(preset("8b", "model.path=/nowhere/other"), None, 39.4)
    assert (row.status, found) == ("skipped", None)
    assert "no memory estimate" in row.found


@pytest.mark.slow
@pytest.mark.parametrize("given", [None, 39.4])
def test_machines_whose_drivers_are_silent_leave_it_to_the_configuration(
    head: None, given: float | None
) -> None:
    config = preset("8b", f"slots.gpu_memory_gib={'null' if given is None else given}")
    assert card_of(config, nodes_up(), limit_s=60.0) == given
