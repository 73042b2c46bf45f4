"""From task.yaml to a prepared task: `prepare_source`.

Not here: the command line, how rows are chosen and written (filling.py), what is said of it (summary.py).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.making import Progress, silent
from llmzero_ray.tasks.manifest import FORMAT
from llmzero_ray.tasks.prepare import check_same_recipe, make_once, recipe_differences
from llmzero_ray.tasks.prepared import load_task
from llmzero_ray.tasks.sources import hub
from llmzero_ray.tasks.sources.base import Adapter
from llmzero_ray.tasks.sources.chemcot import ChemCoT
from llmzero_ray.tasks.sources.filling import Order, fill_from
from llmzero_ray.tasks.sources.gym import GymTask
from llmzero_ray.tasks.sources.own import OwnTask, reward_file
from llmzero_ray.tasks.sources.papersearchqa import PaperSearchQA
from llmzero_ray.tasks.sources.passes import Examined, LocalPasses, Passes
from llmzero_ray.tasks.sources.reading import SourceFile, find_files, sha256_of
from llmzero_ray.tasks.sources.ssmr import SSMR
from llmzero_ray.tasks.sources.summary import Summary, summarise
from llmzero_ray.tasks.sources.trial import try_reward
from llmzero_ray.tasks.sources.vetting import gold_responses, vet_reward
from llmzero_ray.tasks.sources.wildsci import WildSci
from llmzero_ray.tasks.task_yaml import TaskFile

_DATASETS: dict[str, Callable[..., Adapter]] = {
    "chemcot": ChemCoT,
    "papersearchqa": PaperSearchQA,
    "ssmr": SSMR,
    "wildsci": WildSci,
}


def prepare_source(task: TaskFile, *, progress: Progress = silent, passes: Passes | None = None) -> Summary:
    """The task in `task.dir`, made first if there is none, and what became of the data.

    `passes` says where the rows are read: `RayPasses()` on the cluster of a Ray session, None on this
    machine; both choose the same rows. A task that is there already must have the same recipe, or be
    written by hand.

    Raises:
        TaskError: files, columns, options or reward cannot be used, a reward of the user's own does not pass
            the gate, too few rows are left, or `task.dir` holds something else.
        StorageError: `task.dir` cannot be written; nothing is left there.
    """
    target, adapter = Path(task.dir).absolute(), adapter_of(task)
    adapter.check()
    given = [] if task.hub or isinstance(adapter, GymTask) else _files(task, adapter)
    recipe = _recipe(task, adapter, given)
    seen: list[Examined] = []

    def fill(part: Path) -> None:
        with tempfile.TemporaryDirectory(dir=part.parent, prefix=f"{part.name}-source-") as scratch:
            files = given or _fetched(task, adapter, Path(scratch), progress)
            order = Order(
                adapter=adapter,
                files=files,
                sizes=_sizes(task),
                recipe=recipe,
                reward_file=_reward_file(task),
                tokenizer=task.tokenizer,
                max_prompt_tokens=task.max_prompt_tokens,
            )
            seen.append(fill_from(part, order, passes or LocalPasses(), progress))
            if task.reward is not None and task.reward.function is not None:
                vet_reward(part, task.reward, progress)
            progress("done", 1.0)

    make_once(target, fill, progress)
    check_same_recipe(target, lambda found: recipe_differences(found, recipe))
    prepared = load_task(target)
    trial = try_reward(prepared, gold_responses(target, adapter))
    return summarise(prepared, _sizes(task), trial, seen[0] if seen else None)


def adapter_of(task: TaskFile) -> Adapter:
    """What reads the rows of a task.

    Raises:
        TaskError: its options are unknown or out of bounds.
    """
    if task.reasoning_gym is not None:
        return GymTask(task.reasoning_gym, task.options, task.seed)
    if task.dataset is None:
        return OwnTask(task)
    try:
        return _DATASETS[task.dataset](**task.options)
    except TypeError as error:
        raise TaskError(f"{task.dataset}: options are {task.options}: {error}") from error


def _sizes(task: TaskFile) -> dict[str, int]:
    return {"train": task.n_train, "val": task.n_val, "test": task.n_test}


def _reward_file(task: TaskFile) -> Path | None:
    return reward_file(task.reward) if task.reward is not None and task.reward.function is not None else None


def _files(task: TaskFile, adapter: Adapter) -> list[SourceFile]:
    """The files that task.yaml names; those of a known data set tell their split by their names."""
    found: dict[str, SourceFile] = {}
    if task.files:
        for file in find_files(task.files, adapter.wants):
            home = hub.home_of(file.name.replace("/", "_").replace(".", "_")) if task.dataset else ""
            found[file.path] = replace(file, home=home)
    for places, home in ((task.val_files, "val"), (task.test_files, "test")):
        if places:
            found |= {file.path: file for file in find_files(places, adapter.wants, home)}
    return _unbound_if_all_bound(sorted(found.values(), key=lambda file: file.name))


def _unbound_if_all_bound(files: Sequence[SourceFile]) -> list[SourceFile]:
    """A data set that was published as a test set alone gives training rows as well."""
    bound = all(file.home for file in files)
    return [replace(file, home="") for file in files] if bound else list(files)


def _fetched(task: TaskFile, adapter: Adapter, scratch: Path, progress: Progress) -> list[SourceFile]:
    """Files that are made or downloaded when a task is made."""
    if isinstance(adapter, GymTask):
        progress(f"generating: {adapter.name}", 0.0)
        return adapter.generate(scratch, _sizes(task))
    progress(f"downloading: {task.hub}", 0.0)
    files = [
        file for file in hub.fetch(str(task.hub), task.hub_revision, scratch) if adapter.wants(file.name)
    ]
    return _unbound_if_all_bound(files)


def _recipe(task: TaskFile, adapter: Adapter, files: Sequence[SourceFile]) -> dict[str, Any]:
    """Everything that decides the content, flat and plain."""
    recipe: dict[str, Any] = {"format": FORMAT, "adapter": adapter.name, "adapter_version": adapter.version}
    recipe |= {f"n_{split}": size for split, size in _sizes(task).items()}
    recipe |= {f"adapter.{key}": value for key, value in adapter.options().items()}
    if task.tokenizer is not None:
        recipe["max_prompt_tokens"] = task.max_prompt_tokens
    if task.hub is not None:
        recipe |= {"hub": task.hub, "hub_revision": task.hub_revision}
    if (reward := _reward_file(task)) is not None and reward.is_file():
        recipe["reward_sha256"] = sha256_of(str(reward))
    return recipe | {f"file.{file.home or 'any'}.{file.name}": sha256_of(file.path) for file in files}
