"""The child process that embeds VeRL: a Ray driver of its own, one per slot. Speaks to engine.py over a pipe.

It takes one request at a time (run, evaluate, close) and a stop at any time; a closed pipe ends it at once,
and with the driver all of VeRL's actors. What it prints goes to the slot's log file.

Run as `python -m llmzero_ray.engines.verl.host FD`; FD is the inherited end of the pipe.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

from llmzero_ray.engines.verl import failures, internals
from llmzero_ray.engines.verl.overrides import all_overrides, compose
from llmzero_ray.engines.verl.protocol import (
    CheckpointSaved,
    Evaluate,
    Evaluated,
    Logits,
    LogitsAnswer,
    Metric,
    Ready,
    Run,
    Start,
    Stop,
    Trained,
)
from llmzero_ray.errors import ConfigError
from llmzero_ray.records import PhaseFailure, PhaseResult, PhaseSpec

logger = logging.getLogger(__name__)


class Host:
    """Owns the trainer; answers requests."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._requests: queue.Queue[Any] = queue.Queue()
        self._trainer: Any = None
        self._settings: Any = None
        self._n_train = 0
        self._stops: dict[int, str] = {}
        """Run id -> reason: a stop may arrive before its run does."""

    def serve(self) -> None:
        """Answer requests until the pipe closes."""
        threading.Thread(target=self._listen, daemon=True).start()
        while True:
            request = self._requests.get()
            if isinstance(request, Start):
                self._answer(self._start(request))
            elif isinstance(request, Run):
                self._answer(self._run(request))
            elif isinstance(request, Evaluate):
                self._answer(self._evaluate(request))
            elif isinstance(request, Logits):
                self._answer(LogitsAnswer(self._trainer.actor_rollout_wg.logits(request.token_ids)[0]))

    def _answer(self, message: Any) -> None:
        with self._sending:
            self._connection.send(message)

    def _listen(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                # The runner is gone or closed us. The kernel ends this process now; Ray ends the job's
                # actors.
                os._exit(0)
            if isinstance(message, Stop):
                self._stops.setdefault(message.run_id, message.reason)
            else:
                self._requests.put(message)

    # --- requests ------------------------------------------------------------------------------------------

    def _start(self, request: Start) -> Ready:
        """Connect to Ray, check VeRL, bring up its processes for the first phase's cold keys."""
        self._settings, self._n_train = request.settings, request.n_train
        try:
            internals.check_names()
            config = self._compose(request.spec, request.settings)
            groups = _connect(request)
            import transfer_queue
            from omegaconf import open_dict

            from llmzero_ray.engines.verl.trainer import PhaseTrainer

            with open_dict(config):
                config.transfer_queue.enable = True
                # vLLM and VeRL's buffers start with room for the longest answer any phase may ask for.
                longest = request.settings.max_model_len - request.settings.max_prompt_length
                config.data.max_response_length = longest
                config.actor_rollout_ref.rollout.response_length = longest
            transfer_queue.init(config.transfer_queue)
            trainer = PhaseTrainer(config, request.settings, groups)
            trainer.start()
            self._trainer = trainer
        except Exception as error:
            logger.exception("cold start failed")
            return Ready(
                failure=self._failure(request.spec, error),
                lost=failures.is_lost_process(error),
                job_id=_job_id(),
            )
        servers = tuple(self._trainer.llm_server_manager.get_addresses())
        return Ready(failure=None, lost=False, job_id=_job_id(), servers=servers)

    def _compose(self, spec: PhaseSpec, settings: Any) -> Any:
        """VeRL's configuration of a phase, passed by VeRL's own validation.

        Raises:
            ConfigError: VeRL refuses it.
        """
        config = compose(all_overrides(settings, spec, self._n_train))
        internals.check_config_paths(config)
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
        return config

    def _run(self, request: Run) -> Trained:
        from llmzero_ray.engines.verl.trainer import PhaseState
        from llmzero_ray.errors import EffectiveConfigError

        spec = request.spec
        state = PhaseState(
            spec=spec,
            emit=lambda point: self._answer(Metric(point)),
            saved=lambda checkpoint: self._answer(CheckpointSaved(checkpoint)),
            skip=request.skip,
            stop_asked=lambda: self._stops.get(request.run_id),
        )
        try:
            self._trainer.begin_phase(self._compose(spec, self._settings), state)
            state.ready = time.monotonic()
            self._trainer.train()
        except Exception as error:
            logger.exception("phase of node %d failed", spec.node)
            ours = isinstance(error, EffectiveConfigError | ConfigError)
            if ours:
                self._trainer.clear_queue()
            # After an exception of VeRL's own nothing is known about its processes, and after a NaN vLLM's
            # cache is full of them, which poisons later answers: the engine starts afresh.
            lost = failures.is_lost_process(error)
            return Trained(outcome=self._failure(spec, error, state), usable=ours, lost=lost)
        return Trained(outcome=_result(state), usable=True, lost=False)

    def _evaluate(self, request: Evaluate) -> Evaluated:
        try:
            config = self._compose(request.like, self._settings)
            items = self._trainer.evaluate(config, request.adapter, request.parquet, request.max_tokens)
        except Exception as error:
            logger.exception("evaluation failed")
            return Evaluated(items=(), error=failures.one_line(error))
        return Evaluated(items=items, error=None)

    def _failure(self, spec: PhaseSpec, error: BaseException, state: Any = None) -> PhaseFailure:
        sys.stdout.flush()
        best = state.best if state is not None else None
        return PhaseFailure(
            node=spec.node,
            failure_class=failures.failure_class(error),
            cause=failures.one_line(error),
            log_tail="".join(traceback.format_exception(error))[-4000:],
            steps_done=state.steps_done if state is not None else 0,
            best_step=best[0] if best else None,
            best_score=best[1] if best else None,
            start_score=state.scores.get(0) if state is not None else None,
            checkpoints=tuple(state.checkpoints[s] for s in sorted(state.checkpoints))
            if state is not None
            else (),
        )


def _result(state: Any) -> PhaseResult:
    """The result as far as this process knows it; engine.py adds what it measured."""
    best, reason = state.best, state.stop_reason or "n_steps"
    after_start = {s: v for s, v in state.scores.items() if s > 0}
    return PhaseResult(
        node=state.spec.node,
        status="early_stopped" if reason.startswith("verdict") else "completed",
        stop_reason=reason,
        steps_done=state.steps_done,
        best_score=best[1] if best else None,
        best_step=best[0] if best else None,
        start_score=state.scores.get(0),
        final_score=after_start[max(after_start)] if after_start else None,
        checkpoints=tuple(state.checkpoints[s] for s in sorted(state.checkpoints)),
        wall_s=time.monotonic() - state.began,
        train_wall_s=time.monotonic() - (state.train_began or time.monotonic()),
        gpu_hours=0.0,
        warm=True,
        setup_s=(state.ready or time.monotonic()) - state.began,
    )


def _connect(request: Start) -> list[Any]:
    """Join the cluster as a job of our own and find the reserved placement groups."""
    import ray
    from ray._raylet import PlacementGroupID
    from ray.util.placement_group import PlacementGroup

    ray.init(
        address=request.ray_address,
        namespace=request.settings.namespace,
        runtime_env=request.runtime_env,
        log_to_driver=True,
        logging_level=logging.WARNING,
    )
    groups = [PlacementGroup(PlacementGroupID(bytes.fromhex(h))) for h in request.settings.placement_groups]
    for group in groups:
        ray.get(group.ready())
    return groups


def _job_id() -> str:
    import ray

    return str(ray.get_runtime_context().get_job_id()) if ray.is_initialized() else ""


def main() -> None:
    """Entry point of the child process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    Host(Connection(int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
