"""Supervised training as a Ray Train job: one worker per share of the batch, restarted when one is lost.

Needs a Ray session.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmzero_ray.errors import CapacityError, EngineError, LlmzeroError
from llmzero_ray.tasks.sft.config import SftConfig
from llmzero_ray.tasks.sft.job import Job
from llmzero_ray.tasks.sft.progress import ProgressReader
from llmzero_ray.utils.files import replace_file

_LOOK_S = 0.5
RAY_STATE = ".ray_train"
"""Directory of Ray Train's records, which nobody needs after the training."""
_FAILURE_LOG = "failure.log"
_CONTROL_RETRIES = 3


def reserve_once(config: SftConfig) -> None:
    """Check that the workers' CPUs and GPUs are available together, now or within `start_timeout_s`.

    An autoscaler sees the request. The resources are released at once, so that Ray Train can take them.

    Raises:
        CapacityError: they are not; the message has the requested and the available resources.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([_resources(config)] * config.workers, strategy="PACK")
    try:
        if not group.wait(config.start_timeout_s):
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            raise CapacityError(asked_and_there(config, nodes))
    finally:
        remove_placement_group(group)


def n_fitting(config: SftConfig, machines: list[Mapping[str, float]]) -> int:
    """Number of workers that fit on idle machines. Each machine is given by its resources, under Ray's
    names."""
    asked = _resources(config)
    return sum(min(int(held.get(name, 0) // n) for name, n in asked.items()) for held in machines)


def asked_and_there(config: SftConfig, machines: list[Mapping[str, float]]) -> str:
    """Requested resources of the workers and those of the cluster, for an error message."""
    each = " and ".join(f"{n:g} {name}" for name, n in _resources(config).items())
    there = "; ".join(f"{held.get('CPU', 0):g} CPU, {held.get('GPU', 0):g} GPU" for held in machines)
    busy = (
        f"which were not free together within {config.start_timeout_s:g} s (start_timeout_s)"
        if n_fitting(config, machines) >= config.workers
        else "which is more than there is"
    )
    return (
        f"asked: {config.workers} worker(s) with {each} each, {busy}. Machines: {there or 'none'}. Lower "
        "workers or cpus_per_worker, change use_gpu, or add machines."
    )


def train_on_ray(job: Job) -> Iterator[dict[str, Any]]:
    """Train, and yield the first worker's progress lines (progress.py) until the training ends.

    Raises:
        LlmzeroError: a worker failed: a full disk, a model that cannot be loaded.
        EngineError: workers were lost more often than `max_failures`, or failed otherwise.
    """
    progress, failure = ProgressReader(job.output), list[BaseException]()
    trainer = _trainer(job)

    def fit() -> None:
        try:
            trainer.fit()
        except BaseException as error:  # noqa: BLE001  handed to the thread that asked
            failure.append(error)

    # In a thread of its own: Ray Train takes over Ctrl-C where it runs in the main one.
    thread = threading.Thread(target=fit, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_LOOK_S)
        yield from progress.read()
    yield from progress.read()
    if failure:
        raise _reported(failure[0], job.output)


def work(given: Mapping[str, Any]) -> None:
    """One worker's training loop, for Ray Train; the job is `given["job"]`."""
    import ray.train
    import torch

    from llmzero_ray.tasks.sft.worker import train

    context, job = ray.train.get_context(), given["job"]
    if not job.config.use_gpu:
        torch.set_num_threads(job.config.cpus_per_worker)
    train(job, context.get_world_rank(), context.get_world_size())


def _trainer(job: Job) -> Any:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    config = job.config
    environment = {
        # What DeepSpeed runs on, in place of its guess.
        "DS_ACCELERATOR": "cuda" if config.use_gpu else "cpu",
        # Waiting threads give way instead of spinning: workers may share cores.
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return TorchTrainer(
        work,
        train_loop_config={"job": job},
        torch_config=TorchConfig(backend="nccl" if config.use_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=config.workers, use_gpu=config.use_gpu, resources_per_worker=_resources(config)
        ),
        run_config=RunConfig(
            # A name of its own each time: what is resumed are our checkpoints, not Ray Train's records.
            name=uuid.uuid4().hex[:8],
            storage_path=str(job.output / RAY_STATE),
            failure_config=FailureConfig(
                max_failures=config.max_failures, controller_failure_limit=_CONTROL_RETRIES
            ),
            worker_runtime_env={"env_vars": environment},
        ),
    )


def _resources(config: SftConfig) -> dict[str, float]:
    gpus = {"GPU": 1.0} if config.use_gpu else {}
    return {"CPU": float(config.cpus_per_worker), **gpus}


def _reported(error: BaseException, output: Path) -> LlmzeroError:
    """This project's error that caused an error of Ray Train, or else the last line of that error. The whole
    error is written to a file."""
    failures = getattr(error, "worker_failures", None) or {0: error}
    for found in failures.values():
        cause = getattr(found, "_base_exc", found)
        if isinstance(cause, LlmzeroError):
            return cause
    rank, first = min(failures.items())
    log = output / _FAILURE_LOG
    replace_file(log, f"{error}\n")
    last = (str(first).strip() or type(first).__name__).splitlines()[-1]
    return EngineError(
        f"the warm start failed on worker {rank}: {last} (all of it in {log}). Checkpoints are kept: run the "
        "same command again to continue from the newest."
    )
