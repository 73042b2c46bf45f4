"""The measurements after a search, and its outcome on the disk.

Not here: what is measured (llmzero_ray.coordinator.final), the report (llmzero_ray.report).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from llmzero_ray import commands as cmd
from llmzero_ray import events as ev
from llmzero_ray.errors import EngineError, EngineLostError
from llmzero_ray.scores import mean_score
from llmzero_ray.series import write_items
from llmzero_ray.tasks.aggregate import macro_average

if TYPE_CHECKING:
    from .coordinator import SearchCoordinator

logger = logging.getLogger("llmzero_ray.actors.finals")


class Finals:
    """The end of one search."""

    def __init__(self, coordinator: SearchCoordinator) -> None:
        self._it = coordinator

    async def score(self, command: cmd.Evaluate) -> None:
        """Score a policy on the test split."""
        import ray

        runner, tokens = self._it.slots.runner(command.slot), self._it.core.config.eval.max_response_length
        source = f"final:{command.what}"
        try:
            items = await runner.evaluate.remote(command.adapter, self._it.task.test, tokens)
        except (ray.exceptions.RayActorError, EngineLostError) as error:
            return await self._it.losses.lost(command.slot, None, 0, str(error))
        except (ray.exceptions.RayError, EngineError) as error:
            reason = str(getattr(error, "cause", None) or error)
            failed = ev.FinalFailed(what=command.what, reason=reason, source=source)
            return await self._it.post(failed)
        await asyncio.to_thread(write_items, self._it.storage.paths.final(command.what), items)
        score = mean_score([item.acc for item in items])
        macro = macro_average((item.data_source, item.acc) for item in items)
        scored = ev.FinalScored(
            what=command.what,
            split=command.split,
            n=len(items),
            mean=score.mean,
            standard_error=score.standard_error or 0.0,
            adapter=command.adapter,
            node=command.node,
            step=command.step,
            macro=macro.mean if macro else None,
            macro_error=macro.standard_error if macro else None,
            source=source,
        )
        return await self._it.post(scored)

    async def write_outcome(self, _: cmd.WriteOutcome) -> None:
        """strategy.yaml, best/ and the report."""
        from llmzero_ray.report import write_outcome

        try:
            problem = (await asyncio.to_thread(write_outcome, self._it.storage)).problem
        except Exception as error:
            logger.exception("the outcome could not be written")
            problem = f"{type(error).__name__}: {error}"
        await self._it.post(ev.OutcomeWritten(problem=problem))
