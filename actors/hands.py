"""Carries out the core's commands: hands phases to runners, stops them; passes on what others carry out.

Everything slow happens off the coordinator's loop, every outcome comes back as an event, and everything may
be done twice. Not here: deciding (llmzero_ray.coordinator), agents (asking.py), lost runners (losses.py), the
end (finals.py).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from llmzero_ray import commands as cmd
from llmzero_ray import events as ev
from llmzero_ray.commands import Command
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.failpoints import reach

from .asking import Asking
from .finals import Finals
from .keeper import Keeper

if TYPE_CHECKING:
    from .coordinator import SearchCoordinator

logger = logging.getLogger("llmzero_ray.actors.hands")
_KILL_AFTER = 2.0
"""Times `engine.stop_deadline_s`: the engine itself ends a phase that does not stop within one of them."""


class Hands:
    """The coordinator's helping hands; each command is a task of its own on its loop."""

    def __init__(self, coordinator: SearchCoordinator) -> None:
        self._it = coordinator
        self._asking, self._keeper = Asking(coordinator), Keeper(coordinator)
        finals = Finals(coordinator)
        self.watch, self.prefetch = self._asking.watch, self._asking.prefetch.watch
        self._how: dict[type[Command], Callable[[Any], Awaitable[None]]] = {
            cmd.Propose: self._asking.ask,
            cmd.Analyze: self._asking.ask,
            cmd.PushIncumbent: self._asking.push_incumbent,
            cmd.RunPhase: self._run,
            cmd.StopPhase: self._stop,
            cmd.KillRunner: self._kill,
            cmd.FitSlots: coordinator.losses.fit,
            cmd.CloseSlot: coordinator.losses.close,
            cmd.DeleteCheckpoints: self._keeper.delete,
            cmd.Evaluate: finals.score,
            cmd.WriteOutcome: finals.write_outcome,
            cmd.End: self._end,
        }

    async def rewatch(self) -> None:
        """Tell a stopper that lost its memory what runs and whom it has to beat."""
        self._asking.forget()
        for command in self._it.core.outstanding():
            if isinstance(command, cmd.PushIncumbent):
                await self.do(command)
        for run in self._it.core.runs.values():
            if run.active and run.started:
                self.watch(run.slot, run.node, run.attempt)

    async def do(self, command: Command) -> None:
        """Carry out one command."""
        await self._how[type(command)](command)

    async def _end(self, command: cmd.End) -> None:
        await self._it.end(at_once=command.exit_code != 0 or self._it.core.interrupted is not None)

    async def _kill(self, command: cmd.KillRunner) -> None:
        place = (command.slot, command.node, command.phase_attempt)
        self._it.losses.kill(*place, command.reason, "resource")

    async def _run(self, command: cmd.RunPhase) -> None:
        import ray

        spec, slot = command.spec, command.slot
        await self._keeper.make_room()
        if not await self._keeper.is_sound(spec):
            return None  # the core plans it anew
        try:
            await self._it.slots.health(slot)  # a runner that died while idle costs the phase nothing
        except ray.exceptions.RayError as error:
            return await self._it.losses.lost(slot, None, 0, str(error))
        await asyncio.to_thread(self._it.storage.write_spec, spec)
        source = f"phase:{spec.node}"
        started = ev.PhaseStarted(node=spec.node, slot=slot, phase_attempt=spec.attempt)
        await self._it.post(dataclasses.replace(started, source=source, attempt=spec.attempt, sequence=1))
        run = self._it.core.runs[spec.node]
        if run.stage != "planned" or run.attempt != spec.attempt or not run.started:
            return None  # called off meanwhile
        self.watch(slot, spec.node, spec.attempt)
        reach("phase.handed_over")
        try:
            name = f"phase-{spec.node} attempt={spec.attempt} parent={spec.parent}"
            outcome = await self._it.slots.runner(slot).run.options(name=name).remote(spec)
        except (ray.exceptions.RayError, LlmzeroError) as error:
            return await self._it.losses.phase_lost(slot, spec.node, spec.attempt, error)
        reach("phase.answered")
        await self._it.post(ev.phase_ended(spec.node, spec.attempt, outcome))
        return await self._keeper.make_room()

    async def _stop(self, command: cmd.StopPhase) -> None:
        """Ask the runner; a phase that does not end at all is killed with its runner."""
        import ray

        stop = self._it.slots.runner(command.slot).stop.options(concurrency_group="ctl")
        asked = command.deadline_s
        deadline_s = self._it.core.config.engine.stop_deadline_s * _KILL_AFTER if asked is None else asked
        began = time.monotonic()
        try:
            await asyncio.wait_for(
                stop.remote(command.node, command.phase_attempt, command.reason), deadline_s
            )
        except ray.exceptions.RayError:
            logger.info("node=%d: its runner did not hear the stop", command.node)
            return  # its loss is noticed where the phase is waited for
        except TimeoutError:
            logger.warning("node=%d: its runner does not answer", command.node)
        await asyncio.sleep(max(0.0, began + deadline_s - time.monotonic()))
        run = self._it.core.runs[command.node]
        if run.stage == "planned" and run.attempt == command.phase_attempt and not self._it.ending:
            why = f"it did not stop within {deadline_s:.0f} s and was killed"
            # What a person did not want to wait for has not failed.
            self._it.losses.kill(
                command.slot,
                command.node,
                command.phase_attempt,
                why,
                "timeout" if asked is None else "resource",
            )
