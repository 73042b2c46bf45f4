"""Fresh validation items of a task: rows that none of its splits uses, to confirm the winners of a search.

A procedural family generates as many as requested, and its other splits keep every row. For other tasks the
manifest names a file (`splits.confirm`), which `prepare` writes if the data set has rows left.
"""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.families import family_named
from llmzero_ray.prepared.manifest import Manifest, read_manifest
from llmzero_ray.prepared.splits import CONFIRM, SPLITS, fresh_problems
from llmzero_ray.prepared.task import PreparedTask, check_unchanged
from llmzero_ray.prepared.verl_rows import check_between, check_split, to_rows, write_split
from llmzero_ray.utils.files import storage_error


def write_confirmation(task: PreparedTask, n: int, target: Path) -> int:
    """Write rows that are in no split of the task to `target`, and return their number.

    A family generates `n` rows; other tasks give all rows of `splits.confirm`. An existing file is kept,
    because it was written for the same search.

    Raises:
        TaskError: the task has no spare rows, or rows that another split has.
        StorageError: `target` cannot be written.
    """
    if target.exists():
        return check_split(target, CONFIRM).n_rows
    directory, manifest = Path(task.directory), check_spare_rows(task)
    part = target.parent / f".confirm-{uuid.uuid4().hex[:8]}"
    try:
        part.mkdir(parents=True)
        if manifest.splits.confirm is not None:
            named = directory / manifest.splits.confirm.file
            check_unchanged(named, CONFIRM, manifest.splits.confirm)
            shutil.copyfile(named, part / f"{CONFIRM}.parquet")
        else:
            _generate(manifest, n, part)
        written = part / f"{CONFIRM}.parquet"
        facts = {split: check_split(Path(getattr(task, split)), split) for split in SPLITS}
        facts[CONFIRM] = check_split(written, CONFIRM)
        check_between(facts)
        os.replace(written, target)
    except OSError as error:
        raise storage_error(target, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return facts[CONFIRM].n_rows


def check_spare_rows(task: PreparedTask) -> Manifest:
    """Check that the winners of a search on this task can be confirmed, and return the task's manifest.

    Raises:
        TaskError: it has no spare rows; the message says why and what to do.
    """
    manifest = read_manifest(Path(task.directory))
    spec = manifest.recipe
    if manifest.splits.confirm is not None:
        return manifest
    if manifest.family is None or spec is None:
        raise TaskError(
            f"confirm.k: the task in {task.directory} has no spare rows: its three splits hold all that is "
            "known of it, or all that could be one. Prepare it again in another directory with n_confirm > 0 "
            "and more data or a lower n_train, name a parquet file of further VeRL rows as splits.confirm in "
            "its manifest.json, or set confirm.k=0."
        )
    family = family_named(manifest.family)
    if spec.get("family_version") != family.version:
        raise TaskError(
            f"confirm.k: the task in {task.directory} was made by version {spec.get('family_version')} of "
            f"{family.name}, this is version {family.version}: its rows cannot be told apart from fresh "
            "ones. Make the task again, or set confirm.k=0."
        )
    return manifest


def _generate(manifest: Manifest, n: int, directory: Path) -> None:
    spec = manifest.recipe
    assert manifest.family is not None
    assert spec is not None
    family = family_named(manifest.family)
    sizes = {split: int(spec[f"n_{split}"]) for split in SPLITS}
    problems = fresh_problems(family, sizes, int(spec["seed"]), n)
    write_split(directory, CONFIRM, to_rows(family, CONFIRM, problems))
