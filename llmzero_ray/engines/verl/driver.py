"""Process that embeds VeRL: a Ray driver, one per slot, that takes requests from the engine over a pipe.

It takes one request at a time (start, run, evaluate), and a stop at any time. It exits immediately if the
pipe closes, its parent exits, or any of VeRL's processes dies, and all of VeRL's actors end with it. Its
output goes to the slot's log file.

Run as `python -m llmzero_ray.engines.verl.driver FD PARENT SLOT`: the inherited end of the pipe, the process
id of the parent, and the slot's name, which identifies the process and its Ray job.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from llmzero_ray.engines.verl import failures, internals, patches
from llmzero_ray.engines.verl.cpu.local_queue import LocalQueue
from llmzero_ray.engines.verl.early_server import start_servers_early
from llmzero_ray.engines.verl.helper_placement import nodes_of, place_queue_on
from llmzero_ray.engines.verl.messages import (
    CheckpointSaved,
    Evaluated,
    EvaluateRequest,
    FullCheckpointWritten,
    Metric,
    ProcessDied,
    Ready,
    Run,
    StageBegan,
    StageProgressed,
    Start,
    Stop,
    Trained,
)
from llmzero_ray.engines.verl.overrides import all_overrides, compose
from llmzero_ray.engines.verl.phase import PhaseState, Progress
from llmzero_ray.engines.verl.queue_keys import publish_keys
from llmzero_ray.engines.verl.settings import VerlSettings
from llmzero_ray.errors import ConfigError, EffectiveConfigError, EngineError, RewardError
from llmzero_ray.records import PhaseFailure, PhaseSpec
from llmzero_ray.utils.parent_death import die_with_parent

logger = logging.getLogger(__name__)

_LOG_SETTLES_S = 5.0


class Driver:
    """Owns the trainer and answers requests."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._requests: queue.Queue[Any] = queue.Queue()
        self._trainer: Any = None
        self._watch: Any = None
        self._settings: Any = None
        self._n_train = 0
        self._stops: dict[int, str] = {}
        """Run id -> reason of a requested stop. A stop may arrive before its run does."""

    def serve(self) -> None:
        """Answer requests until the pipe closes."""
        threading.Thread(target=self._listen, daemon=True).start()
        while True:
            request = self._requests.get()
            if isinstance(request, Start):
                self._answer(self._start(request))
            elif isinstance(request, Run):
                self._answer(self._run(request))
            elif isinstance(request, EvaluateRequest):
                self._answer(self._evaluate(request))

    def _answer(self, message: Any) -> None:
        with self._sending:
            self._connection.send(message)

    def _enter(self, stage: str) -> None:
        self._answer(StageBegan(stage, time.monotonic()))

    def _listen(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                # The runner is gone or closed the pipe. Exit now; Ray then ends the job's actors.
                os._exit(0)
            if isinstance(message, Stop):
                self._stops.setdefault(message.run_id, message.reason)
            else:
                self._requests.put(message)

    # --- requests ------------------------------------------------------------------------------------------

    def _start(self, request: Start) -> Ready:
        """Connect to Ray, check VeRL, and start its processes for the first phase's cold keys."""
        self._settings, self._n_train = request.settings, request.n_train
        log_began = os.path.getsize(request.settings.log_path)
        patches.collect_garbage_rarely()
        try:
            config = compose(all_overrides(request.settings, request.spec, self._n_train))
            groups = _connect(request)
            servers = _start_servers(request.settings, config, groups)
            start_queue = partial(_start_queue, config.transfer_queue, groups)
            # If the package's queue is needed from the start, it starts while VeRL is imported.
            queue_started = None if request.settings.holds_queue else start_queue()
            internals.check_names(internals.relied_on(request.settings.platform))
            use_liger = bool(config.actor_rollout_ref.model.use_liger)
            internals.check_kernels(request.settings.platform, use_liger=use_liger)
            _check_config(config)
            from omegaconf import open_dict

            from llmzero_ray.engines.verl.liveness import ActorLiveness
            from llmzero_ray.engines.verl.trainer import PhaseTrainer

            with open_dict(config):
                # Size vLLM and VeRL's buffers for the longest answer that any phase may request.
                longest = request.settings.max_model_len - request.settings.max_prompt_length
                config.data.max_response_length = longest
                config.actor_rollout_ref.rollout.response_length = longest
            if queue_started is None:
                local = LocalQueue(lambda: start_queue().result())
                local.install()
            else:
                queue_started.result()
                local = None
            trainer = PhaseTrainer(config, request.settings, groups, local, servers)
            trainer.progressed = lambda: self._answer(StageProgressed(time.monotonic()))
            trainer.start()
            patches.collect_garbage_as_usual()
            self._trainer, self._watch = trainer, ActorLiveness(trainer.servers)
            self._watch.start(self._die)
            trainer.helpers_started = self._watch.expect_all
        except Exception as error:
            logger.exception("cold start failed")
            cause = _core_failure(error, request.settings.log_path, log_began)
            failure = _failure(Progress(), request.spec, cause or error)
            return Ready(failure=failure, lost=failures.is_lost_process(error))
        return Ready(failure=None, lost=False)

    def _compose(self, spec: PhaseSpec, settings: Any) -> Any:
        """VeRL's configuration for a phase, checked by VeRL's own validation.

        Raises:
            ConfigError: VeRL rejects it.
        """
        config = compose(all_overrides(settings, spec, self._n_train))
        _check_config(config)
        return config

    def _run(self, request: Run) -> Trained:
        spec = request.spec
        state = PhaseState(
            spec=spec,
            emit=lambda point: self._answer(Metric(point)),
            saved=lambda checkpoint: self._answer(CheckpointSaved(checkpoint)),
            rolled=lambda path: self._answer(FullCheckpointWritten(path)),
            stage=self._enter,
            skip=request.skip,
            stop_asked=lambda: self._stops.get(request.run_id),
            restore=request.restore,
        )
        try:
            config = self._compose(spec, self._settings)
            if request.restore is not None:
                config.trainer.val_before_train = False
            self._trainer.begin_phase(config, state)
            state.ready = time.monotonic()
            if request.takes_start and request.restore is None and self._trainer.canary_passed:
                config.trainer.val_before_train = False
                state.take_start()
            self._trainer.train()
        except Exception as error:
            logger.exception("phase of node %d failed", spec.node)
            ours = isinstance(error, EffectiveConfigError | ConfigError | RewardError)
            if ours:
                self._trainer.clear_queue()
            # After an exception inside VeRL, the state of its processes is unknown, and after a NaN, vLLM's
            # cache is full of NaNs that spoil later answers. The engine is then not reused (usable=False).
            lost = self._is_loss(error, ours)
            return Trained(outcome=_failure(state.progress, spec, error), usable=ours, lost=lost)
        return Trained(outcome=state.result(), usable=True, lost=False)

    def _is_loss(self, error: BaseException, ours: bool) -> bool:
        """Whether a dead process caused an exception. Never true for one of our own checks."""
        if ours or failures.failure_class(error) in ("nan", "oom"):
            return False
        if failures.is_lost_process(error):
            return True
        cause = self._watch.cause_of()
        if cause is not None:
            logger.error("behind it: %s", cause)
        return cause is not None

    def _die(self, what: str) -> None:
        """Report that a VeRL process has died, and exit, which ends VeRL's other processes too."""
        logger.error("%s; this driver ends", what)
        with contextlib.suppress(OSError):
            self._answer(ProcessDied(what))
        os._exit(1)

    def _evaluate(self, request: EvaluateRequest) -> Evaluated:
        self._enter("validation")
        try:
            config = self._compose(request.like, self._settings)
            items = self._trainer.evaluate(config, request.adapter, request.parquet, request.max_tokens)
        except Exception as error:
            logger.exception("evaluation failed")
            if isinstance(error, RewardError):
                self._trainer.clear_queue()
            return Evaluated(items=(), error=failures.one_line(error))
        return Evaluated(items=items, error=None)


def _failure(progress: Progress, spec: PhaseSpec, error: BaseException) -> PhaseFailure:
    sys.stdout.flush()
    trace = "".join(traceback.format_exception(error))[-4000:]
    return progress.failure(spec, failures.failure_class(error), failures.one_line(error), trace)


def _core_failure(error: BaseException, log_path: str, log_began: int) -> EngineError | None:
    """Reason why vLLM's engine core did not start, from the log after `log_began` bytes. None if `error` is
    another failure, or the core printed no cause. Ray forwards the core's output with a short delay."""
    if not failures.is_core_failure(error):
        return None
    deadline = time.monotonic() + _LOG_SETTLES_S
    while time.monotonic() < deadline:
        if cause := failures.cause_of_core_failure(failures.since(log_path, log_began)):
            found = EngineError(f"vLLM's engine core did not start: {cause}")
            found.__cause__ = error
            return found
        time.sleep(0.2)
    return None


def _connect(request: Start) -> list[Any]:
    """Join the cluster as a separate job and find the reserved placement groups."""
    import ray
    from ray.util.placement_group import PlacementGroup

    ray.init(
        address=request.ray_address,
        namespace=request.settings.namespace,
        runtime_env=request.runtime_env,
        log_to_driver=True,
        logging_level=logging.WARNING,
    )
    ids = [ray.PlacementGroupID(bytes.fromhex(group)) for group in request.settings.placement_groups]
    groups = [PlacementGroup(group) for group in ids]
    for group in groups:
        ray.get(group.ready())
    return groups


def _start_servers(settings: VerlSettings, config: Any, groups: list[Any]) -> dict[int, Any]:
    """Handles of vLLM's servers by replica rank, started in parallel with VeRL's imports. Empty unless the
    slot is on the CPU of one machine."""
    if settings.platform != "cpu" or not settings.queue_dir:
        return {}
    count = settings.n_gpus // settings.tensor_model_parallel_size
    concurrency = config.actor_rollout_ref.rollout.max_num_seqs + 1_000  # 1,000 for other calls
    return start_servers_early(count, concurrency, min(nodes_of(groups)))


def _check_config(config: Any) -> None:
    """Run VeRL's own validation, with its queue enabled.

    Raises:
        ConfigError: VeRL rejects the configuration.
    """
    from omegaconf import open_dict
    from verl.trainer.ppo.utils import need_reference_policy
    from verl.utils.config import validate_config

    with open_dict(config):
        config.transfer_queue.enable = True
    try:
        validate_config(config, need_reference_policy(config), use_critic=False)
    except (AssertionError, ValueError, TypeError) as error:
        raise ConfigError(
            f"VeRL's validation refuses the configuration: {failures.one_line(error)}"
        ) from error


def _start_queue(config: Any, groups: list[Any]) -> Future[Any]:
    """Start the TransferQueue on a thread, on the nodes of `groups`. Its client is ready once the future is.

    The package is patched before that. Otherwise the plugin would patch it only when VeRL is imported, and
    VeRL's other processes would not find a queue started earlier.
    """
    import transfer_queue
    from omegaconf import open_dict

    namespace = os.environ[internals.QUEUE_NAMESPACE_ENV]
    patches.patch_transfer_queue_namespace(namespace)
    patches.patch_transfer_queue_sockets()
    place_queue_on(nodes_of(groups))
    if not os.environ.get(internals.QUEUE_DIR_ENV):
        publish_keys(namespace)
    with open_dict(config):
        config.enable = True
    threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="transfer-queue")
    return threads.submit(transfer_queue.init, config)


def main() -> None:
    """Entry point of the child process."""
    die_with_parent(int(sys.argv[2]))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    Driver(Connection(int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
