"""Recovery from lost runners: journals the saved part of a lost phase, and starts a new runner in its slot.

A runner is lost when its process or machine dies, or when it is killed because its phase hangs or does not
stop. The core decides whether the phase is retried.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Any

from llmzero_ray.coordinator import CoordinatorCore
from llmzero_ray.engines.base import card_fault
from llmzero_ray.errors import CapacityError, EngineError, EngineLostError, EngineVersionError, LlmzeroError
from llmzero_ray.records import FailureClass, PhaseFailure
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import lost_phase, with_tokens
from llmzero_ray.utils.text import first_words

from .event_loop import Post
from .runner_pool import RunnerPool

logger = logging.getLogger("llmzero_ray.actors.runner_recovery")
_START_TRIES = 3
"""Maximum runners of one slot that may die before they answer. After that the search is aborted."""


class RunnerRecovery:
    """Keeps one runner in every slot in use."""

    def __init__(self, core: CoordinatorCore, post: Post, pool: RunnerPool, storage: SearchStorage) -> None:
        self._core, self._post, self._pool, self._storage = core, post, pool, storage
        self._killed: dict[tuple[int, int], tuple[str, FailureClass]] = {}
        """(node, attempt) -> why its runner was killed, and the class of its failure."""
        self._cannot_start: set[int] = set()
        """Slots whose engine failed to start once."""
        self._replacing: set[int] = set()

    # --- a coordinator takes over ---------------------------------------------------------------------------

    async def attach(self) -> bool:
        """Find the runners that an earlier coordinator started, and journal those that were lost meanwhile.
        Slots that it was closing are closed first: one of them may be wanted in place of a lost one.

        Returns whether any runner answers.
        """
        wanted = self._wanted()
        surplus = [slot.index for slot in self._core.slots if slot.ready and slot.index not in wanted]
        if self.has_work:
            await asyncio.gather(*(self._close(slot) for slot in surplus))
        return any(await asyncio.gather(*(self._attach(slot) for slot in self._wanted())))

    async def _attach(self, slot: int) -> bool:
        state, answers = self._core.slots[slot], await self._pool.find(slot)
        if answers and not state.ready:
            await self._post(ev.SlotReady(slot=slot))
        elif not answers and state.ready:
            run = None if state.node is None else self._core.runs[state.node]
            node, attempt = (run.node, run.attempt) if run is not None and run.started else (None, 0)
            await self._report(slot, node, attempt, "it was gone when the coordinator came back")
        return answers

    @property
    def has_work(self) -> bool:
        """Whether anything may still be trained or scored. Otherwise no runners are needed."""
        return self._core.stage in ("searching", "measuring") or self._core.extension_wanted

    async def fill(self) -> None:
        """Start a runner in every slot that has none."""
        missing = [slot for slot in self._wanted() if not self._core.slots[slot].ready]
        await asyncio.gather(*(self.replace(slot) for slot in missing))

    def _wanted(self) -> list[int]:
        return self._core.wanted_slots if self.has_work else []

    # --- a runner is lost -----------------------------------------------------------------------------------

    async def phase_lost(self, slot: int, node: int, attempt: int, error: Exception) -> None:
        """Handle a training call that failed without an outcome.

        Raises:
            LlmzeroError: a new runner would fail in the same way; the search is aborted with this error.
        """
        if isinstance(error, LlmzeroError) and not isinstance(error, EngineError):
            raise _cause_of(error)
        if isinstance(error, EngineError) and not isinstance(error, EngineLostError):
            # The engine cannot start. One failure may be transient; two, or a wrong version, need the user.
            if isinstance(error, EngineVersionError) or slot in self._cannot_start:
                raise _cause_of(error)
            self._cannot_start.add(slot)
        reason = _first_line(error)
        avoided = None
        if card_fault(str(error)) is not None:
            avoided = await self._pool.avoidable_machine_of(slot)
            reason += f"; node {avoided} is used no more" if avoided else "; no other machine is free for it"
        await self.lost(slot, node, attempt, reason, avoided=avoided)

    async def lost(
        self, slot: int, node: int | None, attempt: int, reason: str, *, avoided: str | None = None
    ) -> None:
        """Handle a lost runner that was training `node`, or was idle or scoring if `node` is None. `avoided`
        is the id of the slot's machine if the search must no longer use it."""
        if self._pool.closing:  # not lost, but closed
            return
        await self._report(slot, node, attempt, reason, avoided)
        await self.replace(slot)

    async def _report(
        self, slot: int, node: int | None, attempt: int, reason: str, avoided: str | None = None
    ) -> None:
        """Journal the loss, and the result or the saved part of the phase."""
        storage, n_gpus = self._storage, self._core.config.slots.n_gpus
        left: PhaseFailure | None = None
        restart = 0
        if node is not None:
            since = self._core.runs[node].first_attempt
            outcome = await asyncio.to_thread(storage.result, node, attempt, since=since)
            if outcome is not None:  # the phase had ended, and only the reply was lost
                await self._post(ev.phase_ended(node, attempt, outcome))
                node = None
            else:
                left = await asyncio.to_thread(
                    lost_phase, storage, node, reason, n_gpus=n_gpus, attempt=attempt
                )
                spec = self._core.runs[node].spec
                if spec is not None:
                    left = await asyncio.to_thread(with_tokens, storage, spec, left)
                restart = await asyncio.to_thread(storage.restart_step, node, attempt)
                if (node, attempt) in self._killed:
                    reason, failure_class = self._killed[node, attempt]
                    left = dataclasses.replace(left, failure_class=failure_class, cause=reason)
        logger.warning("slot=%d node=%s runner lost: %s", slot, node, reason)
        lost = ev.RunnerLost(
            slot=slot,
            node=node,
            phase_attempt=attempt,
            reason=reason,
            salvaged=left,
            restart_step=restart,
            avoided=avoided,
        )
        await self._post(lost)

    async def replace(self, slot: int) -> None:
        """Start a new runner in a slot. While other slots have runners, it waits for hardware without limit.

        Raises:
            CapacityError: the hardware is not available in time, and no other slot has a runner.
            LlmzeroError: several runners died before they answered.
        """
        if slot in self._replacing:
            return
        self._replacing.add(slot)
        try:
            await self._replace(slot)
        finally:
            self._replacing.discard(slot)

    async def _replace(self, slot: int) -> None:
        import ray

        n_died = 0
        while not self._pool.closing and slot in self._wanted():
            try:
                if await self._pool.start(slot):
                    await self._post(ev.SlotReady(slot=slot))
                    return
            except CapacityError:
                others = [other for other in self._core.slots if other.ready and other.index != slot]
                if not others:
                    raise
                logger.warning("slot=%d: its hardware is gone; %d other slot(s) continue", slot, len(others))
            except ray.exceptions.RayError as error:
                n_died += 1
                logger.warning("slot=%d: a fresh runner died: %s", slot, _first_line(error))
                if n_died >= _START_TRIES and not self._pool.closing:
                    raise LlmzeroError(
                        f"slot {slot}: {n_died} runners died before they answered, the last one: "
                        f"{_first_line(error)}"
                    ) from error

    # --- slots come and go ----------------------------------------------------------------------------------

    async def fit(self, command: cmd.FitSlots) -> None:
        """Start runners for a higher `slots.count`, or stop waiting for hardware after a lower one."""
        wanted = self._wanted()
        for slot in self._core.slots[command.count :]:
            if slot.index not in wanted:
                await self._pool.stop_waiting(slot.index)
        await self.fill()

    async def close(self, command: cmd.CloseSlot) -> None:
        """Release an idle slot. If it, or another slot without a runner, is wanted by then, that one gets a
        new runner."""
        await self._close(command.slot)
        await self.fill()

    async def _close(self, slot: int) -> None:
        await self._pool.close(slot)
        await self._post(ev.SlotClosed(slot=slot))

    def kill(self, slot: int, node: int, attempt: int, reason: str, failure_class: FailureClass) -> None:
        """Kill a runner whose phase does not end. Its training call then fails, and `phase_lost` handles the
        loss. Class `timeout` makes the phase a failure; `resource` counts as lost hardware."""
        self._killed[node, attempt] = (reason, failure_class)
        self._pool.kill(slot)


def _cause_of(error: Any) -> LlmzeroError:
    """The error as it was raised, without Ray's wrapping."""
    cause = getattr(error, "cause", None)
    found: LlmzeroError = cause if isinstance(cause, LlmzeroError) else error
    return found


def _first_line(error: Exception) -> str:
    line = next((one for one in str(_cause_of(error)).splitlines() if one.strip()), type(error).__name__)
    # Drop Ray's list of guesses about what killed a worker.
    return first_words(line.partition(" There are some potential root causes")[0], 300)
