"""Periodic checks of a running search: heartbeat, time and cost limits, hang detection.

The coordinator's event loop calls each check at its own interval, so that a slow or failing check does not
delay the others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmzero_ray.coordinator import CoordinatorCore, gpu_hours, over_budget
from llmzero_ray.coordinator.proposals import unanswered
from llmzero_ray.coordinator.runs import PhaseRun, SlotState
from llmzero_ray.estimate import LEAST_S, Estimate, TimeLimits
from llmzero_ray.journal import active_seconds
from llmzero_ray.records import Event
from llmzero_ray.records import events as ev
from llmzero_ray.storage.presence import beat

from .event_loop import Post
from .gauges import Gauges
from .names import name_on_cluster
from .runner_pool import RunnerPool
from .threads import Threads

logger = logging.getLogger("llmzero_ray.actors.monitor")
_LOOKS = 20
"""Number of checks for hanging phases within the shortest limit."""
_ANSWER_S = 30.0
"""Timeout of a health call, in seconds. After it, the runner counts as silent since its last answer."""


class SearchMonitor:
    """Heartbeat, time and cost limits, and metrics of one search. `events` are all events so far, `newest` is
    `HangDetector.newest`."""

    EVERY_S = 0.5

    def __init__(
        self,
        core: CoordinatorCore,
        post: Post,
        root: Path,
        events: tuple[Event, ...],
        newest: Mapping[int, Mapping[str, float]],
    ) -> None:
        self._core, self._post, self._root, self._newest = core, post, root, newest
        self._gauges = Gauges(name_on_cluster(root))
        self._threads = Threads("heartbeat")
        self._worked_before, self._since = active_seconds(events), time.monotonic()

    async def beat(self) -> None:
        """Write the heartbeat, by which commands on other machines see that the search is alive."""
        await self._threads.run(beat, self._root)

    async def check_limits(self) -> None:
        """Post an event for each budget limit that is reached and each approval whose deadline has passed."""
        if self._core.stage == "searching":
            worked_s = self._worked_before + time.monotonic() - self._since
            for reached in over_budget(self._core, worked_s=worked_s, now=time.time()):
                await self._post(reached)
            for accepted in unanswered(self._core, now=time.time()):
                await self._post(accepted)

    async def export_metrics(self) -> None:
        """Set Ray's metrics to the current state."""
        busy, idle = gpu_hours(self._core, time.time())
        self._gauges.observe(self._core, busy_gpu_hours=busy, idle_gpu_hours=idle, newest=self._newest)


class HangDetector:
    """Finds phases whose stage lasts far longer than usual, and runners that do not answer."""

    def __init__(self, core: CoordinatorCore, post: Post, pool: RunnerPool) -> None:
        self._core, self._post, self._pool = core, post, pool
        self._answered: dict[tuple[int | str, ...], float] = {}
        """(node, attempt), or (slot, its runner's number, policy scored) -> when the runner last answered
        (monotonic seconds)."""
        self.newest: dict[int, Mapping[str, float]] = {}
        """Node -> the newest values of its phase that its runner reported (`MetricBuffer.newest`)."""

    def every_s(self) -> float:
        """Seconds between two checks."""
        return min(10.0, max(0.2, (self._core.config.engine.hang_min_s or LEAST_S) / _LOOKS))

    async def check(self) -> None:
        """Check every slot that trains or scores, and post hangs. The core then has the runner killed."""
        runs = [run for run in self._core.runs.values() if run.active and run.started]
        await asyncio.gather(*(self._check_run(run) for run in runs if run.silent is None))
        scoring = [slot for slot in self._core.slots if slot.ready and slot.scoring]
        known = {(run.node, run.attempt) for run in runs} | {_scoring_key(slot) for slot in scoring}
        self._answered = {key: at for key, at in self._answered.items() if key in known}
        await asyncio.gather(*(self._check_scoring(slot) for slot in scoring))

    async def _check_run(self, run: PhaseRun) -> None:
        key, limit_s = (run.node, run.attempt), self._core.config.engine.hang_min_s or LEAST_S
        answered = self._answered.setdefault(key, time.monotonic())
        try:
            health = await asyncio.wait_for(self._pool.health(run.slot), _ANSWER_S)
        except TimeoutError:
            silent_s = time.monotonic() - answered
            if silent_s > limit_s:
                await self._report(run, "runner", silent_s, limit_s)
            return
        except Exception as error:  # noqa: BLE001 - a lost runner is noticed where its phase is awaited
            logger.debug("node=%d: %s", run.node, error)
            return
        self._answered[key] = time.monotonic()
        stage: dict[str, Any] | None = health["stage"]
        if health["current"] != key:
            return
        self.newest[run.node] = health["newest"]
        if stage is None:
            return
        quiet_s, limit_s = _quiet_s(stage), self._limit_s(stage, run)
        if quiet_s > limit_s:
            await self._report(run, stage["name"], quiet_s, limit_s)

    def _limit_s(self, stage: dict[str, Any], run: PhaseRun | None) -> float:
        """Seconds without progress after which a stage of this run, or of an evaluation if `run` is None,
        counts as hanging."""
        engine = self._core.config.engine
        hang_s = phase_limits(self._core, run).hang_s
        limit_s = max(hang_s, engine.hang_factor * (stage["usual_s"] or 0.0))
        return max(limit_s, engine.start_timeout_s) if stage["name"] == "start" else limit_s

    async def _check_scoring(self, state: SlotState) -> None:
        """Kill the runner of a hanging evaluation. The task that awaits the evaluation handles the loss."""
        slot, key = state.index, _scoring_key(state)
        answered = self._answered.setdefault(key, time.monotonic())
        try:
            stage = (await asyncio.wait_for(self._pool.health(slot), _ANSWER_S))["stage"]
        except TimeoutError:
            if time.monotonic() - answered > (self._core.config.engine.hang_min_s or LEAST_S):
                logger.error("slot=%d does not answer while it scores: killed", slot)
                self._pool.kill(slot)
            return
        except Exception as error:  # noqa: BLE001 - as above
            logger.debug("slot=%d: %s", slot, error)
            return
        self._answered[key] = time.monotonic()
        if stage is not None and _quiet_s(stage) > self._limit_s(stage, None):
            logger.error("slot=%d hangs in stage %s: killed", slot, stage["name"])
            self._pool.kill(slot)

    async def _report(self, run: PhaseRun, stage: str, since_s: float, limit_s: float) -> None:
        silent = ev.RunnerSilent(
            slot=run.slot,
            node=run.node,
            phase_attempt=run.attempt,
            stage=stage,
            since_s=since_s,
            limit_s=limit_s,
            source=f"watchdog:{run.node}",
            attempt=run.attempt,
        )
        await self._post(silent)


def phase_limits(core: CoordinatorCore, run: PhaseRun | None) -> TimeLimits:
    """Time limits of a run's phase, or of the root's configuration if `run` is None."""
    started = core.started
    assert started is not None
    spec = None if run is None else run.spec
    task = started.task
    rows = [task.get(name) or 0 for name in ("n_val", "n_test", "n_confirm")]
    estimate = Estimate(core.config, model_path=task.get("model_path"))
    return estimate.time_limits(started.root if spec is None else spec.hyperparameters, rows=max(rows))


def _quiet_s(stage: dict[str, Any]) -> float:
    """Seconds without progress, or since the stage began if the engine, such as a user's own, reports no
    progress."""
    quiet_s = stage.get("quiet_s")
    return float(stage["since_s"] if quiet_s is None else quiet_s)


def _scoring_key(slot: SlotState) -> tuple[int | str, ...]:
    return slot.index, slot.generation, str(slot.scoring)
