"""The VeRL engine for the rest of the project. It does not import VeRL: it drives a child process (driver.py)
over a pipe.

A phase starts warm, in the living child, if only hot keys differ from those the child was started with.
Otherwise, and after an error inside VeRL, the start is cold: the child is ended and a new one is started. The
result names the key that required it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmzero_ray.engines.base import OnMetric, Stage, card_fault
from llmzero_ray.engines.verl import failures, internals, rolling_checkpoint
from llmzero_ray.engines.verl.driver_process import DriverProcess, wait_until_slot_is_free
from llmzero_ray.engines.verl.messages import (
    CheckpointSaved,
    Evaluated,
    EvaluateRequest,
    FullCheckpointWritten,
    Metric,
    Run,
    Stop,
    Trained,
)
from llmzero_ray.engines.verl.phase import Progress, refused_adapter, spec_for_adapter
from llmzero_ray.engines.verl.settings import VerlSettings
from llmzero_ray.engines.verl.stage_clock import StageClock
from llmzero_ray.errors import EngineError, EngineLostError
from llmzero_ray.hyperparameters import resolve
from llmzero_ray.records import ItemOutcome, PhaseFailure, PhaseResult, PhaseSpec
from llmzero_ray.storage.manifests import problem_of

logger = logging.getLogger(__name__)


class VerlEngine:
    """VeRL on one slot. See `llmzero_ray.engines.base.Engine` for the protocol."""

    def __init__(
        self,
        settings: VerlSettings,
        n_train: int,
        idle: PhaseSpec,
        is_hot: Callable[[str], bool],
        stop_deadline_s: Callable[[PhaseSpec], float] = lambda _: 300.0,
    ) -> None:
        """Starts nothing yet. `idle` is the configuration for scoring policies before any phase has run.

        `stop_deadline_s` returns the seconds within which a phase must stop.
        """
        self._stop_deadline_s = stop_deadline_s
        self._settings, self._n_train, self._idle, self._is_hot = settings, n_train, idle, is_hot
        self._driver: DriverProcess | None = None
        self._started_with: PhaseSpec | None = None
        self._starts = 0
        self._continuity_seen = False
        """Whether a phase of the current child has validated before its first step."""
        self._broken: str | None = None
        self._running = False
        self._run_id = 0
        self._stop_asked: tuple[float, str] | None = None
        self._lock = threading.Lock()
        self._clock = StageClock()

    # --- protocol ------------------------------------------------------------------------------------------

    def run(
        self, spec: PhaseSpec, on_metric: OnMetric, skip: tuple[str, ...] = ()
    ) -> PhaseResult | PhaseFailure:
        """Train one phase. `skip` names parts that are not exchanged, for tests of the read-back.

        A phase that continues from a full checkpoint reports only the steps after it, but its outcome covers
        the whole phase, except that `gpu_hours` are those of this attempt. The last full checkpoint is kept,
        because a retry may need it until the outcome is on disk.

        Raises:
            EngineLostError: a process or node was lost; the phase may be retried.
            EngineError: the engine cannot start at all.
        """
        began = time.monotonic()
        spec = self._resolved(spec)
        with self._lock:
            self._running, self._stop_asked = True, None
            self._run_id += 1
        self._clock.reset()
        self._clock.enter("start")
        found = rolling_checkpoint.newest(spec, self._settings.n_gpus)
        progress = Progress() if found is None else Progress.from_state(found.state, spec.checkpoint_dir)
        carried_s, log_began = progress.wall_s, failures.size(self._settings.log_path)
        try:
            cold = self._cold_reason(spec)
            failure = refused_adapter(spec, progress)
            if failure is None and cold is not None:
                failure = self._start(spec)
            started = time.monotonic()
            outcome = failure or self._train(spec, on_metric, skip, found, progress)
        except EngineLostError as error:
            self._abandon_driver("engine lost")
            log = failures.since(self._settings.log_path, log_began)
            # An out-of-memory failure would repeat itself in a retry, so it is the phase's own failure.
            cause = failures.memory_cause(log)
            if cause is None:
                fault = card_fault(log)
                if fault is None or card_fault(str(error)) is not None:
                    raise
                raise EngineLostError(f"{error}; its log says: {fault}") from error
            outcome = progress.failure(
                spec, "oom", f"vLLM ran out of memory: {cause}", failures.tail(self._settings.log_path)
            )
        except EngineError:
            self._abandon_driver("engine lost")
            raise
        except BaseException:  # raised by `on_metric`: the child is still training
            self._abandon_driver("the previous phase was broken off")
            raise
        finally:
            with self._lock:
                self._running = False
            self._clock.idle()
        wall_s = time.monotonic() - began
        outcome = dataclasses.replace(
            outcome,
            wall_s=carried_s + wall_s,
            gpu_hours=wall_s / 3600 * self._settings.n_gpus,
            warm=cold is None,
            cold_reason=cold,
        )
        if isinstance(outcome, PhaseResult):
            outcome = dataclasses.replace(outcome, setup_s=outcome.setup_s + started - began)
        return outcome

    def stop(self, reason: str) -> None:
        """Ask the running phase to end at the next step boundary. Only the first reason counts."""
        with self._lock:
            if not self._running or self._stop_asked is not None:
                return
            self._stop_asked = (time.monotonic(), reason)
            driver = self._driver
        if driver is not None:
            self._pass_stop_on(driver, reason)

    def stage(self) -> Stage | None:
        """Stage of the running phase or evaluation, or None if idle. Thread-safe."""
        return self._clock.read()

    def evaluate(self, adapter: str | None, parquet: str, max_tokens: int) -> tuple[ItemOutcome, ...]:
        """Outcomes of greedy answers to the rows of `parquet`, in row order. If `adapter` is None, the base
        model is scored.

        For an adapter with another LoRA rank, alpha or layers than the last phase's, VeRL is restarted.

        Raises:
            EngineError: `max_tokens` exceeds what the engine was started for, the adapter is damaged, or the
                rows could not be scored.
        """
        room = self._settings.max_model_len - self._settings.max_prompt_length
        if max_tokens > room:
            raise EngineError(
                f"evaluate: max_tokens is {max_tokens}; the engine serves answers of at most {room} tokens"
            )
        if adapter is not None and (problem := problem_of(Path(adapter))) is not None:
            raise EngineError(f"evaluate: adapter {adapter} cannot be used: {problem}")
        like = self._started_with or self._resolved(self._idle)
        if adapter is not None:
            like = spec_for_adapter(like, adapter, self._settings)
        self._clock.reset()
        self._clock.enter("start")
        try:
            if self._cold_reason(like) is not None and (failure := self._start(like)) is not None:
                raise EngineError(f"the engine could not start: {failure.cause}")
            request = EvaluateRequest(like=like, adapter=adapter, parquet=parquet, max_tokens=max_tokens)
            answer = self._living_driver().ask(request, Evaluated)
        except EngineError:
            self._abandon_driver("engine lost")
            raise
        finally:
            self._clock.idle()
        if answer.error is not None:
            self._broken = "an evaluation failed"
            raise EngineError(f"scoring {parquet} with {adapter or 'the base model'} failed: {answer.error}")
        return answer.items

    def close(self) -> None:
        """End the child and, with its Ray job, every VeRL process of this slot."""
        self._broken = None
        if self._end_driver():
            wait_until_slot_is_free(self._settings.slot_namespace)

    def _resolved(self, spec: PhaseSpec) -> PhaseSpec:
        """The phase with every `auto` value replaced by a number for this slot."""
        limit = self._settings.micro_batch_limit
        found = resolve(spec.hyperparameters, n_gpus=self._settings.n_gpus, micro_batch_limit=limit)
        return dataclasses.replace(spec, hyperparameters=found)

    # --- warm or cold --------------------------------------------------------------------------------------

    def _cold_reason(self, spec: PhaseSpec) -> str | None:
        if self._started_with is None:
            return self._broken or ("first phase" if self._starts == 0 else "engine was closed")
        if self._broken is not None:
            return self._broken
        if self._driver is None or not self._driver.alive:
            return "engine lost"
        old, new, absent = self._started_with.hyperparameters, spec.hyperparameters, object()
        changed = (key for key in sorted({*old, *new}) if old.get(key, absent) != new.get(key, absent))
        return next((f"{key} changed" for key in changed if not self._is_hot(key)), None)

    def _start(self, spec: PhaseSpec) -> PhaseFailure | None:
        """Cold start. If VeRL rejects the configuration, returns it as a failure of the phase."""
        flash_attention = internals.uses_flash_attention(self._settings.overrides)
        internals.check_versions(self._settings.platform, flash_attention=flash_attention)
        self._end_driver()
        self._broken = None
        wait_until_slot_is_free(self._settings.slot_namespace)
        self._starts += 1
        settings = dataclasses.replace(self._settings, start_id=uuid.uuid4().hex[:12])
        with self._lock:
            self._driver = DriverProcess(settings, self._clock)
        answer = self._driver.start(spec, self._n_train)
        if answer.failure is None:
            self._started_with = spec
            return None
        if answer.lost:
            raise EngineLostError(f"VeRL's start lost a process: {answer.failure.cause}")
        self._end_driver()
        self._broken = "the previous start failed"
        return answer.failure

    def _end_driver(self, grace_s: float = 5.0) -> bool:
        """End the child, if any. Returns whether there was one. Its actors may outlive it briefly."""
        with self._lock:
            driver, self._driver = self._driver, None
        self._started_with, self._continuity_seen = None, False
        if driver is not None:
            driver.end(grace_s)
        return driver is not None

    def _abandon_driver(self, why: str) -> None:
        """End the child without waiting. The next start waits for its actors."""
        self._end_driver(grace_s=0.0)
        self._broken = why

    def _living_driver(self) -> DriverProcess:
        if self._driver is None:
            raise EngineError("VeRL has not been started: run a phase or an evaluation first")
        return self._driver

    # --- a phase -------------------------------------------------------------------------------------------

    def _train(
        self,
        spec: PhaseSpec,
        on_metric: OnMetric,
        skip: tuple[str, ...],
        found: rolling_checkpoint.Restorable | None,
        progress: Progress,
    ) -> PhaseResult | PhaseFailure:
        """Train the phase. `progress` is updated as it goes, so that there is an outcome if the child must be
        killed."""
        driver = self._living_driver()
        restore = None if found is None else found.path
        driver.send(Run(spec, self._run_id, skip, restore, self._takes_start(spec)))
        if self._stop_asked is not None:  # the stop was requested while the engine was starting
            self._pass_stop_on(driver, self._stop_asked[1])
        while True:
            message = self._next(driver, spec, progress)
            if isinstance(message, Metric):
                progress.saw(message.point)
                if message.point.step == 0 and message.point.taken_from is None:
                    self._continuity_seen = True
                progress.wall_s, progress.train_wall_s = message.point.wall_s, message.point.wall_s
                on_metric(message.point)
            elif isinstance(message, CheckpointSaved):
                progress.saved[message.checkpoint.step] = message.checkpoint.path
            elif isinstance(message, FullCheckpointWritten):
                rolling_checkpoint.commit(Path(message.path), spec, self._settings.n_gpus)
            elif isinstance(message, Trained):
                return self._ended(message)
            else:
                killed: PhaseResult = message
                return killed

    def _takes_start(self, spec: PhaseSpec) -> bool:
        """Whether the validation at step 0 may be skipped. The child decides based on its servers'
        answers."""
        known = spec.known_start
        return (
            known is not None and self._continuity_seen and (known.on_cpu or self._settings.platform == "gpu")
        )

    def _ended(self, message: Trained) -> PhaseResult | PhaseFailure:
        outcome = message.outcome
        if isinstance(outcome, PhaseResult):
            return outcome
        if message.lost:
            raise EngineLostError(f"a VeRL process went away: {outcome.cause}")
        if not message.usable:
            self._broken = f"the previous phase failed ({outcome.failure_class})"
        log = failures.tail(self._settings.log_path)
        return dataclasses.replace(
            outcome, log_tail=f"{outcome.log_tail}\n--- log ---\n{log}" if log else outcome.log_tail
        )

    def _next(self, driver: DriverProcess, spec: PhaseSpec, progress: Progress) -> Any:
        """Next message. If a requested stop misses its deadline, kills the child and returns the progress so
        far as the result."""
        while True:
            if (message := driver.next_message()) is not None:
                return message
            asked, limit_s = self._stop_asked, self._stop_deadline_s(spec)
            if asked is not None and time.monotonic() - asked[0] > limit_s:
                logger.warning("node=%d did not stop within %.0f s: killed", spec.node, limit_s)
                self._end_driver(grace_s=0.0)
                self._broken = "the previous phase had to be killed"
                return progress.result(spec, f"{asked[1]} (killed: the stop deadline passed)")

    def _pass_stop_on(self, driver: DriverProcess, reason: str) -> None:
        with contextlib.suppress(EngineLostError):  # the thread that runs the phase handles it
            driver.send(Stop(reason, self._run_id))
