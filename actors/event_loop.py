"""Event loop of a coordinator: write an event to the journal, apply it to the core, then execute the
resulting commands.

Every event of a search goes through `EventLoop.post`. Commands and background work run as supervised tasks:
an exception in one of them is logged or aborts the search.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

from llmzero_ray.coordinator import replay
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.journal import Journal, trust
from llmzero_ray.records import Event
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.commands import Command
from llmzero_ray.storage import SearchStorage
from llmzero_ray.utils.failpoints import reach

from .threads import Threads

Post: TypeAlias = Callable[[Event], Coroutine[Any, Any, None]]
"""Callback that makes an event durable and acts on it. It returns when the event is durable."""
Judge: TypeAlias = Callable[[], Event | None]
"""Callback that makes an event, or None, from the current state."""
Execute: TypeAlias = Callable[[Command], Coroutine[Any, Any, None]]

logger = logging.getLogger("llmzero_ray.actors.event_loop")
_FAILING_S = 60.0
"""Seconds for which a periodic task may keep failing before the search is aborted with its error."""
_REPORT_S = 60.0
"""Minimum seconds between two journalled failures of one periodic task."""


class EventLoop:
    """Journal, core and tasks of one search. The constructor replays the journal.

    Raises:
        JournalError: the journal is damaged.
    """

    def __init__(self, storage: SearchStorage) -> None:
        address = storage.journal_address()
        if isinstance(address, str):
            trust(address)
        self._journal = Journal(address)
        self.core = replay(self._journal.history, storage.paths.root)
        self.events = self._journal.history
        """All events so far."""
        self.epoch = self._journal.epoch
        self.failure: LlmzeroError | None = None
        """Reason why the journal can no longer be written."""
        self._turn = asyncio.Lock()
        self._threads = Threads("journal")
        self._execute: Execute | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = asyncio.Event()

    def open(self, execute: Execute) -> None:
        """Start executing commands, beginning with those that are already outstanding.

        Raises:
            LlmzeroError: the journal could not be written before.
        """
        if self.failure is not None:
            raise self.failure
        self._execute = execute
        for command in self.core.resume():
            self._spawn_command(command)

    def close(self) -> None:
        """End the periodic tasks. Events are still accepted."""
        self._closed.set()

    async def post(self, event: Event) -> None:
        """Make an event durable, then act on it.

        An event already in the journal is dropped, and so is every event after a failure of the journal.
        """
        await self.post_judged(lambda: event)

    async def post_judged(self, judge: Judge) -> Event | None:
        """`post` for an event that depends on the state: no other event is applied between the call of
        `judge` and its event. Returns the event, or None if there is none or the journal failed."""
        async with self._turn:
            event = None if self.failure is not None else judge()
            if event is None:
                return None
            try:
                commands = await self._take(event)
            except LlmzeroError as error:  # do not act on an event that is not in the journal
                self.failure = error
                commands = [cmd.End(id="end-failure", reason=str(error), exit_code=error.exit_code)]
        if self._execute is not None:
            for command in commands:
                self._spawn_command(command)
        return event if self.failure is None else None

    async def record(self, event: Event) -> None:
        """`post` for a caller that must not continue without the event.

        Raises:
            LlmzeroError: the journal can no longer be written.
        """
        await self.post(event)
        if self.failure is not None:
            raise self.failure

    async def abort(self, error: LlmzeroError) -> None:
        """Abort the search for a reason outside its phases. The same command resumes it."""
        logger.error("aborted: %s", error)
        await self.post(ev.SearchAborted(reason=str(error), exit_code=error.exit_code))

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a background task. An exception in it aborts the search with that reason."""
        task = asyncio.get_running_loop().create_task(self._supervised(work, name), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def repeat(
        self,
        tick: Callable[[], Awaitable[None]],
        name: str,
        *,
        every_s: float | Callable[[], float],
        may_fail: bool = False,
    ) -> None:
        """Await `tick` repeatedly until the loop is closed, sleeping `every_s` seconds in between.

        An exception is logged and journalled, and the task continues. If the task fails for a minute without
        a success, the search is aborted, unless `may_fail` is set: time limits must not stop working
        unnoticed.
        """
        pause_s = every_s if callable(every_s) else lambda: every_s
        self.spawn(self._repeated(tick, name, pause_s, may_fail=may_fail), name)

    async def _repeated(
        self, tick: Callable[[], Awaitable[None]], name: str, pause_s: Callable[[], float], *, may_fail: bool
    ) -> None:
        failing_since: float | None = None
        reported = float("-inf")
        while not self._closed.is_set():
            try:
                await tick()
                failing_since = None
            except Exception as error:
                logger.exception("%s failed", name)
                now, reason = time.monotonic(), f"{type(error).__name__}: {error}"
                failing_since = now if failing_since is None else failing_since
                if now - reported >= _REPORT_S:
                    reported = now
                    await self.post(ev.BackgroundTaskFailed(task=name, reason=reason))
                if not may_fail and now - failing_since >= _FAILING_S:
                    raise LlmzeroError(f"{name} has failed for {_FAILING_S:.0f} s: {reason}") from error
            await asyncio.sleep(pause_s())

    async def _supervised(self, work: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await work
        except LlmzeroError as error:
            await self.abort(error)
        except Exception as error:
            logger.exception("%s failed", name)
            await self.abort(LlmzeroError(f"{name}: {type(error).__name__}: {error}"))

    def _spawn_command(self, command: Command) -> None:
        if isinstance(command, cmd.Record):
            return self.spawn(self.post(command.event), command.id)
        assert self._execute is not None
        return self.spawn(self._execute(command), command.id)

    async def _append(self, event: Event) -> Event | None:
        written = await self._threads.run(self._journal.append, event)
        if written is not None:
            reach("journal.written")
            self.events += (written,)
        return written

    async def _take(self, event: Event) -> list[Command]:
        """Commands that follow from an event. Any exception becomes an `LlmzeroError`, after which no event
        is accepted: the core may be half changed."""
        try:
            return await self.core.record(event, self._append)
        except LlmzeroError:
            raise
        except Exception as error:
            logger.exception("%s could not be handled", type(event).__name__)
            raise LlmzeroError(
                f"{type(event).__name__} could not be handled: {type(error).__name__}: {error}"
            ) from error
