"""One phase of a `verl_trainable` trial on a leased slot, read point by point."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import EngineLostError, LlmzeroError
from llmzero_ray.launch import actors
from llmzero_ray.records import MetricPoint, PhaseFailure, PhaseResult, PhaseSpec

_WAIT_S = 10.0
"""Maximum wait of one poll for points, in seconds."""
_STOP_S = 600.0
"""Seconds from the request to stop a phase until it is killed. `engine.stop_deadline_s` overrides it."""
_LOOK_S = 0.5
"""Seconds between two attempts to lease a free slot."""


class SlotPhase:
    """Waits for a free slot, leases it, and begins a phase on its runner. Used inside an actor.

    Raises:
        CapacityError: the slot's hardware was lost and does not return.
        EngineLostError: a new runner died before it answered.
    """

    def __init__(self, slots: str, config: SearchConfig, spec: PhaseSpec) -> None:
        self.spec = spec
        self._stop_s = config.engine.stop_deadline_s or _STOP_S
        self._points: deque[MetricPoint] = deque()
        self._cursor, self._is_over = 0, False
        self._ctl = {"concurrency_group": "ctl"}
        self._outcome: PhaseResult | PhaseFailure | None = None
        slot, self._lease = _leased_slot(slots, config.slots.count)
        self._lease_name = actors.names.lease_name(slots, slot)
        pool = actors.runner_pool.RunnerPool(
            config.name, config.storage, lambda: config, fixed_capacity=False, held_slots=slots
        )
        try:
            asyncio.run(pool.start(slot))
            self._runner = pool.runner(slot)
            self._run = self._runner.run.options(name=f"phase-{spec.search}").remote(spec)
        except BaseException as error:
            self._give_back()
            if isinstance(error, ray.exceptions.RayError):
                raise EngineLostError(f"the runner of the slot died: {error}") from error
            raise

    def next_point(self) -> MetricPoint | None:
        """Wait for the next step's point. None if the phase has ended.

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
                found, over = (), True  # the run's own result says why
            self._cursor += len(found)
            self._points.extend(found)
            self._is_over = bool(over or (ended and not found))
        return self._points.popleft() if self._points else None

    def outcome(self) -> PhaseResult | PhaseFailure:
        """Wait for the end of the phase, end the lease, and return the outcome.

        Raises:
            EngineLostError: the runner died.
            EngineError: the engine cannot start.
        """
        if self._outcome is None:
            try:
                self._outcome = ray.get(self._run)
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, LlmzeroError) else error from None
            except ray.exceptions.RayActorError as error:
                raise EngineLostError(f"the runner of the slot died: {error}") from error
            finally:
                self._give_back()
        return self._outcome

    def end(self, reason: str) -> None:
        """End the phase at its next step if it is running, and end the lease."""
        if self._lease is None:
            return
        stop = self._runner.stop.options(**self._ctl)
        try:
            ray.get(stop.remote(self.spec.node, self.spec.attempt, reason), timeout=self._stop_s)
            ray.get(self._run, timeout=self._stop_s)
        except ray.exceptions.GetTimeoutError:
            ray.kill(self._runner)
        except ray.exceptions.RayError:
            pass
        finally:
            self._give_back()

    def _give_back(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            actors.names.end_actor(self._lease_name, only=lease)


def _leased_slot(slots: str, count: int) -> tuple[int, Any]:
    """Wait for a slot that no other trial uses, and return (slot, lease)."""
    names = actors.names
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    while True:
        for slot in range(count):
            options = names.actor_options(names.lease_name(slots, slot), lifetime=None)
            with contextlib.suppress(ValueError):  # the name is taken
                return slot, ray.remote(names.Lease).options(**options, scheduling_strategy=here).remote()
        time.sleep(_LOOK_S)
