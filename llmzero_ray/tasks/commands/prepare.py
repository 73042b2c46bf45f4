"""The command `prepare`: make the task of a task.yaml or of a search.yaml, and say what it holds."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmzero_ray.cli import options
from llmzero_ray.cli.output import TerminalConsole, print_line
from llmzero_ray.cli.settings import with_whole_keys
from llmzero_ray.config import HUB_ID, load_config, presets
from llmzero_ray.config.changes import read_settings
from llmzero_ray.dynamics.incumbent import base_problem
from llmzero_ray.errors import CapacityError, ConfigError
from llmzero_ray.launch import actors
from llmzero_ray.prepared.directory import progress_lines
from llmzero_ray.prepared.task import repeated_questions
from llmzero_ray.storage.presence import being_started
from llmzero_ray.tasks.from_config import is_task_file, prepare_task_file, task_of
from llmzero_ray.utils.text import nearest, one_line

if TYPE_CHECKING:
    from llmzero_ray.prepared import PreparedTask
    from llmzero_ray.tasks.sources.summary import Summary

_HUB = re.compile(HUB_ID)


def prepare(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="task.yaml, search.yaml, or gsm_symbolic")],
    *,
    settings: Annotated[list[str], options.settings_option("set a field, such as n_train=500")],
    ray: Annotated[
        bool, typer.Option("--ray", help="read the rows of a task.yaml on the Ray cluster")
    ] = False,
) -> int:
    """Make the task of a search.yaml or of a task.yaml unless it exists, and print a summary."""
    console, path = TerminalConsole(), presets.path_of(config)
    if not path.exists():
        hub = (
            f" Rows of the Hugging Face Hub are named in it: `hub: {config}`."
            if _HUB.fullmatch(config)
            else ""
        )
        near = nearest(config, presets.task_names())
        hint = f" Did you mean the shipped task {near!r}?" if near else hub
        raise ConfigError(
            f"{config}: there is no such file. prepare takes a search.yaml or a task.yaml, which "
            f"`llmzero draft FOLDER SENTENCE` writes.{hint}"
        )
    if is_task_file(path, on_ray=ray):
        made = prepare_source_task(config, settings, console, on_ray=ray)
        plain = re.fullmatch(r"[\w./+-]+", str(made.directory))
        directory = made.directory if plain else json.dumps(str(made.directory), ensure_ascii=False)
        use = f"to train on it, write into search.yaml: task: {{dir: {directory}}}"
        print_line(console, one_line(use, None))
        return 0
    loaded, say = load_config(config, with_whole_keys(settings)), partial(print_line, console)
    root = Path(loaded.storage) / loaded.name
    with contextlib.nullcontext(say) if root.exists() else being_started(root, say) as tell:
        task = task_of(loaded, tell)
    accuracy = "" if task.greedy_val_accuracy is None else f", base model {task.greedy_val_accuracy:.3f}"
    print_line(console, one_line(f"task {task.name} in {task.directory}: {_sizes(task)}{accuracy}", None))
    warnings = repeated_questions(task) if task.family is None else ()
    for warning in filter(None, (base_problem(task.greedy_val_accuracy), *warnings)):
        print_line(console, one_line(f"warning: {warning}", None))
    return 0


def prepare_source_task(
    path: str, settings: list[str], console: Console, *, on_ray: bool = False
) -> PreparedTask:
    """Task of a task.yaml, created if missing, after printing a summary.

    Raises:
        ConfigError: the file is wrong.
        TaskError: the task cannot be made, or another one exists there.
        StorageError: it cannot be written.
    """

    def say(line: str) -> None:
        print_line(console, one_line(line, None))

    with _cluster() if on_ray else contextlib.nullcontext(), progress_lines(say) as progress:
        summary = prepare_task_file(path, read_settings(settings), progress=progress, on_ray=on_ray)
    _print_summary(summary, console)
    return summary.task


@contextlib.contextmanager
def _cluster() -> Iterator[None]:
    """Context in which this process has joined a cluster."""
    with actors.head.disconnecting():
        if not actors.head.join_if_there():
            raise CapacityError(
                "--ray reads the rows on a Ray cluster, and there is none. Start one with `ray start "
                "--head`, name it in RAY_ADDRESS, or leave --ray out to read them on this machine."
            )
        yield


def _print_summary(summary: Summary, console: Console) -> None:
    task = summary.task
    came = f"made from {summary.rows_read} rows" if summary.made else "was there already"
    print_line(console, one_line(f"task {task.name} in {task.directory} {came}: {_sizes(task)}", None))
    tables = [
        summary.split_table(),
        summary.dropped_table(),
        summary.sample_table(),
        summary.no_thought_table(),
        summary.reward_table(),
    ]
    for head, *lines in filter(None, tables):
        if not lines:
            continue
        table = Table(*head)
        for line in lines:
            table.add_row(*(Text(one_line(cell, None), overflow="fold") for cell in line))
        console.print(table)
    for warning in summary.warnings:
        print_line(console, one_line(f"warning: {warning}", None))


def _sizes(task: PreparedTask) -> str:
    return f"{task.n_train} train, {task.n_val} val, {task.n_test} test"
