"""The command `warm-start`: check the input, train on Ray, and print the result."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from llmzero_ray.cli import options
from llmzero_ray.cli.output import TerminalConsole, print_line
from llmzero_ray.config.changes import read_settings
from llmzero_ray.errors import StorageError
from llmzero_ray.launch.preflight import refuse_job_path
from llmzero_ray.tasks.sft.config import load_sft
from llmzero_ray.utils.files import FileLock, storage_errors


def warm_start(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="warm_start.yaml")],
    *,
    settings: Annotated[list[str], options.settings_option("set a field, such as n_steps=200")],
) -> int:
    """Train a base model on a task's gold answers, unless that has been done."""
    from llmzero_ray.tasks.sft.job import CHECKPOINTS, open_job, result_in
    from llmzero_ray.tasks.sft.launch import train_on_ray

    say = partial(print_line, TerminalConsole())
    loaded = load_sft(config, read_settings(settings))
    refuse_job_path("output", loaded.output)
    output = Path(loaded.output)
    lock = FileLock(output / ".lock")  # until this process ends
    with storage_errors(output, setting="output"):
        if not lock.acquire():
            raise StorageError(
                f"{output}: another warm start is running there. Wait for it, or choose another output."
            )
    result = result_in(loaded)
    if result is not None:
        say(f"{output}: this warm start is done; nothing was trained")
    else:
        train_on_ray(open_job(loaded, say), say)
        result = result_in(loaded)
        assert result is not None
    shutil.rmtree(output / CHECKPOINTS, ignore_errors=True)
    before, after = result["val_loss_before"], result["val_loss_after"]
    say(f"{result['n_steps']} steps; held-out loss {before:.4f} before, {after:.4f} after")
    say(f"to search from it, write into search.yaml: model: {{path: {output / 'model'}}}")
    return 0
