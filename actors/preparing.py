"""`llmzero prepare task.yaml`: make a task from a data set, and tell what came out.

Not here: making it (llmzero_ray/tasks/sources), making the task of a search.yaml (commands.py).
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmzero_ray.config import SearchConfig
from llmzero_ray.config_changes import read_settings
from llmzero_ray.config_text import read_yaml
from llmzero_ray.errors import CapacityError, ConfigError
from llmzero_ray.tasks.task_yaml import TaskFile, load_task_file

if TYPE_CHECKING:
    from llmzero_ray.tasks import PreparedTask
    from llmzero_ray.tasks.making import Progress
    from llmzero_ray.tasks.sources.passes import Passes
    from llmzero_ray.tasks.sources.summary import Summary

_STEP = 0.05
"""Share of the whole after which a long part is told again."""


def is_task_file(arguments: argparse.Namespace) -> bool:
    """Whether CONFIG is a task.yaml, judged by its keys; False for a search.yaml.

    Raises:
        ConfigError: no such file, broken YAML, keys of both, or --ray for a search.yaml.
    """
    path = Path(arguments.config)
    keys = set(read_yaml(path))
    task, search = set(TaskFile.model_fields), set(SearchConfig.model_fields)
    of_task, of_search = keys & (task - search), keys & (search - task)
    if of_task and of_search:
        raise ConfigError(
            f"{path.name} holds keys of a task.yaml ({', '.join(sorted(of_task))}) and of a search.yaml "
            f"({', '.join(sorted(of_search))}). Write two files: prepare the task.yaml first, then name its "
            "dir as task.dir of the search.yaml."
        )
    if not of_task and arguments.ray:
        raise ConfigError(
            f"--ray reads the rows of a task.yaml on a cluster, and {path.name} is none: it has none of the "
            "keys prompt, dataset and reasoning_gym. Leave --ray out."
        )
    return bool(of_task)


def tell_task(task: PreparedTask, console: Console) -> int:
    """Say what the task of a search.yaml holds."""
    accuracy = "" if task.greedy_val_accuracy is None else f", base model {task.greedy_val_accuracy:.3f}"
    _say(console, f"task {task.name} in {task.directory}: {_sizes(task)}{accuracy}")
    return 0


def prepare_task(arguments: argparse.Namespace, console: Console) -> int:
    """Make the task of a task.yaml, or see that it is there; say what it holds."""
    from llmzero_ray.tasks.sources.preparing import prepare_source

    task = load_task_file(arguments.config, read_settings(arguments.set))
    with _passes(on_ray=arguments.ray) as passes:
        summary = prepare_source(task, progress=_telling(console), passes=passes)
    _tell(summary, console)
    return 0


@contextlib.contextmanager
def _passes(*, on_ray: bool) -> Iterator[Passes | None]:
    """Where rows are read: on the cluster that is there, or (None) on this machine."""
    if not on_ray:
        yield None
        return
    from llmzero_ray.tasks.sources.on_ray import RayPasses

    from .head import disconnecting, join_if_there

    with disconnecting():
        if not join_if_there():
            raise CapacityError(
                "--ray reads the rows on a Ray cluster, and there is none. Start one with `ray start "
                "--head`, name it in RAY_ADDRESS, or leave --ray out to read them on this machine."
            )
        yield RayPasses()


def _telling(console: Console) -> Progress:
    told = ("", -1.0)

    def progress(doing: str, share: float) -> None:
        nonlocal told
        part = doing.split(":")[0]
        if part != told[0] or share >= told[1] + _STEP:
            told = (part, share)
            _say(console, f"preparing the task: {doing} ({share:.0%})")

    return progress


def _tell(summary: Summary, console: Console) -> None:
    task = summary.task
    came = f"made from {summary.rows_read} rows" if summary.made else "was there already"
    _say(console, f"task {task.name} in {task.directory} {came}: {_sizes(task)}")
    tables = [summary.split_table(), summary.dropped_table(), summary.sample_table(), summary.gate_table()]
    for head, *lines in filter(None, tables):
        if not lines:
            continue
        table = Table(*head)
        for line in lines:
            table.add_row(*(Text(_printable(cell), overflow="fold") for cell in line))
        console.print(table)
    for warning in summary.warnings:
        _say(console, f"warning: {warning}")
    _say(console, f"to train on it, write into search.yaml: task: {{dir: {task.directory}}}")


def _sizes(task: PreparedTask) -> str:
    return f"{task.n_train} train, {task.n_val} val, {task.n_test} test"


def _say(console: Console, line: str) -> None:
    console.print(Text(_printable(line)), soft_wrap=True)


def _printable(text: str) -> str:
    """Rows may hold what would steer a terminal."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)
