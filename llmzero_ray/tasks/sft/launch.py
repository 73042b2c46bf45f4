"""A warm start as a Ray Train job.

Ray Train keeps checkpoints, and its list of them, in `output/checkpoints`. The same command continues from
the newest one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmzero_ray.errors import CapacityError, EngineError
from llmzero_ray.launch import actors
from llmzero_ray.tasks.sft.config import SftConfig
from llmzero_ray.tasks.sft.job import CHECKPOINTS, Job, Say
from llmzero_ray.utils.files import replace_file
from llmzero_ray.utils.text import one_line
from llmzero_ray.utils.threads import in_thread

_MAX_FAILURES = 3
"""Number of times that Ray Train continues from the newest checkpoint after a worker was lost."""


def train_on_ray(job: Job, say: Say) -> None:
    """Train until the result is written, from the newest checkpoint in the output directory if there is one.

    It uses the existing cluster, or else a private head with this machine's resources.

    Raises:
        CapacityError: there is no cluster, and this machine has too little.
        EngineError: workers failed or were lost too often.
    """
    say(actors.head.start_text())
    from ray.exceptions import RayError
    from ray.train.v2.api.exceptions import TrainingFailedError
    from ray.util.queue import Empty, Queue

    with actors.head.disconnecting():
        _connect(job.config, say)
        lines = Queue(actor_options={"num_cpus": 0})
        try:
            # On its own thread, because Ray Train takes over Ctrl-C on the main one.
            training = in_thread(_trainer(job, lines.put).fit)
            while not (training.done() and lines.empty()):
                with contextlib.suppress(Empty):
                    say(f"warm start: {lines.get(timeout=1)}")
            training.result()
        except (TrainingFailedError, RayError) as error:
            failures = getattr(error, "worker_failures", None) or {}
            cause = next(iter(failures.values()), getattr(error, "controller_failure", error))
            cause = getattr(cause, "_base_exc", cause)
            why = one_line(f"{type(cause).__name__}: {cause}")
            log = Path(job.config.output) / "failure.log"
            replace_file(log, f"{error}\n")
            raise EngineError(
                f"the warm start failed: {why} (all of it in {log}). "
                "The same command continues from the newest checkpoint; it begins again once "
                f"{log.with_name(CHECKPOINTS)} is removed."
            ) from error


def _connect(config: SftConfig, say: Say) -> None:
    import ray

    one = _resources(config)
    asked = f"{config.workers} worker(s) with {' and '.join(f'{n:g} {name}' for name, n in one.items())} each"
    if actors.head.join_if_there():
        say(f"joined the Ray cluster; Ray Train waits until there is room for {asked}")
        return
    actors.head.start_private_head()
    there = ray.cluster_resources()
    if any(config.workers * n > there.get(name, 0) for name, n in one.items()):
        raise CapacityError(
            f"asked: {asked}, which is more than there is: {there.get('CPU', 0):g} CPU, "
            f"{there.get('GPU', 0):g} GPU. Lower workers or cpus_per_worker, change use_gpu, or start Ray."
        )


def _trainer(job: Job, say: Say) -> Any:
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    config = job.config
    environment = {
        "ACCELERATE_USE_DEEPSPEED": "true",
        # Set explicitly, so that DeepSpeed does not guess.
        "DS_ACCELERATOR": "cuda" if config.use_gpu else "cpu",
        # Waiting threads yield instead of spinning, because workers may share cores.
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return TorchTrainer(
        _work,
        train_loop_config={"job": job, "say": say},
        torch_config=TorchConfig(backend="nccl" if config.use_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=config.workers, use_gpu=config.use_gpu, resources_per_worker=_resources(config)
        ),
        run_config=RunConfig(
            name=CHECKPOINTS,
            storage_path=config.output,
            failure_config=FailureConfig(max_failures=_MAX_FAILURES),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            worker_runtime_env={"env_vars": environment},
        ),
    )


def _work(given: Mapping[str, Any]) -> None:
    from llmzero_ray.tasks.sft.worker import train

    train(given["job"], given["say"])


def _resources(config: SftConfig) -> dict[str, float]:
    """Ray's resources of one worker."""
    return {"CPU": float(config.cpus_per_worker), **({"GPU": 1.0} if config.use_gpu else {})}
