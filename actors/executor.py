"""Command executor with one handler per command. Handlers post their results as events.

Every command is a task of its own, is idempotent, and does slow work outside the coordinator's event loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from llmzero_ray.coordinator import CoordinatorCore
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.commands import Command
from llmzero_ray.storage import SearchStorage
from llmzero_ray.utils.failpoints import reach

from .agent_calls import AgentCalls
from .checkpoint_retention import CheckpointRetention
from .event_loop import Post
from .final_evaluation import FinalEvaluator
from .monitor import phase_limits
from .runner_pool import RunnerPool
from .runner_recovery import RunnerRecovery
from .stopper_client import StopperClient

logger = logging.getLogger("llmzero_ray.actors.executor")
_KILL_AFTER = 2.0
"""Multiple of `engine.stop_deadline_s` after which the runner is killed. The engine itself ends a phase that
does not stop within one deadline."""


class CommandExecutor:
    """Executes the commands of one search. The callback `end` closes the search; its argument is "at
    once"."""

    def __init__(
        self,
        core: CoordinatorCore,
        post: Post,
        storage: SearchStorage,
        *,
        agents: AgentCalls,
        stopper: StopperClient,
        pool: RunnerPool,
        recovery: RunnerRecovery,
        checkpoints: CheckpointRetention,
        finals: FinalEvaluator,
        end: Callable[[bool], Coroutine[Any, Any, None]],
    ) -> None:
        self._core, self._post, self._storage = core, post, storage
        self._stopper = stopper
        self._pool, self._recovery, self._checkpoints, self._end = pool, recovery, checkpoints, end
        self._handlers: dict[type[Command], Callable[[Any], Coroutine[Any, Any, None]]] = {
            cmd.Propose: agents.call,
            cmd.Analyze: agents.call,
            cmd.PushIncumbent: stopper.set_incumbent,
            cmd.RunPhase: self._run_phase,
            cmd.StopPhase: self._stop_phase,
            cmd.KillRunner: self._kill_runner,
            cmd.FitSlots: recovery.fit,
            cmd.CloseSlot: recovery.close,
            cmd.DeleteCheckpoints: checkpoints.delete,
            cmd.Evaluate: finals.evaluate,
            cmd.WriteOutcome: finals.write_outcome,
            cmd.End: self._end_search,
        }

    async def execute(self, command: Command) -> None:
        """Execute one command."""
        await self._handlers[type(command)](command)

    async def _end_search(self, command: cmd.End) -> None:
        await self._end(command.exit_code != 0 or self._core.interrupted is not None)

    async def _run_phase(self, command: cmd.RunPhase) -> None:
        """Train a phase on the slot's runner, watched by the stopper, until it ends or its runner is lost."""
        import ray

        spec, slot = command.spec, command.slot
        await self._checkpoints.make_room()
        if not self._pool.has_runner(slot):
            return None  # the runner is being closed; the core starts the phase on the next one
        try:
            health = await self._pool.health(slot)  # no attempt is lost if the runner died while idle
        except ray.exceptions.RayError as error:
            return await self._recovery.lost(slot, None, 0, str(error))
        # A phase that already trains, or has ended, no longer needs the adapter that it resumed from.
        begun = health["current"] == (spec.node, spec.attempt)
        ended = await asyncio.to_thread(
            self._storage.result, spec.node, spec.attempt, since=spec.first_attempt
        )
        begun = begun or ended is not None
        if not begun and not await self._checkpoints.is_sound(spec):
            return None  # the core plans it again
        if not begun and spec.attempt and not spec.restore:  # earlier attempts started elsewhere
            await asyncio.to_thread(self._storage.drop_full_checkpoints, spec.node, spec.attempt)
        await asyncio.to_thread(self._storage.write_spec, spec)
        source = f"phase:{spec.node}"
        started = ev.PhaseStarted(node=spec.node, slot=slot, phase_attempt=spec.attempt)
        await self._post(dataclasses.replace(started, source=source, attempt=spec.attempt, sequence=1))
        run = self._core.runs[spec.node]
        if run.stage != "planned" or run.attempt != spec.attempt or not run.started:
            return None  # cancelled meanwhile
        self._stopper.watch(slot, spec.node, spec.attempt)
        reach("phase.handed_over")
        try:
            name = f"phase-{spec.node} attempt={spec.attempt} parent={spec.parent}"
            outcome = await self._pool.runner(slot).run.options(name=name).remote(spec)
        except (ray.exceptions.RayError, LlmzeroError) as error:
            return await self._recovery.phase_lost(slot, spec.node, spec.attempt, error)
        reach("phase.answered")
        await self._post(ev.phase_ended(spec.node, spec.attempt, outcome))
        return await self._checkpoints.make_room()

    async def _stop_phase(self, command: cmd.StopPhase) -> None:
        """Request a stop from the runner. A phase that does not end in time is killed with its runner."""
        import ray

        stop = self._pool.runner(command.slot).stop.options(concurrency_group="ctl")
        limit_s = command.deadline_s
        own_s = phase_limits(self._core, self._core.runs[command.node]).stop_s * _KILL_AFTER
        deadline_s = own_s if limit_s is None else limit_s
        began = time.monotonic()
        try:
            await asyncio.wait_for(
                stop.remote(command.node, command.phase_attempt, command.reason), deadline_s
            )
        except ray.exceptions.RayError:
            logger.info("node=%d: its runner was lost before it could stop", command.node)
            return  # the loss is handled where the phase is awaited
        except TimeoutError:
            logger.warning("node=%d: its runner does not answer", command.node)
        await asyncio.sleep(max(0.0, began + deadline_s - time.monotonic()))
        run = self._core.runs[command.node]
        if run.stage == "planned" and run.attempt == command.phase_attempt and not self._pool.closing:
            self._recovery.kill(
                command.slot,
                command.node,
                command.phase_attempt,
                f"it did not stop within {deadline_s:.0f} s and was killed",
                # A phase killed by the user's deadline has not failed.
                "timeout" if limit_s is None else "resource",
            )

    async def _kill_runner(self, command: cmd.KillRunner) -> None:
        phase = (command.slot, command.node, command.phase_attempt)
        self._recovery.kill(*phase, command.reason, "resource")
