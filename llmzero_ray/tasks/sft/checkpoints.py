"""Full checkpoints of a training: the Trainer's own, completed by a manifest.

    checkpoints/TURN/checkpoint-40/    weights, optimizer, random states, the Trainer's state, manifest.json

A checkpoint exists if its manifest does and every file matches it, because a killed writer (the Trainer's or
DeepSpeed's) leaves half a checkpoint under its final name. Each command has its own directory (its turn), so
that a worker that outlives a killed command never overwrites its successor's files. Ray Train's own
checkpoints are not used: it lists them in a file that is overwritten in place, so a kill at the wrong time
loses them all.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from llmzero_ray.errors import StorageError
from llmzero_ray.storage.manifests import problem_of, write_manifest
from llmzero_ray.utils.failpoints import reach
from llmzero_ray.utils.files import storage_errors

logger = logging.getLogger(__name__)
CHECKPOINTS = "checkpoints"
_PREFIX = "checkpoint-"
"""Prefix of a checkpoint's name in transformers, before the step."""


def newest(output: Path) -> Path | None:
    """Newest usable checkpoint below an output directory, or None. Damaged ones are skipped."""
    for path in sorted(_all(output), key=step_of, reverse=True):
        problem = problem_of(path)
        if problem is None:
            return path
        logger.warning("checkpoint %s is not used: %s", path, problem)
    return None


def step_of(checkpoint: Path) -> int:
    """Training steps done when the checkpoint was written."""
    return int(checkpoint.name.removeprefix(_PREFIX))


def complete(output: Path, checkpoint: Path, *, kept: int) -> None:
    """Write a checkpoint's manifest once all workers have written their parts, and remove all other ones but
    for the `kept` newest up to its step: later ones belong to a training that could not be resumed.

    Raises:
        StorageError: it cannot be written.
    """
    reach("checkpoint.saved")
    step = step_of(checkpoint)
    write_manifest(checkpoint, {"step": step})
    ranked = sorted(_all(output), key=lambda path: (step_of(path) <= step, step_of(path), path == checkpoint))
    for old in ranked[:-kept]:
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def checkpoint_errors(target: Path) -> Iterator[None]:
    """Context manager that turns errors of the system and of torch's writer into StorageError.

    Raises:
        StorageError: in their place.
    """
    try:
        with storage_errors(target):
            yield
    except RuntimeError as error:
        # torch's writer does not say which error of the system it met.
        if "PytorchStreamWriter" not in str(error) and "inline_container" not in str(error):
            raise
        free = shutil.disk_usage(target.parent).free / 2**30
        raise StorageError(
            f"{target}: the checkpoint cannot be written ({str(error).splitlines()[0]}); {free:.1f} GiB are "
            "free there. Free space, then run the same command again."
        ) from error


def _all(output: Path) -> list[Path]:
    return [path for path in (output / CHECKPOINTS).glob(f"*/{_PREFIX}*") if path.name[11:].isdigit()]
