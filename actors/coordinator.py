"""Coordinator actor of one search: replays the journal, wires its parts, and closes the search.

The actor is detached and named. If its process dies, Ray restarts it; it then replays the journal and
continues with the runners that are still alive. Its parts get what they use as arguments and do not refer to
the coordinator.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
from collections.abc import Awaitable
from typing import Any

from llmzero_ray.coordinator import CoordinatorCore
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.prepared import load_task
from llmzero_ray.records import Event
from llmzero_ray.records import events as ev
from llmzero_ray.report.finalize import interrupted_phases, remove_leftovers
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.presence import (
    HEARTBEAT_S,
    SearchLock,
    is_extension_requested,
    last_heartbeat,
)
from llmzero_ray.storage.trackers import Tracker, make_trackers
from llmzero_ray.utils.api_key import KEY_ENV, KEY_ENVS, use_key_file
from llmzero_ray.utils.logs import log_to

from .agent_calls import AgentCalls
from .agent_services import search_agents
from .checkpoint_retention import CheckpointRetention
from .control_requests import ControlRequests
from .event_loop import EventLoop
from .executor import CommandExecutor
from .final_evaluation import FinalEvaluator
from .llm_budget import SearchBudget
from .monitor import HangDetector, SearchMonitor
from .names import end_actor, is_there, stopper_name
from .runner_pool import RunnerPool
from .runner_recovery import RunnerRecovery
from .stopper import start_stopper
from .stopper_client import StopperClient
from .threads import Threads

logger = logging.getLogger("llmzero_ray.actors.coordinator")
_LINGER_S = 2.0
"""Seconds a finished coordinator stays alive so that clients blocked in `join` receive the result."""
_LOCK_WAIT_S = 60.0
"""Timeout for the lock, in seconds. A command holds the lock while it prepares the directory; a killed
coordinator holds it until its process is gone."""


class SearchCoordinator:
    """Coordinator of one search, wrapped as an actor by app.py. `storage` is the parent of the search's
    directory."""

    def __init__(
        self,
        storage: str,
        started: ev.SearchStarted,
        private_head: bool,
        key_file: str | None,
        tracker_keys: str | None = None,
        held_slots: str | None = None,
    ) -> None:
        """`key_file` and `tracker_keys` are paths of files with the key of the agents' model and the keys of
        the trackers, or None without keys. `held_slots` as in `RunnerPool`."""
        import ray

        provider = started.config["agents"].get("provider", "anthropic")
        use_key_file(key_file, KEY_ENVS.get(provider, KEY_ENV))
        self._key_file = key_file
        self._storage = SearchStorage(storage, str(started.config["name"]))
        self._lock = SearchLock(self._storage.paths.root)
        self._started, self._private_head = started, private_head
        self._threads = Threads("coordinator")
        self._ready, self._ended = asyncio.Event(), asyncio.Event()
        self._loop: EventLoop | None = None
        self._pool: RunnerPool | None = None
        self._budget: SearchBudget | None = None
        self._calls: AgentCalls | None = None
        self._stopper: StopperClient | None = None
        self._trackers: list[Tracker] = []
        self._tracker_keys, self._held_slots = tracker_keys, held_slots
        self._taken_over = self._ending = False
        self._failure: LlmzeroError | None = None
        self._actor = ray.get_runtime_context().current_actor
        self._actor.take_over.remote()  # after a restart by Ray, no other process calls it

    # --- calls of other processes ---------------------------------------------------------------------------

    async def join(self) -> None:
        """Return when the search has ended or was interrupted. The journal has the reason.

        Raises:
            LlmzeroError: the journal could not be read or written.
        """
        await self._ended.wait()
        if failure := self._failure or (self._loop.failure if self._loop else None):
            raise failure

    async def post(self, event: Event) -> None:
        """Post an event from another actor. Returns when it is durable."""
        await self._ready.wait()
        assert self._loop is not None
        await self._loop.post(event)

    async def use_budget(self, what: str, *arguments: Any, **spent: Any) -> Any:
        """Call `reserve` or `settle` of the search's budget for agents in other processes."""
        await self._ready.wait()
        return await getattr(self._budget, what)(*arguments, **spent)

    async def resend_to_stopper(self) -> None:
        """Send running phases and the incumbent to a restarted stopper. Books the calls that its old process
        had in flight at their worst case."""
        await self._ready.wait()
        assert self._stopper is not None
        assert self._budget is not None
        assert self._loop is not None
        for call in self._budget.settle_lost("stopper"):
            await self._loop.post(call)
        await self._stopper.resend()

    # --- taking over ----------------------------------------------------------------------------------------

    async def take_over(self) -> None:
        """Replay the journal, find or start runners, and execute the outstanding commands."""
        if self._taken_over:  # Ray retries the call that a killed process had not answered
            return
        self._taken_over = True
        try:
            await self._take_over()
        except Exception as error:
            logger.exception("the coordinator could not take over")
            ours = error if isinstance(error, LlmzeroError) else LlmzeroError(f"cannot begin: {error!r}")
            if self._loop is not None and self._loop.core.started is not None:
                await self._loop.abort(ours)
            else:
                self._failure = ours
            await self._end(at_once=True)

    async def _take_over(self) -> None:
        import ray

        root = self._storage.paths.root
        before = last_heartbeat(root)
        await asyncio.to_thread(self._lock.acquire, private_head=self._private_head, wait_s=_LOCK_WAIT_S)
        log_to(self._storage.paths.logs / "coordinator.log")
        self._loop = loop = await asyncio.to_thread(EventLoop, self._storage)
        core, name, directory = loop.core, self._storage.name, str(root.parent)
        if core.started is None:
            await loop.post(self._started)
            if loop.failure is not None:
                raise loop.failure
        fixed = self._private_head
        # The configuration is read where it is used, because settings may change while the search runs.
        self._pool = pool = RunnerPool(
            name,
            directory,
            lambda: self._storage.relocated(core.config),
            fixed_capacity=fixed,
            avoided=lambda: core.avoided_nodes,
            held_slots=self._held_slots,
        )
        restarted = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        extended = core.finished is not None and await asyncio.to_thread(is_extension_requested, root)
        if (core.finished and not extended) or (restarted and core.interrupted):
            return await self._end(at_once=True)  # it was already ending when its process died
        here, pid = socket.gethostname(), os.getpid()
        await loop.post(ev.CoordinatorStarted(epoch=loop.epoch, host=here, pid=pid, previous_alive=before))
        # Before any request: a stop ends these phases with what they had saved.
        for event in await asyncio.to_thread(list, interrupted_phases(self._storage, core, loop.events)):
            await loop.post(event)
        self._budget = await self._restored_budget(loop)
        use_settings = functools.partial(self._use_settings, core)
        requests = ControlRequests(
            core, loop.post_judged, root, use_settings=use_settings, fixed_capacity=fixed
        )
        await requests.take(at_start=True)  # settings of the command
        if core.finished is not None:
            return await self._end(at_once=True)  # the settings do not extend it
        await use_settings()
        self._start_checks(loop, pool, requests)
        recovery = RunnerRecovery(core, loop.post, pool, self._storage)
        executor = await self._executor(loop, pool, recovery, self._budget)
        runs_on = await recovery.attach()
        self._ready.set()
        loop.open(executor.execute)
        if runs_on or (recovery.has_work and await pool.reserve(core.wanted_slots)):
            await recovery.fill()
        return None

    async def _restored_budget(self, loop: EventLoop) -> SearchBudget:
        """Budget rebuilt from the journal, with calls of dead processes booked at their worst case."""
        budget = SearchBudget(loop.core.config, loop.events, loop.record)
        lost = budget.settle_lost("coordinator")
        if not await asyncio.to_thread(is_there, stopper_name(self._storage.paths.root)):
            lost += budget.settle_lost("stopper")
        for call in lost:
            await loop.post(call)
        return budget

    async def _executor(
        self, loop: EventLoop, pool: RunnerPool, recovery: RunnerRecovery, budget: SearchBudget
    ) -> CommandExecutor:
        """Executor with the handlers of all commands."""
        core, storage = loop.core, self._storage
        config = storage.relocated(core.config)
        task = await asyncio.to_thread(load_task, config.task.dir)
        agents = search_agents(config, task.n_val, budget, loop.post, storage)
        actor = start_stopper(
            config, str(storage.paths.root.parent), task.n_val, budget.facts, self._key_file
        )
        self._calls = AgentCalls(core, loop.post, storage, agents)
        self._stopper = StopperClient(core, storage, actor, pool)
        self._stopper.use_settings()  # it may be older than this coordinator
        return CommandExecutor(
            core,
            loop.post,
            storage,
            agents=self._calls,
            stopper=self._stopper,
            pool=pool,
            recovery=recovery,
            checkpoints=CheckpointRetention(core, loop.post, storage),
            finals=FinalEvaluator(core, loop.post, storage, pool=pool, recovery=recovery, test=task.test),
            end=lambda at_once: self._end(at_once=at_once),
        )

    def _start_checks(self, loop: EventLoop, pool: RunnerPool, requests: ControlRequests) -> None:
        """Start the periodic checks, which run until the search ends."""
        core, post = loop.core, loop.post
        hangs = HangDetector(core, post, pool)
        monitor = SearchMonitor(core, post, self._storage.paths.root, loop.events, hangs.newest)
        loop.repeat(monitor.beat, "heartbeat", every_s=HEARTBEAT_S)
        loop.repeat(requests.take, "control requests", every_s=requests.EVERY_S)
        loop.repeat(monitor.check_limits, "budget limits", every_s=monitor.EVERY_S)
        loop.repeat(monitor.export_metrics, "metrics", every_s=monitor.EVERY_S, may_fail=True)
        loop.repeat(hangs.check, "hang detection", every_s=hangs.every_s)
        if core.config.tracking.backends:
            self._trackers = make_trackers(self._storage, core.config.tracking, self._tracker_keys)
            for tracker in self._trackers:
                check = functools.partial(Threads("tracking").run, tracker.check)
                loop.repeat(check, "tracking", every_s=monitor.EVERY_S, may_fail=True)

    async def _use_settings(self, core: CoordinatorCore) -> None:
        """Apply changed settings to the budget's cap, the agents and search.yaml."""
        assert self._budget is not None
        self._budget.use(core.config)
        if self._calls is not None:
            self._calls.use_settings()
        if self._stopper is not None:
            self._stopper.use_settings()
        if core.n_settings:
            await self._threads.run(self._storage.write_config, core.config)

    # --- the end --------------------------------------------------------------------------------------------

    async def _end(self, *, at_once: bool) -> None:
        """Close runners, release hardware, let `join` return, and exit."""
        import ray

        if self._ending:
            return
        self._ending = True
        if self._pool is not None:
            await _tried(self._pool.close_all(at_once=at_once), "the runners were not closed")
        name = stopper_name(self._storage.paths.root)
        await _tried(self._threads.run(end_actor, name), "the stopper was not ended")
        if self._loop is not None:
            self._loop.close()
        for tracker in self._trackers:
            await _tried(self._threads.run(tracker.finish), "a tracker did not finish")
        if self._loop is not None and self._loop.core.finished is not None:
            tidied = self._threads.run(remove_leftovers, self._storage, self._loop.core)
            await _tried(tidied, "partial files were not removed")
        self._lock.release()
        self._ended.set()
        await asyncio.sleep(_LINGER_S)
        ray.kill(self._actor)


async def _tried(work: Awaitable[Any], problem: str) -> None:
    """Await one part of the shutdown. An exception is only logged, because the lock and the hardware must be
    released in any case."""
    try:
        await work
    except Exception:
        logger.exception("%s; the search ends without that", problem)
