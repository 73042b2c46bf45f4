"""The coordinator of one search: takes over, keeps the clock, ends. The rules are in llmzero_ray.coordinator.

Detached and named; when its process dies Ray starts it again, it reads the journal and goes on with runners
that are still there. Not here: events (desk.py), carrying out (hands.py), hardware (slots.py, losses.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any

from llmzero_ray import events as ev
from llmzero_ray.agents.backend import make_agents
from llmzero_ray.config import parse_config
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.logs import log_to
from llmzero_ray.presence import SearchLock, drop_ends, last_heartbeat
from llmzero_ray.records import Event
from llmzero_ray.storage import SearchStorage
from llmzero_ray.tasks import load_task

from .clock import keep_clock
from .desk import Desk
from .hands import Hands
from .inbox import Inbox, use_settings
from .keeper import tidy
from .losses import Losses
from .options import stopper_name
from .slots import Slots, kill
from .stopper import start_stopper
from .till import Till
from .watchdog import Watchdog

logger = logging.getLogger("llmzero_ray.actors.coordinator")
_LINGER_S = 2.0
"""How long an ended coordinator stays for whoever waits for its last word."""


class SearchCoordinator:
    """Wrapped as an actor by app.py; `storage` is the directory that holds the search's own."""

    def __init__(self, storage: str, started: ev.SearchStarted, private_head: bool) -> None:
        import ray

        self.storage = SearchStorage(storage, str(started.config["name"]))
        self.over, self._open = asyncio.Event(), asyncio.Event()
        self.desk: Desk | None = None
        self._started, self._private, self._begun = started, private_head, False
        self._failure: LlmzeroError | None = None
        self.ending = False
        self._me = ray.get_runtime_context().current_actor
        self._me.begin.remote()  # here and not from outside: after a restart nobody else would call

    async def join(self) -> None:
        """Return when the search has ended or was interrupted; the journal says how.

        Raises:
            LlmzeroError: the journal could not be read or written.
        """
        await self.over.wait()
        if failure := self._failure or (self.desk.failure if self.desk else None):
            raise failure

    async def post(self, event: Event) -> None:
        """Take an event from another actor; returns when it is durable."""
        await self._open.wait()
        assert self.desk is not None
        await self.desk.post(event)

    async def pay(self, what: str, *arguments: Any, **spent: Any) -> Any:
        """`reserve` or `settle` of the till, for agents in other processes."""
        await self._open.wait()
        return getattr(self.till, what)(*arguments, **spent)

    async def begin(self) -> None:
        """Read the journal, find or start runners, go on with whatever is to be done."""
        if self._begun:  # Ray repeats the call of a process that was killed
            return
        self._begun = True
        try:
            await self._take_over()
        except Exception as error:
            logger.exception("the coordinator could not begin")
            ours = error if isinstance(error, LlmzeroError) else LlmzeroError(f"cannot begin: {error!r}")
            if self.desk is not None and self.desk.core.started is not None:
                await self.desk.abort(ours)
            else:
                self._failure = ours
            await self.end(at_once=True)

    async def _take_over(self) -> None:
        import ray

        root = self.storage.paths.root
        before = last_heartbeat(root)
        self._lock = SearchLock(root)
        await asyncio.to_thread(self._lock.acquire, private_head=self._private)
        log_to(self.storage.paths.logs / "coordinator.log")
        self.desk = desk = await asyncio.to_thread(Desk, self.storage)
        self.core = desk.core
        config = self.core.config if desk.events else parse_config(self._started.config)
        self.slots = Slots(config, str(root.parent), private_head=self._private)
        came_back = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        if self.core.finished or (came_back and self.core.interrupted):
            return await self.end(at_once=True)  # it was leaving already when its process died
        if not desk.events:
            await desk.post(self._started)
        here, pid = socket.gethostname(), os.getpid()
        await desk.post(ev.CoordinatorStarted(epoch=desk.epoch, host=here, pid=pid, previous_alive=before))
        self._open.set()
        self.losses, self.till = Losses(self), Till(config, desk, self.storage)
        self._hands = Hands(self)
        if not came_back:
            drop_ends(root)  # left unread by whoever worked here before
        await Inbox(self).empty()  # settings that the command brought along
        await use_settings(self)
        config = self.core.config
        self.task = await asyncio.to_thread(load_task, config.task.dir)
        self.agents = make_agents(config, self.task.n_val, self.till.house())
        for work in (keep_clock(self, desk), Watchdog(self).watch(), self._hands.prefetch()):
            desk.spawn(work)
        await self.slots.reserve()
        self.stopper = start_stopper(config, str(root.parent), self.task.n_val, self.till.facts)
        await asyncio.gather(*(self.losses.attach(slot) for slot in range(config.slots.count)))
        desk.open(self._hands.do)
        return None

    async def rewatch(self) -> None:
        """Tell a stopper that lost its memory what runs and whom it has to beat."""
        await self._hands.rewatch()

    async def end(self, *, at_once: bool) -> None:
        """Close runners, give hardware back, tell whoever waits, leave."""
        import ray

        if self.ending:
            return
        self.ending = True
        if hasattr(self, "slots"):
            await self.slots.close_all(at_once=at_once)
        await kill(stopper_name(self.storage.name))
        if self.desk is not None and self.desk.core.finished is not None:
            await asyncio.to_thread(tidy, self.storage, self.core)
        self._lock.release()
        self.over.set()
        await asyncio.sleep(_LINGER_S)
        ray.kill(self._me)
