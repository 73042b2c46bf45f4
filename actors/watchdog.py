"""Notices phases that hang: a stage that lasts far longer than usual, or a runner that answers nobody.

Not here: what follows (the core has the runner killed and the phase repeated).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from llmzero_ray import events as ev

if TYPE_CHECKING:
    from llmzero_ray.coordinator.state import Run

    from .coordinator import SearchCoordinator

logger = logging.getLogger("llmzero_ray.actors.watchdog")
_LOOKS = 20
"""Looks per shortest limit."""
_ANSWER_S = 30.0
"""A health call that is not answered by then counts as silence from its beginning."""


class Watchdog:
    """Looks at every running phase of one search, again and again."""

    def __init__(self, coordinator: SearchCoordinator) -> None:
        self._it = coordinator
        self._heard: dict[tuple[int, int], float] = {}

    async def watch(self) -> None:
        """Until the search is over."""
        while not self._it.over.is_set():
            engine = self._it.core.config.engine
            await asyncio.sleep(min(10.0, max(0.2, engine.hang_min_s / _LOOKS)))
            runs = [run for run in self._it.core.runs.values() if run.active and run.started]
            await asyncio.gather(*(self._look(run) for run in runs if run.silent is None))
            scoring = [slot.index for slot in self._it.core.slots if slot.ready and slot.scoring]
            await asyncio.gather(*(self._look_at_scoring(slot) for slot in scoring))

    async def _look(self, run: Run) -> None:
        key, engine = (run.node, run.attempt), self._it.core.config.engine
        heard = self._heard.setdefault(key, time.monotonic())
        try:
            health = await asyncio.wait_for(self._it.slots.health(run.slot), _ANSWER_S)
        except TimeoutError:
            silent_s = time.monotonic() - heard
            if silent_s > engine.hang_min_s:
                await self._say(run, key, "runner", silent_s, engine.hang_min_s)
            return
        except Exception as error:  # noqa: BLE001 - a lost runner is noticed where its phase is waited for
            logger.debug("node=%d: %s", run.node, error)
            return
        self._heard[key] = time.monotonic()
        stage: dict[str, Any] | None = health["stage"]
        if stage is not None and health["current"] == key and stage["since_s"] > self._limit_s(stage):
            await self._say(run, key, stage["name"], stage["since_s"], self._limit_s(stage))

    def _limit_s(self, stage: dict[str, Any]) -> float:
        engine = self._it.core.config.engine
        limit_s = max(engine.hang_min_s, engine.hang_factor * (stage["usual_s"] or 0.0))
        return max(limit_s, engine.start_timeout_s) if stage["name"] == "start" else limit_s

    async def _look_at_scoring(self, slot: int) -> None:
        """A final measurement is no phase: its runner is killed, its loss is noticed where it is awaited."""
        import ray

        try:
            stage = (await asyncio.wait_for(self._it.slots.health(slot), _ANSWER_S))["stage"]
        except Exception as error:  # noqa: BLE001 - as above
            logger.debug("slot=%d: %s", slot, error)
            return
        if stage is not None and stage["since_s"] > self._limit_s(stage):
            logger.error("slot=%d hangs in stage %s: killed", slot, stage["name"])
            ray.kill(self._it.slots.runner(slot))

    async def _say(self, run: Run, key: tuple[int, int], stage: str, since_s: float, limit_s: float) -> None:
        node, attempt = key
        silent = ev.RunnerSilent(
            slot=run.slot,
            node=node,
            phase_attempt=attempt,
            stage=stage,
            since_s=since_s,
            limit_s=limit_s,
            source=f"watchdog:{node}",
            attempt=attempt,
        )
        await self._it.post(silent)
