"""All private names of Ray Tune that this package relies on.

Ray offers no public way to start a trial from another trial's checkpoint, to save the experiment's state now,
or to give a restored trial results that the state did not hold. Each use of a private name is a function
here, and `check_ray` rejects a Ray in which one is missing. Read this file first when Ray changes.
"""

from __future__ import annotations

import importlib
import inspect
import posixpath
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import ray

from llmzero_ray.errors import EngineVersionError, SearchError

RAY_VERSIONS: Final = ("2.60",)
"""Minor versions with which the contract tests pass."""

RELIED_ON: Final[dict[str, tuple[str, ...]]] = {
    "ray.train._internal.session": ("_TrainingResult", "get_session"),
    "ray.train._internal.storage": (
        "StorageContext.experiment_fs_path",
        "StorageContext.trial_fs_path",
        "StorageContext._make_checkpoint_dir_name",
    ),
    "ray.train._internal.checkpoint_manager": (
        "_CheckpointManager.latest_checkpoint_result",
        "_CheckpointManager.best_checkpoint_results",
        "_CheckpointManager.checkpoint_config",
    ),
    "ray.tune.experiment.trial": (
        "Trial.latest_checkpoint_result",
        "Trial.on_checkpoint",
        "Trial.update_last_result",
        "Trial.local_path",
        "Trial.set_config",
    ),
    "ray.tune.execution.tune_controller": (
        "TrialRunnerWrapper",
        "TuneController.stop_trial",
    ),
    "ray.tune.execution.experiment_state": ("_ExperimentCheckpointManager.sync_up_experiment_state",),
    "ray.tune.search": ("Searcher.FINISHED",),
    "ray.tune.search.sample": ("Categorical", "Domain", "Float", "Integer", "Quantized"),
}
"""Module -> names, or Class.name for attributes."""

_SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "ray.tune.experiment.trial:Trial": (
        "self._restore_checkpoint_result",
        "self.evaluated_params",
        "self.run_metadata.error_filename",
        "current_checkpoint_index",
    ),
    "ray.tune.execution.tune_controller:TuneController": ("self._checkpoint_manager", "self._callbacks"),
    "ray.tune.callback:CallbackList": ("self._callbacks",),
    "ray.tune.execution.tune_controller:TrialRunnerWrapper": ("self._tune_controller",),
    "ray.tune.execution.experiment_state:_ExperimentCheckpointManager": ("self._should_force_sync_up",),
}
"""Class -> texts that its source must contain, for attributes that only instances have. The index is in the
source of a trial's storage."""


@cache
def check_ray() -> None:
    """Reject an untested version of Ray.

    Raises:
        EngineVersionError: another version, or a name that is relied on is not there.
    """
    _check_version(ray.__version__)
    missing = [
        f"{module}.{name}" for module, names in RELIED_ON.items() for name in names if not _has(module, name)
    ]
    if missing:
        raise EngineVersionError(
            f"Ray {ray.__version__} lacks {', '.join(missing)}, which llmzero_ray.tune relies on; "
            f"install ray[tune]=={RAY_VERSIONS[-1]}.*."
        )


def _check_version(version: str) -> None:
    if ".".join(version.split(".")[:2]) not in RAY_VERSIONS:
        raise EngineVersionError(
            f"Ray {version} is installed; llmzero_ray.tune relies on internals of Ray Tune and was tested "
            f"with {', '.join(f'{known}.*' for known in RAY_VERSIONS)}. Install "
            f"'ray[tune]=={RAY_VERSIONS[-1]}.*'."
        )


def _has(module: str, name: str) -> bool:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return False
    return True


def missing_attributes() -> list[str]:
    """Attributes of instances that are missing in Ray's source. Empty if all are there."""
    found = []
    for place, names in _SOURCES.items():
        module, _, cls = place.partition(":")
        source = inspect.getsource(importlib.import_module(module))
        if cls == "Trial":
            source += inspect.getsource(importlib.import_module("ray.train._internal.storage"))
        found += [f"{place}: {name}" for name in names if name not in source]
    return found


# --- trials and their checkpoints ---------------------------------------------------------------------------


def experiment_dir(trial: Any) -> str:
    """Directory of the experiment on its storage, in the storage's own notation."""
    return str(trial.storage.experiment_fs_path)


def relative_checkpoint(trial: Any, path: str) -> str:
    """A checkpoint's path relative to its experiment's directory, so that the directory can be moved."""
    return posixpath.relpath(path, experiment_dir(trial))


def reported_checkpoint(trial: Any, result: Mapping[str, Any]) -> str | None:
    """Path, relative to the experiment, of the checkpoint reported with a result. None if there was none."""
    name = result.get("checkpoint_dir_name")
    return None if not name else relative_checkpoint(trial, f"{trial.storage.trial_fs_path}/{name}")


def saved_checkpoints(trial: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """(path relative to the experiment, metrics) of each checkpoint that Ray has on record for a trial."""
    results = trial.run_metadata.checkpoint_manager.best_checkpoint_results
    return [(relative_checkpoint(trial, found.checkpoint.path), found.metrics or {}) for found in results]


def latest_checkpoint(trial: Any) -> tuple[str, Mapping[str, Any]] | None:
    """(path relative to the experiment, metrics) of the trial's own newest checkpoint on Ray's record."""
    found = trial.run_metadata.checkpoint_manager.latest_checkpoint_result
    if found is None or found.checkpoint is None:
        return None
    return relative_checkpoint(trial, found.checkpoint.path), found.metrics or {}


def checkpoint_limit(trial: Any) -> int | None:
    """`num_to_keep`: how many checkpoints of a trial Ray keeps. None if all."""
    limit = trial.run_metadata.checkpoint_manager.checkpoint_config.num_to_keep
    return None if limit is None else int(limit)


def error_text(trial: Any) -> str | None:
    """The traceback of a trial's latest error, or None if there is no file.

    It is read where the driver wrote it, because Ray copies the file to the storage later.
    """
    name = trial.run_metadata.error_filename
    path = None if name is None else Path(trial.local_path, name)
    return path.read_text(errors="replace") if path is not None and path.is_file() else None


def start_from(trial: Any, path: str, metrics: Mapping[str, Any]) -> None:
    """Let a trial without its own checkpoint start from `path`.

    It sets the attribute behind `tune.run(restore=...)`, which Ray reads until the trial has saved its own
    checkpoint. The trial continues counting from `metrics`, or from 1 if they are empty.
    """
    trial._restore_checkpoint_result = _result(trial, path, metrics)


def add_checkpoint(trial: Any, path: str, metrics: Mapping[str, Any]) -> None:
    """Register a checkpoint of this trial that Ray's saved state lacks.

    The trial's next checkpoint is numbered after it.
    """
    trial.on_checkpoint(_result(trial, path, metrics))
    number = posixpath.basename(path).rpartition("_")[2]
    if number.isdigit():
        trial.storage.current_checkpoint_index = max(int(number), trial.storage.current_checkpoint_index)


def _result(trial: Any, path: str, metrics: Mapping[str, Any]) -> Any:
    from ray.train._internal.session import _TrainingResult
    from ray.tune import Checkpoint

    place = posixpath.normpath(posixpath.join(experiment_dir(trial), path))
    return _TrainingResult(
        checkpoint=Checkpoint(place, trial.storage.storage_filesystem), metrics=dict(metrics)
    )


def get_checkpoint() -> Any:
    """The `ray.tune.Checkpoint` that this trial continues from, or None if it starts from scratch.

    After a restart this is the trial's own newest checkpoint, otherwise the checkpoint of another trial that
    its phase resumes from. A trainable that loads its step counter with its weights repeats no step:

        def train(config):
            checkpoint = get_checkpoint()
            model, step = load(checkpoint) if checkpoint else (new_model(), 0)
            while True:  # the search ends the phase
                step += 1
                ...
                tune.report({"accuracy": ...}, checkpoint=tune.Checkpoint.from_directory(folder))

    Raises:
        SearchError: it is called outside of a trial of Ray Tune.
    """
    from ray import tune
    from ray.train._internal.session import get_session

    if get_session() is None:
        raise SearchError(
            "get_checkpoint() was called outside of a trial; call it inside the function that Tuner runs."
        )
    return tune.get_checkpoint()


# --- the controller -----------------------------------------------------------------------------------------


def save_soon(controller: Any) -> None:
    """Make Ray save the experiment's state at the end of this controller step, whatever the save period."""
    _whole(controller)._checkpoint_manager._should_force_sync_up = True


def at_end(controller: Any, call: Callable[[], None]) -> None:
    """Register a callback for the end of the experiment, also by an error or Ctrl-C."""
    from ray.tune import Callback

    class AtEnd(Callback):
        def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
            call()

    _whole(controller)._callbacks._callbacks.append(AtEnd())


def _whole(controller: Any) -> Any:
    """The controller behind the wrapper that schedulers are given."""
    return vars(controller).get("_tune_controller", controller)
