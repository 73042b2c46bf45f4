"""Opens the task of a search.yaml or task.yaml, after making it if it does not exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmzero_ray.config import SearchConfig, presets
from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.errors import ConfigError, StorageError
from llmzero_ray.prepared.directory import Progress, no_progress, progress_lines
from llmzero_ray.prepared.task import DESCRIPTION, PreparedTask
from llmzero_ray.tasks.task_yaml import TaskFile, load_task_file
from llmzero_ray.utils.files import replace_file

if TYPE_CHECKING:
    from llmzero_ray.tasks.sources.summary import Summary


def task_of(config: SearchConfig, say: Callable[[str], None]) -> PreparedTask:
    """Task of a search.yaml, made from its family if it does not exist. The callback `say` receives a line
    for each part of that work, and every 15 s.

    Raises:
        TaskError: it exists but cannot be used, or there is neither a task nor a family.
    """
    from llmzero_ray.tasks.prepare import prepare

    task = config.task
    with progress_lines(say) as progress:
        return prepare(
            dir=task.dir,
            family=task.family,
            n_train=task.n_train,
            n_val=task.n_val,
            n_test=task.n_test,
            seed=task.seed,
            make_model=config.model.path is None,
            progress=progress,
        )


def is_task_file(path: Path, *, on_ray: bool = False) -> bool:
    """Whether a file is a task.yaml, judged by its keys; False for a search.yaml.

    Raises:
        ConfigError: no such file, broken YAML, keys of both, or --ray for a search.yaml.
    """
    keys = set(read_yaml(path))
    task, search = set(TaskFile.model_fields), set(SearchConfig.model_fields)
    of_task, of_search = keys & (task - search), keys & (search - task)
    if of_task and of_search:
        raise ConfigError(
            f"{path.name} holds keys of a task.yaml ({', '.join(sorted(of_task))}) and of a search.yaml "
            f"({', '.join(sorted(of_search))}). Write two files: prepare the task.yaml first, then name its "
            "dir as task.dir of the search.yaml."
        )
    if not of_task and on_ray:
        raise ConfigError(
            f"--ray reads the rows of a task.yaml on a cluster, and {path.name} is none: it has none of the "
            "keys prompt, dataset and reasoning_gym. Leave --ray out."
        )
    return bool(of_task)


def prepare_task_file(
    path: str | Path,
    settings: Mapping[str, Any],
    *,
    progress: Progress = no_progress,
    on_ray: bool = False,
) -> Summary:
    """Summary of the task of a task.yaml, or of a shipped task.yaml by its name.

    The task is made if it does not exist. `settings` replace keys of the file. `on_ray` is as in
    `prepare_source`.

    Raises:
        ConfigError: the file is wrong.
        TaskError: the task cannot be made, or another one exists there.
        StorageError: it cannot be written.
    """
    from llmzero_ray.tasks.sources.prepare import prepare_source

    path = presets.path_of(str(path))
    task = load_task_file(str(path), settings)
    summary = prepare_source(task, progress=progress, on_ray=on_ray)
    _copy_description(path.absolute().parent / DESCRIPTION, Path(task.dir) / DESCRIPTION)
    return summary


def _copy_description(beside: Path, there: Path) -> None:
    """Copy the description next to task.yaml into the task, where a search's agents read it."""
    if beside != there and beside.is_file():
        try:
            text = beside.read_text("utf-8", "replace")
        except OSError as error:
            raise StorageError(
                f"{beside}: cannot be read ({error.strerror or error}). Make it readable, or remove it: the "
                "agents of a search then know the task by its name."
            ) from error
        replace_file(there, text)
