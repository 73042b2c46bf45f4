"""Carries out the core's commands: hands phases to runners, stops them, scores policies, writes the outcome.

Everything slow happens off the coordinator's loop, every outcome comes back as an event, and everything may
be done twice. Not here: deciding (llmzero_ray.coordinator), agents (asking.py), lost runners (losses.py).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING

from llmzero_ray import events as ev
from llmzero_ray.errors import EngineError, EngineLostError, LlmzeroError
from llmzero_ray.records import Command, Event, PhaseFailure, PhaseResult
from llmzero_ray.series import mean_accuracy, write_items

from .asking import Asking

if TYPE_CHECKING:
    from .coordinator import SearchCoordinator

logger = logging.getLogger("llmzero_ray.actors.hands")
_KILL_AFTER = 2.0
"""Times `engine.stop_deadline_s`: the engine itself ends a phase that does not stop within one of them."""


class Hands:
    """The coordinator's helping hands; each command is a task of its own on its loop."""

    def __init__(self, coordinator: SearchCoordinator) -> None:
        self._it = coordinator
        self._asking = Asking(coordinator)
        self.watch = self._asking.watch

    async def rewatch(self) -> None:
        """Tell a stopper that lost its memory what runs and whom it has to beat."""
        self._asking.forget()
        for command in self._it.core.outstanding():
            if isinstance(command, ev.PushIncumbent):
                await self.do(command)
        for run in self._it.core.runs.values():
            if run.active and run.started:
                self.watch(run.slot, run.node, run.attempt)

    async def do(self, command: Command) -> None:
        """Carry out one command."""
        if isinstance(command, ev.Propose | ev.Analyze):
            await self._asking.ask(command)
        elif isinstance(command, ev.PushIncumbent):
            await self._asking.push_incumbent(command)
        elif isinstance(command, ev.RunPhase):
            await self._run(command)
        elif isinstance(command, ev.StopPhase):
            await self._stop(command)
        elif isinstance(command, ev.Evaluate):
            await self._evaluate(command)
        elif isinstance(command, ev.WriteOutcome):
            await self._write_outcome()

    async def _run(self, command: ev.RunPhase) -> None:
        import ray

        spec, slot = command.spec, command.slot
        try:
            await self._it.slots.health(slot)  # a runner that died while idle costs the phase nothing
        except ray.exceptions.RayError as error:
            return await self._it.losses.lost(slot, None, 0, str(error))
        await asyncio.to_thread(self._it.storage.write_spec, spec)
        source = f"phase:{spec.node}"
        started = ev.PhaseStarted(node=spec.node, slot=slot, phase_attempt=spec.attempt)
        await self._it.post(dataclasses.replace(started, source=source, attempt=spec.attempt, sequence=1))
        self.watch(slot, spec.node, spec.attempt)
        try:
            name = f"phase-{spec.node} attempt={spec.attempt} parent={spec.parent}"
            outcome = await self._it.slots.runner(slot).run.options(name=name).remote(spec)
        except (ray.exceptions.RayError, LlmzeroError) as error:
            return await self._it.losses.phase_lost(slot, spec.node, spec.attempt, error)
        return await self._it.post(phase_ended(spec.node, spec.attempt, outcome))

    async def _stop(self, command: ev.StopPhase) -> None:
        """Ask the runner; a phase that does not end at all is killed with its runner."""
        import ray

        stop = self._it.slots.runner(command.slot).stop.options(concurrency_group="ctl")
        deadline_s = self._it.core.config.engine.stop_deadline_s * _KILL_AFTER
        try:
            await stop.remote(command.node, command.phase_attempt, command.reason)
        except ray.exceptions.RayError:
            logger.info("node=%d: its runner did not hear the stop", command.node)
            return  # its loss is noticed where the phase is waited for
        await asyncio.sleep(deadline_s)
        run = self._it.core.runs[command.node]
        if run.stage == "planned" and run.attempt == command.phase_attempt and not self._it.ending:
            self._it.losses.kill(command.slot, command.node, command.phase_attempt, deadline_s)

    async def _evaluate(self, command: ev.Evaluate) -> None:
        import ray

        runner, tokens = self._it.slots.runner(command.slot), self._it.core.config.eval.max_response_length
        source = f"final:{command.what}"
        try:
            items = await runner.evaluate.remote(command.adapter, self._it.task.test, tokens)
        except (ray.exceptions.RayActorError, EngineLostError) as error:
            return await self._it.losses.lost(command.slot, None, 0, str(error))
        except (ray.exceptions.RayError, EngineError) as error:
            reason = str(getattr(error, "cause", None) or error)
            failed = ev.FinalFailed(what=command.what, reason=reason, source=source)
            return await self._it.post(failed)
        await asyncio.to_thread(write_items, self._it.storage.paths.final(command.what), items)
        mean, standard_error = mean_accuracy(items)
        scored = ev.FinalScored(
            what=command.what,
            split=command.split,
            n=len(items),
            mean=mean,
            standard_error=standard_error,
            adapter=command.adapter,
            node=command.node,
            step=command.step,
            source=source,
        )
        return await self._it.post(scored)

    async def _write_outcome(self) -> None:
        from llmzero_ray.report import write_outcome

        try:
            problem = (await asyncio.to_thread(write_outcome, self._it.storage)).problem
        except Exception as error:
            logger.exception("the outcome could not be written")
            problem = f"{type(error).__name__}: {error}"
        await self._it.post(ev.OutcomeWritten(problem=problem))


def phase_ended(node: int, attempt: int, outcome: PhaseResult | PhaseFailure) -> Event:
    """The event of a phase's end; a second delivery of it is known as one."""
    event: Event
    if isinstance(outcome, PhaseFailure):
        event = ev.PhaseFailed(node=node, phase_attempt=attempt, failure=outcome)
    else:
        event = ev.PhaseFinished(node=node, phase_attempt=attempt, result=outcome)
    return dataclasses.replace(event, source=f"phase:{node}", attempt=attempt, sequence=2)
