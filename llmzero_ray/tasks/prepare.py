"""Make a task once: a directory that appears whole, or not at all.

It is built beside its place and renamed. A second call finds it and returns at once; of two calls at the same
time one makes it and the other waits. Not here: what goes into it (making.py), checking it (prepared.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmzero_ray.errors import StorageError, TaskError
from llmzero_ray.tasks.catalogue import family_named
from llmzero_ray.tasks.making import Progress, Recipe, fill, silent
from llmzero_ray.tasks.manifest import MANIFEST, read_manifest
from llmzero_ray.tasks.prepared import PreparedTask, load_task


def prepare(
    *,
    dir: str | Path,  # noqa: A002  named as in search.yaml
    family: str | None,
    n_train: int = 4096,
    n_val: int = 512,
    n_test: int = 1024,
    seed: int = 0,
    make_model: bool = True,
    progress: Progress = silent,
) -> PreparedTask:
    """The task in `dir`, made first if there is none: sizes in problems, a tiny base model if `make_model`.

    A task whose manifest was written by hand is opened as it is, whatever the other arguments say; so is any
    task when `family` is None.

    Raises:
        TaskError: an argument is out of bounds, `dir` holds something else, a library is missing, or what is
            there
            does not pass `load_task`.
        StorageError: `dir` cannot be written or the disk is full; nothing is left there.
    """
    target = Path(dir).absolute()
    if family is None:
        return load_task(target)
    sizes = {"train": n_train, "val": n_val, "test": n_test}
    recipe = Recipe(family=family_named(family), sizes=sizes, seed=seed, make_model=make_model)
    recipe.check_bounds()
    make_once(target, lambda part: fill(part, recipe, progress), progress)
    check_same_recipe(target, lambda found: _differences(found, recipe))
    return load_task(target)


def check_same_recipe(target: Path, differences_from: Callable[[Mapping[str, Any]], list[str]]) -> None:
    """Return quietly when the task in `target` was written by hand, or its recipe shows no difference.

    Raises:
        TaskError: the differences.
    """
    found = read_manifest(target).recipe
    if found is None:
        return
    differences = differences_from(found)
    if differences:
        raise TaskError(
            f"task directory {target} holds a task of another recipe: {'; '.join(differences)}. Choose "
            "another task.dir, or delete that directory to make it again"
        )


def _differences(found: Mapping[str, Any], recipe: Recipe) -> list[str]:
    """What `recipe` asks for and `found` does not say; a model that nobody asked for does no harm."""
    lacks_model = recipe.make_model and not any(key.startswith("model.") for key in found)
    wanted = replace(recipe, make_model=recipe.make_model and not lacks_model).as_dict()
    return [
        *recipe_differences(found, wanted),
        *(["it has no tiny model, one is wanted"] if lacks_model else []),
    ]


def recipe_differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """What `wanted` says and `found` does not, in words."""
    return [
        f"{key} is {found.get(key)!r} there, {value!r} wanted"
        for key, value in wanted.items()
        if found.get(key) != value
    ]


def make_once(target: Path, fill_in: Callable[[Path], None], progress: Progress) -> None:
    """Let `fill_in` write the task into an empty directory, and put that in place of `target`, unless a task
    is there already.

    Raises:
        TaskError: `target` holds something else, or `fill_in` refuses.
        StorageError: it cannot be written; nothing is left there.
    """
    if (target / MANIFEST).exists():
        return
    try:
        _make_in_part(target, fill_in, progress)
    except OSError as error:
        raise StorageError(
            f"task directory {target} cannot be written: {error.strerror or error}; nothing was kept "
            "there. Free space, or set task.dir to a directory that can be written"
        ) from error


def _make_in_part(target: Path, fill_in: Callable[[Path], None], progress: Progress) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(target, progress):
        if (target / MANIFEST).exists():
            return
        _check_vacant(target)
        part = target.parent / f".{target.name}.part-{uuid.uuid4().hex[:8]}"
        try:
            part.mkdir()
            fill_in(part)
            _flush(part)
            _put_in_place(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _check_vacant(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise TaskError(f"task directory {target} is a file; choose another task.dir")
    if target.exists() and (held := sorted(entry.name for entry in target.iterdir())):
        raise TaskError(
            f"task directory {target} holds {', '.join(held[:8])}, but no {MANIFEST}: not made by prepare. "
            "Choose another task.dir, or empty it"
        )


def _flush(directory: Path) -> None:
    """Force everything to the disk: the rename must not survive a power cut that its content does not."""
    for path in [*directory.rglob("*"), directory]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _put_in_place(part: Path, target: Path) -> None:
    try:
        part.rename(target)
    except OSError:
        # Where locks do not work another process may have been first; then its task is the task.
        if not (target / MANIFEST).exists():
            raise


@contextlib.contextmanager
def _only_one(target: Path, progress: Progress) -> Iterator[None]:
    """Let one process at a time make `target`, and remove what a killed one left behind.

    The lock ends with its process. Where the file system has no locks, the rename alone decides who was
    first.
    """
    with (target.parent / f".{target.name}.lock").open("w") as stream:
        if _lock(stream.fileno(), progress):
            for left in target.parent.glob(f".{target.name}.part-*"):
                shutil.rmtree(left, ignore_errors=True)
        yield


def _lock(descriptor: int, progress: Progress) -> bool:
    """Wait for the lock; False where there are none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        progress("waiting for another process that makes the same task", 0.0)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return False
    return True
