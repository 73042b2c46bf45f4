"""The VeRL engine as the rest of the project sees it. Imports no VeRL: it drives a child process (host.py)
over a pipe.

Warm or cold: a phase re-uses the child when only hot-settable keys differ from those the child was started
with; otherwise, and after an error of VeRL's own, the child is ended and a new one started. The result says
which key forced it.

Not here: VeRL itself (host.py, trainer.py), which keys are hot (hyperparameters.py), retries (the
coordinator).
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import logging
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from llmzero_ray.engines.base import OnMetric
from llmzero_ray.engines.verl import failures, internals
from llmzero_ray.engines.verl.environment import process_env, runtime_env, socket_scope
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
from llmzero_ray.engines.verl.settings import VerlSettings
from llmzero_ray.errors import EngineError, EngineLostError
from llmzero_ray.hyperparameters import resolve
from llmzero_ray.records import Checkpoint, ItemOutcome, MetricPoint, PhaseFailure, PhaseResult, PhaseSpec

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
_GONE_TIMEOUT_S = 60.0


class VerlEngine:
    """One slot's VeRL; see `llmzero_ray.engines.base.Engine` for the protocol."""

    def __init__(
        self, settings: VerlSettings, n_train: int, idle: PhaseSpec, is_hot: Callable[[str], bool]
    ) -> None:
        """Nothing starts yet. `idle` is the configuration used to score policies before any phase has run."""
        self._settings, self._n_train, self._idle, self._is_hot = settings, n_train, idle, is_hot
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._job_id = ""
        self._started_with: PhaseSpec | None = None
        self._starts = 0
        self._socket_scope = ""
        self.servers: tuple[str, ...] = ()
        self._broken: str | None = None
        self._running = False
        self._run_id = 0
        self._stop_asked: tuple[float, str] | None = None
        self._lock = threading.Lock()
        self._sending = threading.Lock()

    # --- protocol ------------------------------------------------------------------------------------------

    def run(
        self, spec: PhaseSpec, on_metric: OnMetric, skip: tuple[str, ...] = ()
    ) -> PhaseResult | PhaseFailure:
        """Train one phase; `skip` leaves named swaps out and exists for the tests of the read-back.

        Raises:
            EngineLostError: a process or node went away; the phase may be repeated.
            EngineError: the engine cannot start at all.
        """
        began = time.monotonic()
        spec = self._resolved(spec)
        with self._lock:
            self._running, self._stop_asked = True, None
            self._run_id += 1
        try:
            cold = self._cold_reason(spec)
            failure = self._start(spec) if cold is not None else None
            started = time.monotonic()
            outcome = failure or self._train(spec, on_metric, skip)
        finally:
            with self._lock:
                self._running = False
        wall_s = time.monotonic() - began
        outcome = dataclasses.replace(
            outcome,
            wall_s=wall_s,
            gpu_hours=wall_s / 3600 * self._settings.n_gpus,
            warm=cold is None,
            cold_reason=cold,
        )
        if isinstance(outcome, PhaseResult):
            outcome = dataclasses.replace(outcome, setup_s=outcome.setup_s + started - began)
        return outcome

    def stop(self, reason: str) -> None:
        """Ask the running phase to end at the next step boundary; the first reason counts."""
        with self._lock:
            if not self._running or self._stop_asked is not None:
                return
            self._stop_asked = (time.monotonic(), reason)
            pipe = self._pipe
        if pipe is not None:
            self._pass_stop_on(pipe, reason)

    def evaluate(self, adapter: str | None, parquet: str, max_tokens: int) -> tuple[ItemOutcome, ...]:
        """Greedy outcomes per row of `parquet`, in row order; `adapter` None scores the base model.

        Raises:
            EngineError: more tokens than the engine was started for, or the rows could not be scored.
        """
        room = self._settings.max_model_len - self._settings.max_prompt_length
        if max_tokens > room:
            raise EngineError(
                f"evaluate: max_tokens is {max_tokens}; the engine serves answers of at most {room} tokens"
            )
        like = self._started_with or self._resolved(self._idle)
        if self._cold_reason(like) is not None and (failure := self._start(like)) is not None:
            raise EngineError(f"the engine could not start: {failure.cause}")
        self._send(Evaluate(like=like, adapter=adapter, parquet=parquet, max_tokens=max_tokens))
        answer = self._receive(Evaluated)
        if answer.error is not None:
            self._broken = "an evaluation failed"
            raise EngineError(f"scoring {parquet} with {adapter or 'the base model'} failed: {answer.error}")
        items: tuple[ItemOutcome, ...] = answer.items
        return items

    def logits(self, token_ids: tuple[int, ...]) -> list[list[float]]:
        """Logits of the live policy per position of one sequence: shows that an adapter on disk is the policy
        in memory."""
        self._send(Logits(token_ids))
        answer: LogitsAnswer = self._receive(LogitsAnswer)
        return answer.rows

    def close(self) -> None:
        """End the child and with its Ray job every VeRL process of this slot."""
        child, pipe = self._child, self._pipe
        self._child = self._pipe = self._started_with = None
        self._broken = None
        if pipe is not None:
            pipe.close()
        if child is None:
            return
        try:
            child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        self._clean_up()

    def _resolved(self, spec: PhaseSpec) -> PhaseSpec:
        """The phase with every `auto` value made a number for this slot."""
        limit = self._settings.micro_batch_limit
        found = resolve(spec.hyperparameters, n_gpus=self._settings.n_gpus, micro_batch_limit=limit)
        return dataclasses.replace(spec, hyperparameters=found)

    # --- warm or cold --------------------------------------------------------------------------------------

    def _cold_reason(self, spec: PhaseSpec) -> str | None:
        if self._started_with is None:
            return self._broken or ("first phase" if self._starts == 0 else "engine was closed")
        if self._broken is not None:
            return self._broken
        if self._child is None or self._child.poll() is not None:
            return "engine lost"
        changed = _changed(self._started_with.hyperparameters, spec.hyperparameters)
        cold = [key for key in changed if not self._is_hot(key)]
        return f"{cold[0]} changed" if cold else None

    def _start(self, spec: PhaseSpec) -> PhaseFailure | None:
        """Cold start; a configuration that VeRL refuses comes back as a failure of the phase."""
        internals.check_versions(self._settings.platform)
        self.close()
        self._starts += 1
        settings = dataclasses.replace(
            self._settings, search=f"{self._settings.search}-{uuid.uuid4().hex[:12]}"
        )
        self._socket_scope = socket_scope(settings)
        self._launch(settings)
        import ray

        self._send(
            Start(
                settings=settings,
                spec=spec,
                n_train=self._n_train,
                ray_address=ray.get_runtime_context().gcs_address,
                runtime_env=runtime_env(settings),
            )
        )
        answer: Ready = self._receive(Ready, timeout_s=self._settings.start_timeout_s)
        self._job_id, self.servers = answer.job_id, answer.servers
        if answer.failure is None:
            self._started_with = spec
            return None
        self.close()
        if answer.lost:
            raise EngineLostError(f"VeRL's start lost a process: {answer.failure.cause}")
        self._broken = "the previous start failed"
        return answer.failure

    def _launch(self, settings: VerlSettings) -> None:
        ours, theirs = Pipe(duplex=True)
        log_path = Path(settings.log_path)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-u", "-m", "llmzero_ray.engines.verl.host", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=process_env(settings),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C in the terminal is the search's to handle
            )
        theirs.close()
        self._pipe = ours

    # --- a phase -------------------------------------------------------------------------------------------

    def _train(
        self, spec: PhaseSpec, on_metric: OnMetric, skip: tuple[str, ...]
    ) -> PhaseResult | PhaseFailure:
        self._send(Run(spec, self._run_id, skip))
        if self._pipe is not None and self._stop_asked is not None:  # asked while the engine was starting
            self._pass_stop_on(self._pipe, self._stop_asked[1])
        points: list[MetricPoint] = []
        saved: list[Checkpoint] = []
        while True:
            message = self._next(points, saved, spec)
            if isinstance(message, Metric):
                points.append(dataclasses.replace(message.point, items=()))
                on_metric(message.point)
            elif isinstance(message, CheckpointSaved):
                saved.append(message.checkpoint)
            elif isinstance(message, Trained):
                if message.lost:
                    self._broken = "engine lost"
                    assert isinstance(message.outcome, PhaseFailure)
                    raise EngineLostError(f"a VeRL process went away: {message.outcome.cause}")
                if not message.usable:
                    assert isinstance(message.outcome, PhaseFailure)
                    self._broken = f"the previous phase failed ({message.outcome.failure_class})"
                return self._with_log(message.outcome)
            else:
                killed: PhaseResult = message
                return killed

    def _next(self, points: list[MetricPoint], saved: list[Checkpoint], spec: PhaseSpec) -> Any:
        """The next message; past the deadline of a stop: what is known so far, and the child killed."""
        while True:
            if self._pipe is not None and self._wait(self._pipe):
                return self._receive_any()
            asked = self._stop_asked
            if asked is not None and time.monotonic() - asked[0] > self._settings.stop_deadline_s:
                logger.warning(
                    "node=%d did not stop within %.0f s: killed", spec.node, self._settings.stop_deadline_s
                )
                if self._child is not None:
                    self._child.kill()
                self.close()
                self._broken = "the previous phase had to be killed"
                return _known(spec, points, saved, asked[1])

    def _with_log(self, outcome: PhaseResult | PhaseFailure) -> PhaseResult | PhaseFailure:
        if isinstance(outcome, PhaseResult):
            return outcome
        log = failures.tail(self._settings.log_path)
        return dataclasses.replace(
            outcome, log_tail=f"{outcome.log_tail}\n--- log ---\n{log}" if log else outcome.log_tail
        )

    # --- pipe ----------------------------------------------------------------------------------------------

    def _send(self, message: Any) -> None:
        try:
            assert self._pipe is not None
            with self._sending:
                self._pipe.send(message)
        except OSError:
            self._raise_lost()

    def _pass_stop_on(self, pipe: Connection, reason: str) -> None:
        with contextlib.suppress(OSError), self._sending:
            pipe.send(Stop(reason, self._run_id))

    def _wait(self, pipe: Connection) -> bool:
        return pipe.poll(_LOOK_S)

    def _receive_any(self) -> Any:
        assert self._pipe is not None
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            self._raise_lost()

    def _receive(self, kind: type, timeout_s: float | None = None) -> Any:
        assert self._pipe is not None
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._wait(self._pipe):
            if deadline is not None and time.monotonic() > deadline:
                self.close()
                raise EngineError(
                    f"VeRL did not start within {timeout_s:.0f} s; see {self._settings.log_path}"
                )
        message = self._receive_any()
        if not isinstance(message, kind):
            raise EngineError(f"expected {kind.__name__} from the VeRL host, got {type(message).__name__}")
        return message

    def _raise_lost(self) -> Any:
        child = self._child
        code = None
        if child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = child.wait(timeout=5)
        log = failures.tail(self._settings.log_path, n_lines=5)
        self.close()
        raise EngineLostError(
            f"the VeRL host process ended (exit code {code}); last log lines: {log or 'none'}"
        )

    def _clean_up(self) -> None:
        """After the child's end: wait for its actors to go, then drop the sockets they leave in /tmp."""
        if not self._job_id:
            return
        import ray

        if ray.is_initialized():
            _wait_until_gone(self._job_id, _GONE_TIMEOUT_S)
        for path in glob.glob(f"/tmp/rl-colocate-zmq-*-{self._socket_scope}-*.sock"):
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._job_id = ""


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    absent = object()
    return [key for key in sorted({*old, *new}) if old.get(key, absent) != new.get(key, absent)]


def _known(spec: PhaseSpec, points: list[MetricPoint], saved: list[Checkpoint], reason: str) -> PhaseResult:
    """A result from what had been streamed before the child was killed."""
    scores = {p.step: p.val_score for p in points if p.val_score is not None and p.step > 0}
    best = max(scores, key=lambda s: (scores[s], -s)) if scores else None
    return PhaseResult(
        node=spec.node,
        status="early_stopped" if reason.startswith("verdict") else "completed",
        stop_reason=f"{reason} (killed: the stop deadline passed)",
        steps_done=max((p.step for p in points), default=0),
        best_score=scores[best] if best is not None else None,
        best_step=best,
        start_score=next((p.val_score for p in points if p.step == 0), None),
        final_score=scores[max(scores)] if scores else None,
        checkpoints=tuple(dataclasses.replace(c, val_score=scores.get(c.step)) for c in saved),
        wall_s=0.0,
        train_wall_s=points[-1].wall_s if points else 0.0,
        gpu_hours=0.0,
        warm=False,
    )


def _wait_until_gone(job_id: str, timeout_s: float) -> None:
    from ray._private import state

    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        actors = state.actors().values()
        if all(a["State"] == "DEAD" for a in actors if a["JobID"] == job_id):
            return
        time.sleep(0.1)
    logger.warning("Ray job %s still has living actors after %.0f s", job_id, timeout_s)
