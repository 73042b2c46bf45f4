"""Full checkpoints of a training: weights, optimizer and position, from which it goes on exactly.

A directory `step_000040` exists as a checkpoint when its manifest does and every file matches it. All
workers write into it; the first one completes it. Ray Train's own checkpoints are not used: it lists them in
a file that is overwritten in place, so that a kill at the wrong moment loses them all.

Not here: when one is written (course.py), the result (models.py).
"""

from __future__ import annotations

import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmzero_ray.errors import StorageError
from llmzero_ray.failpoints import reach
from llmzero_ray.files import storage_error
from llmzero_ray.manifests import problem_of, write_manifest

logger = logging.getLogger(__name__)
_NAME = re.compile(r"step_(\d{6,})")
_TAG = "state"
"""DeepSpeed's directory inside one."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which part of the weights a worker writes, and whether only trainable ones are kept."""

    rank: int
    trainable_only: bool


def newest(directory: Path) -> Path | None:
    """The newest checkpoint that can be used; None: there is none. Damaged ones are passed over."""
    for path in sorted(_all(directory), key=step_of, reverse=True):
        problem = problem_of(path)
        if problem is None:
            return path
        logger.warning("checkpoint %s is not used: %s", path, problem)
    return None


def step_of(checkpoint: Path) -> int:
    """Steps that were done when it was written."""
    return int(checkpoint.name.removeprefix("step_"))


def save(engine: Any, directory: Path, step: int, *, state: dict[str, Any], place: Place, kept: int) -> None:
    """Write the checkpoint of a step and remove the old ones but for the `kept` newest; all workers must call
    this. `state` is given back by `restore`.

    Raises:
        StorageError: it cannot be written; those that are there stay.
    """
    import torch.distributed as dist

    part, target = directory / f".step_{step:06d}.part", directory / f"step_{step:06d}"
    try:
        if place.rank == 0:
            for left in (*directory.glob(".*.part"), target):
                shutil.rmtree(left, ignore_errors=True)
            part.mkdir(parents=True)
        dist.barrier()
        engine.save_checkpoint(
            str(part),
            tag=_TAG,
            client_state=state,
            save_latest=False,
            exclude_frozen_parameters=place.trainable_only,
        )
        dist.barrier()
        if place.rank == 0:
            reach("checkpoint.saved")
            write_manifest(part, {"step": step})
            part.rename(target)
            for old in sorted(_all(directory), key=step_of)[:-kept]:
                shutil.rmtree(old, ignore_errors=True)
        dist.barrier()
    except StorageError:
        raise
    except OSError as error:
        raise storage_error(target, error) from error
    except RuntimeError as error:
        # torch's writer does not say which error of the system it met.
        raise _torch_error(target, error) from error


def restore(engine: Any, checkpoint: Path, *, place: Place) -> dict[str, Any]:
    """Put a checkpoint into the engine; the `state` it was written with. All workers must call this.

    Raises:
        StorageError: DeepSpeed cannot read it.
    """
    loaded, state = engine.load_checkpoint(
        str(checkpoint), tag=_TAG, load_module_strict=not place.trainable_only
    )
    if loaded is None:
        raise StorageError(
            f"checkpoint {checkpoint} cannot be read by DeepSpeed; remove that directory to go on from an "
            "older one, or from the base model"
        )
    return dict(state)


def _all(directory: Path) -> list[Path]:
    return [path for path in directory.glob("step_*") if _NAME.fullmatch(path.name)]


def _torch_error(target: Path, error: RuntimeError) -> StorageError:
    free = shutil.disk_usage(target.parent).free / 2**30
    return StorageError(
        f"{target}: the checkpoint cannot be written ({str(error).splitlines()[0]}); {free:.1f} GiB are free "
        "there. Free space, then run the same command again."
    )
