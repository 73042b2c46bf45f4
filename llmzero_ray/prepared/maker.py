"""Calls into the extension that makes tasks, through its entry points (llmzero_ray.tasks).

Not here: prepared tasks (task.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmzero_ray.utils.plugins import extension

if TYPE_CHECKING:
    from rich.console import Console

    from llmzero_ray.config import SearchConfig
    from llmzero_ray.prepared.task import PreparedTask

GROUP = "llmzero_ray.tasks"


def task_of(config: SearchConfig, say: Callable[[str], None]) -> PreparedTask:
    """The task of a search.yaml, made from its family if it is not there yet.

    Args:
        config: the search's settings.
        say: called with one line for each part of the work.

    Raises:
        TaskError: the task cannot be used, or there is neither a task nor a family.
        ConfigError: the extension is not installed. The functions below raise this too.
    """
    task: PreparedTask = extension(GROUP, "of_search")(config, say)
    return task


def is_task_file(path: Path) -> bool:
    """Whether a file is a task.yaml, judged by its keys; False for a search.yaml."""
    found: bool = extension(GROUP, "is_task_file")(path)
    return found


def prepare_task_file(path: str | Path, settings: Mapping[str, Any], **options: Any) -> Any:
    """Make the task of a task.yaml; returns a summary of its data."""
    return extension(GROUP, "of_file")(path, settings, **options)


def config_of_folder(
    settings: list[str], console: Console, *, folder: str, sentence: str, **options: Any
) -> SearchConfig:
    """The configuration of a search that begins with a folder of data and a sentence, its task prepared."""
    config: SearchConfig = extension(GROUP, "of_folder")(
        settings, console, folder=folder, sentence=sentence, **options
    )
    return config
