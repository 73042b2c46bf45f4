"""What to do when a runner is gone: take what it left, say so, and put a fresh one in its place.

Not here: whether the phase is repeated (the core decides), noticing (hands.py).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, Any

from llmzero_ray import commands as cmd
from llmzero_ray import events as ev
from llmzero_ray.errors import CapacityError, EngineError, EngineLostError, EngineVersionError, LlmzeroError
from llmzero_ray.records import FailureClass
from llmzero_ray.series import salvage

if TYPE_CHECKING:
    from .coordinator import SearchCoordinator

logger = logging.getLogger("llmzero_ray.actors.losses")


class Losses:
    """Lost runners of one search."""

    def __init__(self, coordinator: SearchCoordinator) -> None:
        self._it = coordinator
        self._killed: dict[tuple[int, int], tuple[str, FailureClass]] = {}
        self._cannot_start: set[int] = set()

    async def phase_lost(self, slot: int, node: int, attempt: int, error: Exception) -> None:
        """The call that trained a phase did not come back with an outcome.

        Raises:
            LlmzeroError: nothing that a fresh runner could mend; the search is aborted with it.
        """
        if isinstance(error, LlmzeroError) and not isinstance(error, EngineError):
            raise _plain(error)
        if isinstance(error, EngineError) and not isinstance(error, EngineLostError):
            # It cannot start: once may be bad luck, twice or a wrong version is for a person to mend.
            if isinstance(error, EngineVersionError) or slot in self._cannot_start:
                raise _plain(error)
            self._cannot_start.add(slot)
        await self.lost(slot, node, attempt, _reason(error))

    async def lost(self, slot: int, node: int | None, attempt: int, reason: str) -> None:
        """A runner is gone, while it trained `node` or while it was idle or scoring."""
        if self._it.ending:  # it was ours to end
            return
        storage, slots = self._it.storage, self._it.core.config.slots
        left, restart = None, 0
        if node is not None:
            outcome = await asyncio.to_thread(storage.result, node, attempt)
            if outcome is not None:  # it had ended and only its answer was lost
                await self._it.post(ev.phase_ended(node, attempt, outcome))
                node = None
            else:
                left = await asyncio.to_thread(
                    salvage, storage, node, reason, n_gpus=slots.n_gpus, attempt=attempt
                )
                restart = await asyncio.to_thread(storage.restart_step, node)
                if (node, attempt) in self._killed:
                    reason, cls = self._killed[node, attempt]
                    left = dataclasses.replace(left, failure_class=cls, cause=reason)
        logger.warning("slot=%d node=%s runner lost: %s", slot, node, reason)
        lost = ev.RunnerLost(
            slot=slot, node=node, phase_attempt=attempt, reason=reason, salvaged=left, restart_step=restart
        )
        await self._it.post(lost)
        await self.replace(slot)

    async def attach(self, slot: int) -> None:
        """After a restart: find the slot's runner still at work, or put one there."""
        core = self._it.core
        state, answers = core.slots[slot], await self._it.slots.find(slot)
        if answers and not state.ready:
            await self._it.post(ev.SlotReady(slot=slot))
        elif not answers and not state.ready:
            await self.replace(slot)
        elif not answers:
            run = None if state.node is None else core.runs[state.node]
            node, attempt = (run.node, run.attempt) if run is not None and run.started else (None, 0)
            await self.lost(slot, node, attempt, "it was gone when the coordinator came back")

    async def replace(self, slot: int) -> None:
        """A fresh runner; while other slots work, hardware that is away may take its time."""
        while not self._it.ending and slot < self._it.core.config.slots.count:
            try:
                await self._it.slots.start(slot)
            except CapacityError:
                others = [other for other in self._it.core.slots if other.ready and other.index != slot]
                if not others:
                    raise
                logger.warning("slot=%d: its hardware is away; %d other slot(s) go on", slot, len(others))
                continue
            await self._it.post(ev.SlotReady(slot=slot))
            return

    async def fit(self, command: cmd.FitSlots) -> None:
        """See that each of the first slots has a runner: more of them may be wanted than before."""
        missing = [slot for slot in range(command.count) if not self._it.core.slots[slot].ready]
        await asyncio.gather(*(self.replace(slot) for slot in missing if not self._it.slots.has(slot)))

    async def close(self, command: cmd.CloseSlot) -> None:
        """Give an idle slot back."""
        await self._it.slots.close(command.slot)
        await self._it.post(ev.SlotClosed(slot=command.slot))

    def kill(self, slot: int, node: int, attempt: int, reason: str, failure_class: FailureClass) -> None:
        """End a runner whose phase does not end; the call that trains it then fails and comes here.

        With `timeout` the phase has failed, with `resource` it is as if its hardware was lost.
        """
        import ray

        self._killed[node, attempt] = (reason, failure_class)
        ray.kill(self._it.slots.runner(slot))


def _plain(error: Any) -> LlmzeroError:
    """The error as it was raised, without Ray's wrapping."""
    cause = getattr(error, "cause", None)
    found: LlmzeroError = cause if isinstance(cause, LlmzeroError) else error
    return found


def _reason(error: Exception) -> str:
    lines = [line for line in str(_plain(error)).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
