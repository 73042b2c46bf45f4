"""The coordinator's desk: every event goes through here, journal first, then the core, then what it asks for.

Not here: taking over and ending (coordinator.py), carrying out (hands.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from llmzero_ray import commands as cmd
from llmzero_ray import events as ev
from llmzero_ray.commands import Command
from llmzero_ray.coordinator import replay
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.failpoints import reach
from llmzero_ray.journal import Journal
from llmzero_ray.records import Event
from llmzero_ray.storage import SearchStorage

logger = logging.getLogger("llmzero_ray.actors.desk")


class Desk:
    """Journal and core of one search; opening it replays the journal.

    Raises:
        JournalError: the journal is damaged.
    """

    def __init__(self, storage: SearchStorage) -> None:
        self._journal = Journal(storage.journal_address())
        self.core = replay(self._journal.history, storage.paths.root)
        self.events = self._journal.history
        """All events so far."""
        self.epoch = self._journal.epoch
        self.failure: LlmzeroError | None = None
        """Why the journal cannot be written any more."""
        self._turn = asyncio.Lock()
        self._carry: Callable[[Command], Awaitable[None]] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def open(self, carry: Callable[[Command], Awaitable[None]]) -> None:
        """From now on commands are carried out, those first that are outstanding already.

        Raises:
            LlmzeroError: the journal could not be written before.
        """
        if self.failure is not None:
            raise self.failure
        self._carry = carry
        for command in self.core.resume():
            self.spawn(self._do(command))

    async def post(self, event: Event) -> None:
        """Make an event durable, then act on it; a delivery that is known is dropped, as is all after a
        failure."""
        async with self._turn:
            if self.failure is not None:
                return
            try:
                commands = await self._take(event)
            except LlmzeroError as error:  # nothing may go on that could not be written down
                self.failure = error
                commands = [cmd.End(id="end-failure", reason=str(error), exit_code=error.exit_code)]
        if self._carry is not None:
            for command in commands:
                self.spawn(self._do(command))

    async def abort(self, error: LlmzeroError) -> None:
        """Stop working for a reason that no phase is to blame for; the same command resumes the search."""
        logger.error("aborted: %s", error)
        await self.post(ev.SearchAborted(reason=str(error), exit_code=error.exit_code))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside everything else; it is kept alive until it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, event: Event) -> list[Command]:
        """Journal and handle the event and whatever the core concludes from it; what else is to be done."""
        pending, given = [event], list[Command]()
        while pending:
            written = await asyncio.to_thread(self._journal.append, pending.pop(0))
            if written is None:
                continue
            reach("journal.written")
            self.events += (written,)
            fresh = self.core.handle(written)
            pending = [command.event for command in fresh if isinstance(command, cmd.Record)] + pending
            given += [command for command in fresh if not isinstance(command, cmd.Record)]
        return given

    async def _do(self, command: Command) -> None:
        if isinstance(command, cmd.Record):
            return await self.post(command.event)
        assert self._carry is not None
        try:
            await self._carry(command)
        except LlmzeroError as error:
            await self.abort(error)
        except Exception as error:
            logger.exception("%s could not be carried out", command.id)
            await self.abort(LlmzeroError(f"{command.id}: {type(error).__name__}: {error}"))
        return None
