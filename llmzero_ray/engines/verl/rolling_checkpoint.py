"""Directories of a running phase's rolling full checkpoint: which one counts, and for which phase.

    <rolling_dir>/step_000010.full/    worker/          one set of files per rank, as VeRL saves them
                                       loader.pt        data position and random states of the trainer
                                       phase.json       what the phase has reported so far (phase.py)
                                       manifest.json    checksums, and which phase it belongs to; written last

A checkpoint counts once its manifest exists; then the older one is deleted. The runner removes the last one
once the outcome of the phase is on disk.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmzero_ray.errors import StorageError
from llmzero_ray.records import PhaseSpec, to_json
from llmzero_ray.storage.manifests import NAME, problem_of, read_manifest, write_manifest

logger = logging.getLogger(__name__)

STATE = "phase.json"


@dataclass(frozen=True, kw_only=True)
class Restorable:
    """A complete full checkpoint that fits the phase."""

    path: str
    step: int
    state: Mapping[str, Any]
    """Contents of phase.json."""


def directory_of(rolling_dir: str, step: int) -> Path:
    """Directory of the full checkpoint after `step`."""
    return Path(rolling_dir) / f"step_{step:06d}.full"


def identity(spec: PhaseSpec, n_gpus: int) -> dict[str, Any]:
    """Values that a full checkpoint and a phase continuing from it must have in common, as JSON."""
    found: dict[str, Any] = json.loads(
        json.dumps(
            {
                "search": spec.search,
                "node": spec.node,
                "resume_from": to_json(spec.resume_from),
                "n_steps": spec.n_steps,
                "seed": spec.seed,
                "save_freq": spec.save_freq,
                "test_freq": spec.test_freq,
                "hyperparameters": to_json(spec.hyperparameters),
                "ranks": n_gpus,
            }
        )
    )
    return found


def commit(path: Path, spec: PhaseSpec, n_gpus: int) -> None:
    """Make this complete directory the valid checkpoint, and delete all others.

    A storage error is only logged: the older checkpoint stays valid and the phase continues.
    """
    try:
        write_manifest(path, {"phase": identity(spec, n_gpus)})
    except StorageError as error:
        logger.warning("node=%d the full checkpoint %s was not completed: %s", spec.node, path.name, error)
        return
    for other in path.parent.glob("step_*.full"):
        if other != path:
            _remove(other)


def newest(spec: PhaseSpec, n_gpus: int) -> Restorable | None:
    """Newest complete, undamaged full checkpoint of this phase, or None if there is none. Rejected ones are
    logged with the reason."""
    if not spec.restore or spec.rolling_dir is None:
        return None
    for path in sorted(Path(spec.rolling_dir).glob("step_*.full"), reverse=True):
        problem = problem_of(path) or _foreign(path, identity(spec, n_gpus))
        if problem is not None:
            logger.warning("node=%d full checkpoint %s is not used: %s", spec.node, path, problem)
            continue
        step = int(path.name.removeprefix("step_").removesuffix(".full"))
        logger.info("node=%d continues from its full checkpoint after step %d", spec.node, step)
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        return Restorable(path=str(path), step=step, state=state)
    return None


def _remove(path: Path) -> None:
    """Remove a checkpoint, its manifest first, so that a half-deleted one is not valid."""
    with contextlib.suppress(OSError):
        (path / NAME).unlink(missing_ok=True)
        shutil.rmtree(path)


def _foreign(path: Path, wanted: Mapping[str, Any]) -> str | None:
    found = (read_manifest(path) or {}).get("phase")
    if not isinstance(found, dict):
        return f"its {NAME} names no phase"
    other = [key for key in wanted if found.get(key) != wanted[key]]
    return f"it belongs to another phase ({', '.join(other)} differ)" if other else None
