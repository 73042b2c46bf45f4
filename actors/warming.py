"""The command `warm-start`: check everything, find or start a Ray, train, say what came out.

Not here: the training (llmzero_ray/tasks/warm_start).
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from llmzero_ray.config_changes import read_settings
from llmzero_ray.errors import CapacityError, ConfigError
from llmzero_ray.tasks.warm_start.config import WarmStartConfig, load_warm_start
from llmzero_ray.tasks.warm_start.progress import LOSS, LR, VAL_LOSS

if TYPE_CHECKING:
    from llmzero_ray.tasks.warm_start.job import Job

_STEP = 0.05
"""Share of the training after which it is told again."""


def warm_start(arguments: argparse.Namespace) -> int:
    """Train a base model on a task's gold answers, or see that it has been done."""
    from llmzero_ray.tasks.warm_start.job import only_one, open_job, result_in

    console = Console()
    config = load_warm_start(arguments.config, read_settings(arguments.set))
    _refuse_job_directory(config)
    with only_one(Path(config.output)):
        job = open_job(config, lambda doing: _say(console, doing))
        if job.result is not None:
            _say(console, f"{config.output}: this warm start is done; nothing was trained")
            return _tell_result(job.result, config, console)
        _tell_job(job, console)
        _train(job, console)
        done = result_in(job.output)
        assert done is not None
        return _tell_result(done, config, console)


def _train(job: Job, console: Console) -> None:
    from llmzero_ray.tasks.warm_start import on_ray

    from .head import disconnecting

    with disconnecting():
        _connect(job.config, console)
        on_ray.reserve_once(job.config, timeout_s=job.config.start_timeout_s)
        tell = _telling(console)
        for line in on_ray.train_on_ray(job):
            tell(line)
    shutil.rmtree(job.output / on_ray.RAY_STATE, ignore_errors=True)


def _connect(config: WarmStartConfig, console: Console) -> None:
    """Join the cluster that is there, or start a private head with what this machine has."""
    import ray

    from llmzero_ray.tasks.warm_start.on_ray import asked_and_there, n_fitting

    from .head import join_if_there, prepare_private_head

    if join_if_there():
        _say(console, f"joined the Ray cluster; waiting for {config.workers} worker(s)")
        return
    prepare_private_head()
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    machine = ray.cluster_resources()
    if n_fitting(config, [machine]) < config.workers:
        raise CapacityError(asked_and_there(config, [machine], 0))


def _telling(console: Console) -> Callable[[Mapping[str, Any]], None]:
    told = -1.0

    def tell(line: Mapping[str, Any]) -> None:
        nonlocal told
        if "resumed" in line:
            told = -1.0
            _say(console, f"warm start: going on from the checkpoint of step {line['resumed']}")
        elif VAL_LOSS in line:
            _say(console, f"warm start: held-out loss {line[VAL_LOSS]:.4f} at step {line['step']}")
        elif LOSS in line and (
            line["step"] / line["of"] >= told + _STEP - 1e-9 or line["step"] == line["of"]
        ):
            told = line["step"] / line["of"]
            rest = f"loss {line[LOSS]:.4f}, lr {line[LR]:.2e}"
            _say(console, f"warm start: step {line['step']} of {line['of']}, {rest} ({told:.0%})")
        elif "doing" in line:
            _say(console, f"warm start: {line['doing']}")

    return tell


def _tell_job(job: Job, console: Console) -> None:
    _say(console, f"{job.n_train} items to learn from, {job.n_val} to measure on")
    for split, reasons in job.dropped.items():
        for reason, n in reasons.items():
            _say(console, f"left out of {split}: {n} ({reason})")


def _tell_result(result: Mapping[str, Any], config: WarmStartConfig, console: Console) -> int:
    before, after = result["val_loss_before"], result["val_loss_after"]
    _say(console, f"{result['n_steps']} steps; held-out loss {before:.4f} before, {after:.4f} after")
    places = {name: Path(config.output) / result[name] for name in ("model", "adapter") if result[name]}
    for name, place in places.items():
        _say(console, f"{name}: {place}")
    if "model" in places:
        _say(console, f"to search from it, write into search.yaml: model: {{path: {places['model']}}}")
    return 0


def _refuse_job_directory(config: WarmStartConfig) -> None:
    """A submitted job unpacks its files in a directory of its own, which goes away with the cluster."""
    if "working_dir_files" in Path(config.output).parts:
        raise ConfigError(
            f"output is {config.output}, inside the job's temporary copy of the files; give an absolute path "
            f"that every machine sees, for example --set output=/shared/{Path(config.output).name}"
        )


def _say(console: Console, line: str) -> None:
    console.print(Text(line), soft_wrap=True)
