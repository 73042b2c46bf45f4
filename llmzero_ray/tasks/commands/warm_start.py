"""The command `warm-start`: check the input, find or start Ray, train, and print the result."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from llmzero_ray.cli import options
from llmzero_ray.cli.output import TerminalConsole, print_line
from llmzero_ray.config.changes import read_settings
from llmzero_ray.errors import CapacityError
from llmzero_ray.launch import actors
from llmzero_ray.launch.preflight import refuse_job_path
from llmzero_ray.tasks.sft.config import SftConfig, load_sft
from llmzero_ray.tasks.sft.progress import LOSS, LR, VAL_LOSS

if TYPE_CHECKING:
    from llmzero_ray.tasks.sft.job import Job

_SHARE = 0.05
"""Fraction of the training between two reports of progress."""


def warm_start(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="warm_start.yaml")],
    *,
    settings: Annotated[list[str], options.settings_option("set a field, such as n_steps=200")],
) -> int:
    """Train a base model on a task's gold answers, unless that has been done."""
    from llmzero_ray.tasks.sft.job import only_one, open_job, result_in

    console = TerminalConsole()
    loaded = load_sft(config, read_settings(settings))
    refuse_job_path("output", loaded.output)
    with only_one(Path(loaded.output)):
        job = open_job(loaded, lambda doing: print_line(console, doing))
        if job.result is not None:
            print_line(console, f"{loaded.output}: this warm start is done; nothing was trained")
            return _print_result(job.result, loaded, console)
        _print_job(job, console)
        _train(job, console)
        done = result_in(job.output)
        assert done is not None
        return _print_result(done, loaded, console)


def _train(job: Job, console: Console) -> None:
    from llmzero_ray.tasks.sft import launch

    with actors.head.disconnecting():
        _connect(job.config, console)
        launch.reserve_once(job.config)
        report = _report_progress(console)
        for line in launch.train_on_ray(job):
            report(line)
    shutil.rmtree(job.output / launch.RAY_STATE, ignore_errors=True)


def _connect(config: SftConfig, console: Console) -> None:
    """Join the existing cluster, or start a private head with this machine's resources."""
    print_line(console, actors.head.start_text())
    import ray

    from llmzero_ray.tasks.sft.launch import asked_and_there, n_fitting

    if actors.head.join_if_there():
        print_line(console, f"joined the Ray cluster; waiting for {config.workers} worker(s)")
        return
    actors.head.start_private_head()
    machine = ray.cluster_resources()
    if n_fitting(config, [machine]) < config.workers:
        raise CapacityError(asked_and_there(config, [machine]))


def _report_progress(console: Console) -> Callable[[Mapping[str, Any]], None]:
    last_share = -1.0

    def report(line: Mapping[str, Any]) -> None:
        nonlocal last_share
        if "resumed" in line:
            last_share = -1.0
            print_line(console, f"warm start: continuing from the checkpoint of step {line['resumed']}")
        elif VAL_LOSS in line:
            print_line(console, f"warm start: held-out loss {line[VAL_LOSS]:.4f} at step {line['step']}")
        elif LOSS in line and (
            line["step"] / line["of"] >= last_share + _SHARE - 1e-9 or line["step"] == line["of"]
        ):
            last_share = line["step"] / line["of"]
            rest = f"loss {line[LOSS]:.4f}, lr {line[LR]:.2e}"
            print_line(console, f"warm start: step {line['step']} of {line['of']}, {rest} ({last_share:.0%})")
        elif "doing" in line:
            print_line(console, f"warm start: {line['doing']}")

    return report


def _print_job(job: Job, console: Console) -> None:
    print_line(console, f"{job.n_train} items to learn from, {job.n_val} to measure on")
    for split, reasons in job.dropped.items():
        for reason, n in reasons.items():
            print_line(console, f"left out of {split}: {n} ({reason})")


def _print_result(result: Mapping[str, Any], config: SftConfig, console: Console) -> int:
    before, after = result["val_loss_before"], result["val_loss_after"]
    print_line(console, f"{result['n_steps']} steps; held-out loss {before:.4f} before, {after:.4f} after")
    places = {name: Path(config.output) / result[name] for name in ("model", "adapter") if result[name]}
    for name, place in places.items():
        print_line(console, f"{name}: {place}")
    if "model" in places:
        print_line(console, f"to search from it, write into search.yaml: model: {{path: {places['model']}}}")
    return 0
