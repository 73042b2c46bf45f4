"""Delivery of the stopper's verdicts to the coordinator, which makes them durable and stops the phase.

It retries while the coordinator restarts or is replaced. A hard STOP does not wait for a coordinator that
cannot be reached.
"""

from __future__ import annotations

import asyncio
from typing import Any

from llmzero_ray.records.events import VerdictPosted

from .names import coordinator_name, find_actor

_HARD_S = 10.0
"""Seconds that a hard verdict waits for the coordinator before the phase is stopped without it."""
_RETRY_S = 2.0


class VerdictDelivery:
    """Delivers the verdicts of one search."""

    def __init__(self, search: str) -> None:
        self._search = search
        self._coordinator: Any = None

    async def deliver(self, runner: Any, verdict: VerdictPosted) -> None:
        """Post until the coordinator has it. After a timeout, a hard STOP also goes directly to the
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

    async def _post(self, verdict: VerdictPosted) -> None:
        import ray

        while True:
            known = self._coordinator is not None
            try:
                if not known:
                    self._coordinator = await asyncio.to_thread(find_actor, coordinator_name(self._search))
                await self._coordinator.post.remote(verdict)
                return
            except (ValueError, ray.exceptions.RayError):
                self._coordinator = None
                if not known:  # else another one may have its name by now
                    await asyncio.sleep(_RETRY_S)
