"""Stopper actor: polls metric points from runners, applies the stopping policy, and posts verdicts.

The coordinator makes a verdict durable, then stops the phase. While the coordinator cannot be reached, phases
continue, unless a hard rule says STOP. Each decision is stored with both curves it compared.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmzero_ray.config import SearchConfig, parse_config
from llmzero_ray.coordinator import overlay_record
from llmzero_ray.errors import StorageError
from llmzero_ray.records import ItemOutcome, StopDecision
from llmzero_ray.records import events as ev
from llmzero_ray.records.agents import Budget, EarlierVerdict, NodeView, StopRequest, TaskView
from llmzero_ray.stopping.phase_monitor import PhaseMonitor
from llmzero_ray.stopping.request import saving, stop_request
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import load_items
from llmzero_ray.utils.api_key import KEY_ENV, KEY_ENVS, use_key_file
from llmzero_ray.utils.failpoints import reach
from llmzero_ray.utils.logs import log_to

from .agent_services import stopping_policy
from .names import coordinator_name, find_actor, restarting, stopper_name

logger = logging.getLogger("llmzero_ray.actors.stopper")
_GATHER_S, _MAX_GATHER_S = 0.008, 0.5
"""Seconds for which a runner collects points before it answers a poll: per watched phase, and the maximum.
This gives about 125 polls per second in total."""
_HARD_S = 10.0
"""Seconds that a hard STOP waits for the coordinator. After that the stopper stops the phase itself."""
_RETRY_S = 2.0


class StopperActor:
    """Stopper of one search."""

    def __init__(
        self,
        config: dict[str, Any],
        storage: str,
        n_val: int,
        facts: dict[str, Any],
        key_file: str | None = None,
    ) -> None:
        """`facts` is `SearchStarted.agents`; `key_file` is the path of a file with the agents' key."""
        import ray

        self._config = parse_config(config, source="search.yaml")
        use_key_file(key_file, KEY_ENVS.get(self._config.agents.provider, KEY_ENV))
        self._storage = SearchStorage(storage, self._config.name)
        self._policy = stopping_policy(self._config, facts, self._storage, n_val)
        self._n_val = n_val
        self._chain: tuple[NodeView, ...] = ()
        """Resume chain of the incumbent, base first. Empty without an incumbent."""
        self._verdicts = VerdictDelivery(self._storage.paths.root)
        self._watches: dict[int, asyncio.Task[None]] = {}
        self._sent: dict[int | None, float] = {}
        """Slot, or None for the incumbent -> time at which the newest call about it was sent."""
        log_to(self._storage.paths.logs / "stopper.log")
        gc.freeze()  # excludes imported modules from collections, which delayed verdicts by 100 ms
        if ray.get_runtime_context().was_current_actor_reconstructed:
            find_actor(coordinator_name(self._storage.paths.root)).resend_to_stopper.remote()

    def __repr__(self) -> str:
        return f"StopperActor(search={self._config.name})"

    async def set_incumbent(self, chain: tuple[NodeView, ...], sent_at: float) -> None:
        """Set the incumbent, with which running phases are compared. `chain` is its resume chain, base first;
        the curves of each node end where the path leaves it."""
        if self._is_newest(None, sent_at):
            self._chain = chain

    async def use_settings(self, config: dict[str, Any]) -> None:
        """Use a configuration that was changed during the search."""
        self._config = parse_config(config, source="search.yaml")
        self._policy.use_settings(self._config.agents)

    async def watch(
        self,
        slot: int,
        runner: Any,
        attempt: int,
        view: NodeView,
        task: TaskView,
        sent_at: float,
        verdicts: tuple[EarlierVerdict, ...] = (),
        budget: Budget | None = None,
        ended: tuple[NodeView, ...] = (),
    ) -> None:
        """Watch the phase that begins on a slot's runner, until it ends or the next one begins there.
        `verdicts` are the verdicts on this attempt so far, `budget` is the phase's remaining budget, `ended`
        are the other scored phases."""
        if not self._is_newest(slot, sent_at):
            return
        old = self._watches.pop(slot, None)
        if old is not None:
            old.cancel()
        monitor = PhaseMonitor(self._policy, view, verdicts)
        facts = {"task": task, "budget": budget, "ended": ended}
        watch = self._watch(runner, attempt, view, monitor, facts)
        self._watches[slot] = asyncio.get_running_loop().create_task(watch)

    async def _watch(
        self,
        runner: Any,
        attempt: int,
        view: NodeView,
        monitor: PhaseMonitor,
        facts: Mapping[str, Any],
    ) -> None:
        import ray

        asking: asyncio.Task[bool] | None = None
        try:
            # Thousands of polls would crowd out other tasks in Ray's task list.
            poll = runner.poll.options(concurrency_group="ctl", enable_task_events=False)
            while True:
                gather_s = min(_MAX_GATHER_S, _GATHER_S * len(self._watches))
                points, over = await poll.remote(view.node, attempt, monitor.n_points, gather_s=gather_s)
                if over:
                    break
                verdict = monitor.add(points)
                if verdict is not None:
                    await self._conclude(runner, attempt, verdict.running, verdict.decision)
                    return
                # Rules are still checked while the agent is called or its verdict is being delivered.
                if asking is not None and asking.done():
                    if asking.result():
                        return
                    asking = None
                if points and asking is None and monitor.is_due(self._incumbent):
                    asking = asyncio.create_task(self._judge(runner, attempt, monitor, facts))
            if asking is not None:
                await asking
        except ray.exceptions.RayError as error:
            # The coordinator notices a lost runner by itself.
            logger.info("node=%d is watched no longer: %s", view.node, type(error).__name__)
        except Exception:
            logger.exception("node=%d is watched no longer; its phase continues", view.node)
        finally:
            if asking is not None:
                asking.cancel()

    def _is_newest(self, about: int | None, sent_at: float) -> bool:
        """Whether a call about a slot, or the incumbent (None), is the newest one so far. Ray delivers calls
        to an actor that is still starting in any order."""
        if sent_at < self._sent.get(about, 0.0):
            return False
        self._sent[about] = sent_at
        return True

    @property
    def _incumbent(self) -> NodeView | None:
        return self._chain[-1] if self._chain else None

    async def _judge(
        self, runner: Any, attempt: int, monitor: PhaseMonitor, facts: Mapping[str, Any]
    ) -> bool:
        """Let the agent judge a phase. `facts` are the facts given when it began. Returns True for STOP."""
        running, chain = monitor.running(), self._chain
        verdicts = tuple(monitor.verdicts)
        request, decision = await asyncio.to_thread(self._decide, running, chain, verdicts, facts)
        monitor.note(running.curves.steps[-1], decision)
        await self._conclude(runner, attempt, running, decision, request)
        return decision.stop

    def _decide(
        self,
        running: NodeView,
        chain: tuple[NodeView, ...],
        verdicts: tuple[EarlierVerdict, ...],
        facts: Mapping[str, Any],
    ) -> tuple[StopRequest, StopDecision]:
        request = stop_request(
            self._config,
            running=running,
            chain=chain,
            verdicts=verdicts,
            load_items=self._items,
            n_val=self._n_val,
            **facts,
        )
        return request, self._policy.decide(request)

    def _items(self, node: int) -> Mapping[int, tuple[ItemOutcome, ...]]:
        """Outcomes of a node's validations. Empty if its files cannot be read."""
        try:
            return load_items(self._storage, node, responses=False)
        except (OSError, ValueError, KeyError) as error:
            logger.warning("node=%d its validated items cannot be read: %s", node, error)
            return {}

    async def _conclude(
        self,
        runner: Any,
        attempt: int,
        running: NodeView,
        decision: StopDecision,
        request: StopRequest | None = None,
    ) -> None:
        """Deliver a decision as a verdict, and store it. A full disk does not delay the verdict. `request` is
        the agent's request, or None if a rule decided."""
        node, step = running.node, running.curves.steps[-1]
        verdict = ev.VerdictPosted(
            node=node,
            phase_attempt=attempt,
            step=step,
            decision=decision,
            saves=saving(self._config, running),
            source=f"stopper:{node}",
            attempt=attempt,
            sequence=step,
        )
        reach("stopper.judged")
        record = overlay_record(running, decision, request)
        keeping = asyncio.get_running_loop().run_in_executor(
            None, self._storage.write_agent_record, node, f"early_stopper-{step:06d}", record
        )
        await self._verdicts.deliver(runner, verdict)
        try:
            await keeping
        except StorageError as error:
            logger.warning("node=%d step=%d the judgement could not be kept: %s", node, step, error)


def start_stopper(
    config: SearchConfig, storage: str, n_val: int, facts: dict[str, Any], key_file: str | None = None
) -> Any:
    """Handle of a search's stopper, which is started unless it exists. Arguments as in `StopperActor`."""
    import ray

    options = restarting(stopper_name(SearchStorage(storage, config.name).paths.root))
    return (
        ray.remote(StopperActor).options(**options).remote(config.to_json(), storage, n_val, facts, key_file)
    )


class VerdictDelivery:
    """Delivers the verdicts of the search in `root` to its coordinator, which makes them durable and stops
    the phase.

    It retries while the coordinator restarts or is replaced. A hard STOP does not wait for a coordinator that
    cannot be reached.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._coordinator: Any = None

    async def deliver(self, runner: Any, verdict: ev.VerdictPosted) -> None:
        """Post a verdict until the coordinator has it. After a timeout, a hard STOP also goes directly to the
        runner."""
        posting = asyncio.get_running_loop().create_task(self._post(verdict))
        if not verdict.decision.hard:
            return await posting
        try:
            await asyncio.wait_for(asyncio.shield(posting), _HARD_S)
        except TimeoutError:
            reason = f"verdict: {verdict.decision.rule}: {verdict.decision.reason}"
            stop = runner.stop.options(concurrency_group="ctl")
            await stop.remote(verdict.node, verdict.phase_attempt, reason)
            await posting
        return None

    async def _post(self, verdict: ev.VerdictPosted) -> None:
        import ray

        while True:
            known = self._coordinator is not None
            try:
                if not known:
                    self._coordinator = await asyncio.to_thread(find_actor, coordinator_name(self._root))
                await self._coordinator.post.remote(verdict)
                return
            except (ValueError, ray.exceptions.RayError):
                self._coordinator = None
                if not known:  # otherwise look it up again at once: a new coordinator may have the name
                    await asyncio.sleep(_RETRY_S)
