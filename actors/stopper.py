"""Watches running phases: reads what runners publish, asks the stopping policy, posts its verdicts.

The coordinator makes a verdict durable and then stops the phase; while it is away everything continues,
except what a hard rule says. Each judgement is kept with both curves it compared. Not here: the rules
(llmzero_ray.stopping).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Any

from llmzero_ray import events as ev
from llmzero_ray.agents.base import NodeView, StopRequest, TaskView
from llmzero_ray.config import SearchConfig, parse_config
from llmzero_ray.coordinator import overlay_record
from llmzero_ray.logs import log_to
from llmzero_ray.records import MetricPoint
from llmzero_ray.series import curves_of
from llmzero_ray.storage import SearchStorage

from .house import stopping_policy
from .options import NAMESPACE, coordinator_name, restarting, runner_name, stopper_name

logger = logging.getLogger("llmzero_ray.actors.stopper")
_HARD_S = 10.0
"""How long a hard verdict waits for the coordinator before the stopper stops the phase itself."""
_AGAIN_S = 2.0


class StopperActor:
    """One per search."""

    def __init__(self, config: dict[str, Any], storage: str, n_val: int, facts: dict[str, Any]) -> None:
        import ray

        self._config = parse_config(config, source="search.yaml")
        self._storage = SearchStorage(storage, self._config.name)
        self._policy = stopping_policy(self._config, facts, self._storage, n_val)
        self._incumbent: NodeView | None = None
        self._path: tuple[tuple[int, float], ...] = ()
        self._watches: dict[int, asyncio.Task[None]] = {}
        log_to(self._storage.paths.logs / "stopper.log")
        if ray.get_runtime_context().was_current_actor_reconstructed:
            _actor(coordinator_name(self._config.name)).rewatch.remote()

    async def set_incumbent(
        self, incumbent: NodeView, path: tuple[tuple[int, float], ...], completed: tuple[NodeView, ...]
    ) -> None:
        """Whom running phases have to beat from now on, with its (global step, score) path; what ended
        since."""
        self._incumbent, self._path = incumbent, path
        self._policy.learn(completed)

    async def watch(self, slot: int, attempt: int, view: NodeView, task: TaskView) -> None:
        """Watch the phase that begins in a slot, until it ends or the next one begins there."""
        old = self._watches.pop(slot, None)
        if old is not None:
            old.cancel()
        self._policy.forget(view.node)
        self._watches[slot] = asyncio.get_running_loop().create_task(self._watch(slot, attempt, view, task))

    async def _watch(self, slot: int, attempt: int, view: NodeView, task: TaskView) -> None:
        import ray

        points: list[MetricPoint] = []
        over = False
        try:
            runner = _actor(runner_name(self._config.name, slot))
            poll = runner.poll.options(concurrency_group="ctl")
            while not over:
                _, new, over = await poll.remote(view.node, attempt, len(points))
                points += new
                if new and not over and await self._judge(runner, attempt, view, task, points):
                    return
        except (ValueError, ray.exceptions.RayError) as error:
            # The coordinator notices a lost runner by itself.
            logger.info("node=%d is watched no longer: %s", view.node, type(error).__name__)
        except Exception:
            logger.exception("node=%d is watched no longer; its phase goes on", view.node)

    async def _judge(
        self, runner: Any, attempt: int, view: NodeView, task: TaskView, points: list[MetricPoint]
    ) -> bool:
        """Look at a phase after each of its reports; True when it is to stop and nothing is left to judge."""
        running = dataclasses.replace(view, status="running", curves=curves_of(points))
        decision = self._policy.check_rules(running.curves, running.hyperparameters)
        if decision is None:
            incumbent = self._incumbent
            if incumbent is None or not self._policy.is_due(running, incumbent):
                return False
            request = StopRequest(task=task, running=running, incumbent=incumbent, incumbent_path=self._path)
            decision = await asyncio.to_thread(self._policy.ask, request)
        step = points[-1].step
        record = overlay_record(running, decision, self._incumbent, self._path)
        keep = self._storage.write_agent_record
        await asyncio.to_thread(keep, view.node, f"early_stopper-{step:06d}", record)
        verdict = ev.VerdictPosted(
            node=view.node,
            phase_attempt=attempt,
            verdict_id=f"{view.node}-{attempt}-{step}",
            step=step,
            decision=decision,
            source=f"stopper:{view.node}",
            attempt=attempt,
            sequence=step,
        )
        await self._deliver(runner, verdict)
        return decision.stop

    async def _deliver(self, runner: Any, verdict: ev.VerdictPosted) -> None:
        """Post until the coordinator has it; a hard STOP does not wait for one that is away."""
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
            try:
                await _actor(coordinator_name(self._config.name)).post.remote(verdict)
                return
            except (ValueError, ray.exceptions.RayError):
                await asyncio.sleep(_AGAIN_S)


def start_stopper(config: SearchConfig, storage: str, n_val: int, facts: dict[str, Any]) -> Any:
    """The stopper of a search, started unless it is there; `facts` as in `SearchStarted.agents`."""
    import ray

    options = restarting(stopper_name(config.name))
    return ray.remote(StopperActor).options(**options).remote(config.to_json(), storage, n_val, facts)


def _actor(name: str) -> Any:
    import ray

    return ray.get_actor(name, namespace=NAMESPACE)
