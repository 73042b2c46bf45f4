"""One phase on a leased slot, point by point, as a trial of `verl_trainable` trains it."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

import ray

from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import EngineLostError, LlmzeroError
from llmzero_ray.launch import actors
from llmzero_ray.records import MetricPoint, PhaseFailure, PhaseResult, PhaseSpec

_WAIT_S = 10.0
"""Maximum wait of one poll for points, in seconds."""
_STOP_S = 600.0
"""Seconds until a phase with a requested stop is killed, unless `engine.stop_deadline_s` says otherwise."""


class SlotPhase:
    """Leases a slot, waiting until one is free, and begins a phase on it. Used inside an actor.

    Raises:
        CapacityError: the slot's hardware was lost and does not return.
        EngineLostError: the actor that leases slots of that name has died.
    """

    def __init__(self, slots: str, config: SearchConfig, spec: PhaseSpec) -> None:
        names = actors.names
        self.spec = spec
        self._stop_s = config.engine.stop_deadline_s or _STOP_S
        self._points: deque[MetricPoint] = deque()
        self._cursor, self._is_over = 0, False
        try:
            self._lender = ray.get_actor(names.lender_name(slots), namespace=names.NAMESPACE)
        except ValueError:
            raise EngineLostError(
                f"the slots {slots} were given back; a trial runs inside the Tuner's fit()."
            ) from None
        me = ray.get_runtime_context().current_actor
        self._slot, self._runner = _answer(self._lender.lend.remote(me))
        self._borrowed = True
        self._ctl = {"concurrency_group": "ctl"}
        self._outcome: PhaseResult | PhaseFailure | None = None
        self._run: Any = None
        try:
            _answer(self._runner.use.remote(config.to_json(), config.storage))
            self._run = self._runner.run.options(name=f"phase-{spec.search}").remote(spec)
        except BaseException:
            self._give_back(kill=True)
            raise

    def next_point(self) -> MetricPoint | None:
        """Point of the next step, once it is available. None if the phase has ended.

        Raises:
            EngineLostError: the runner died.
            EngineError: the engine cannot start.
        """
        while not self._points and not self._is_over:
            ended = bool(ray.wait([self._run], timeout=0)[0])
            wait_s = 0.0 if ended else _WAIT_S
            poll = self._runner.poll.options(**self._ctl)
            try:
                found, over = ray.get(
                    poll.remote(self.spec.node, self.spec.attempt, self._cursor, wait_s=wait_s)
                )
            except ray.exceptions.RayError:
                found, over = (), True  # the run itself says why
            self._cursor += len(found)
            self._points.extend(found)
            self._is_over = bool(over or (ended and not found))
        return self._points.popleft() if self._points else None

    def outcome(self) -> PhaseResult | PhaseFailure:
        """Outcome of the phase, once it has ended. The lease ends then.

        Raises:
            EngineLostError: the runner died.
            EngineError: the engine cannot start.
        """
        if self._outcome is None:
            try:
                self._outcome = _answer(self._run)
            finally:
                self._give_back()
        return self._outcome

    def end(self, reason: str) -> None:
        """End the phase at its next step if it is running, and end the lease."""
        if not self._borrowed:
            return
        stop = self._runner.stop.options(**self._ctl)
        try:
            ray.get(stop.remote(self.spec.node, self.spec.attempt, reason), timeout=self._stop_s)
            ray.get(self._run, timeout=self._stop_s)
        except ray.exceptions.GetTimeoutError:
            self._give_back(kill=True)
        except ray.exceptions.RayError:
            self._give_back()
        else:
            self._give_back()

    def _give_back(self, *, kill: bool = False) -> None:
        if self._borrowed:
            self._borrowed = False
            with contextlib.suppress(ray.exceptions.RayError):  # a lender that is gone has given all back
                ray.get(self._lender.give_back.remote(self._slot, kill=kill))


def _answer(reference: Any) -> Any:
    """Result of an actor call. Its own errors are raised as they were there."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, LlmzeroError) else error from None
    except ray.exceptions.RayActorError as error:
        raise EngineLostError(f"the runner of the slot died: {error}") from error
