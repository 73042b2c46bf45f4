"""Saves the complete state of a running phase to a directory, and restores it: the workers' state and the
trainer's.

It is written between two steps, when nothing is in flight. The restored parts are compared with the saved
ones before training. vLLM, agent loops and reward workers hold no state: every request carries a seed derived
from its step and position. rolling_checkpoint.py decides which directory counts.

Full checkpoints are in the search's storage, to which other processes and machines can write. VeRL unpickles
them, and unpickling can run any code in a file; `loading_data_alone` allows only data.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager

from llmzero_ray.engines.verl.config_check import check_restored, refuse
from llmzero_ray.engines.verl.phase import PhaseState, Progress
from llmzero_ray.engines.verl.rolling_checkpoint import STATE, directory_of
from llmzero_ray.hyperparameters.verl_keys import USE_KL_IN_REWARD

_WORKERS, _LOADER = "worker", "loader.pt"


def save_if_due(trainer: Any, phase: PhaseState, step: int) -> None:
    """Write the full checkpoint of `phase` every `rolling_freq` steps, without committing it."""
    spec = phase.spec
    ends = step >= trainer.total_training_steps or phase.stop_reason is not None
    if spec.rolling_dir is None or not spec.rolling_freq or step % spec.rolling_freq or step == 0 or ends:
        return
    phase.stage("rolling_save")
    path = directory_of(spec.rolling_dir, step)
    shutil.rmtree(path, ignore_errors=True)  # remains of an attempt that was lost while writing
    path.mkdir(parents=True)
    digests = trainer.actor_rollout_wg.save_full(str(path / _WORKERS))
    own = {"loader": trainer.train_dataloader.state_dict(), "random": BaseCheckpointManager.get_rng_state()}
    torch.save(own, path / _LOADER)
    state = {
        **phase.to_state(),
        "kl_coef": float(trainer.kl_ctrl_in_reward.value) if _has_kl_in_reward(phase) else None,
        "digests": digests,
    }
    (path / STATE).write_text(json.dumps(state), encoding="utf-8")
    phase.rolled(str(path))


def restore(trainer: Any, phase: PhaseState) -> None:
    """Restore the full checkpoint `phase.restore` in a phase that has just begun. For tests, `phase.skip` may
    name parts to skip (`restore.optimizer`).

    Raises:
        EffectiveConfigError: the restored state differs from the saved one.
    """
    assert phase.restore is not None
    path = Path(phase.restore)
    skip = tuple(name.removeprefix("restore.") for name in phase.skip if name.startswith("restore."))
    state = json.loads((path / STATE).read_text(encoding="utf-8"))
    phase.progress = Progress.from_state(state, phase.spec.checkpoint_dir)
    step = phase.progress.steps_done
    phase.first_step = step + 1
    trainer.global_steps = step
    digests = trainer.actor_rollout_wg.load_full(str(path / _WORKERS), skip)
    with loading_data_alone():
        own = torch.load(path / _LOADER)
    if "data" not in skip:
        trainer.train_dataloader.load_state_dict(own["loader"])
    # Creating the iterator draws from this process's random state, so that state is restored after it.
    trainer.train_dataloader_it = iter(trainer.train_dataloader)
    BaseCheckpointManager.load_rng_state(own["random"])
    if "check" not in skip:
        refuse(_differences(state["digests"], digests))
        check_restored(trainer, phase.spec)
    if _has_kl_in_reward(phase):
        trainer.kl_ctrl_in_reward.value = state["kl_coef"]


def _has_kl_in_reward(phase: PhaseState) -> bool:
    """Whether the phase has the KL in its reward. A warm trainer keeps the weight of an earlier phase."""
    return bool(phase.spec.hyperparameters.get(USE_KL_IN_REWARD))


def _differences(saved: list[dict[str, str]], acting: list[dict[str, str]]) -> list[str]:
    if len(saved) != len(acting):
        return [f"the full checkpoint is of {len(saved)} ranks, there are {len(acting)}"]
    return [
        f"rank {rank}: {part} is not what the full checkpoint holds"
        for rank, (before, now) in enumerate(zip(saved, acting, strict=True))
        for part in before
        if before[part] != now.get(part)
    ]


@contextlib.contextmanager
def loading_data_alone() -> Iterator[None]:
    """Context manager in which `torch.load` builds only tensors, numbers, texts, containers and NumPy arrays,
    even if VeRL asks for more. Anything else in a file raises `pickle.UnpicklingError`."""
    original = torch.load
    random_states: list[Any] = [np.ndarray, np.dtype, type(np.dtype(np.uint32)), _reconstruct()]
    torch.load = functools.partial(_load, original)
    try:
        with torch.serialization.safe_globals(random_states):
            yield
    finally:
        torch.load = original


def _load(original: Any, *args: Any, **kwargs: Any) -> Any:
    return original(*args, **{**kwargs, "weights_only": True})


def _reconstruct() -> Any:
    """NumPy's function that pickled arrays refer to."""
    made: Any = np.zeros(0).__reduce__()
    return made[0]
