"""Evaluations after a search on fresh validation items and on the test split, and the files of its outcome.

Not here: which policies are evaluated (llmzero_ray.coordinator.final_evaluation), the report
(llmzero_ray.report).
"""

from __future__ import annotations

import asyncio
import logging

from llmzero_ray.coordinator import CoordinatorCore
from llmzero_ray.coordinator.final_evaluation import numbered
from llmzero_ray.errors import EngineError, EngineLostError
from llmzero_ray.prepared.aggregate import macro_average
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.metrics import mean_score
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import write_items

from .event_loop import Post
from .runner_pool import RunnerPool
from .runner_recovery import RunnerRecovery

logger = logging.getLogger("llmzero_ray.actors.final_evaluation")


class FinalEvaluator:
    """Scores policies of one search after its end. `test` is the path of the test split's parquet file."""

    def __init__(
        self,
        core: CoordinatorCore,
        post: Post,
        storage: SearchStorage,
        *,
        pool: RunnerPool,
        recovery: RunnerRecovery,
        test: str,
    ) -> None:
        self._core, self._post, self._storage = core, post, storage
        self._pool, self._recovery = pool, recovery
        self._rows = {"test": test, "confirm": str(storage.paths.confirm_rows)}

    async def evaluate(self, command: cmd.Evaluate) -> None:
        """Score a policy on the split that the command names."""
        import ray

        if not self._pool.has_runner(command.slot):
            return None  # the runner is being closed; the core repeats the command for the next one
        runner, tokens = self._pool.runner(command.slot), self._core.config.eval.max_response_length
        source = numbered(f"final:{command.what}", command.extension)
        try:
            items = await runner.evaluate.remote(command.adapter, self._rows[command.split], tokens)
        except (ray.exceptions.RayActorError, EngineLostError) as error:
            return await self._recovery.lost(command.slot, None, 0, str(error))
        except (ray.exceptions.RayError, EngineError) as error:
            reason = str(getattr(error, "cause", None) or error)
            return await self._post(ev.FinalFailed(what=command.what, reason=reason, source=source))
        await asyncio.to_thread(write_items, self._storage.paths.final(command.what), items)
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
        return await self._post(scored)

    async def write_outcome(self, _: cmd.WriteOutcome) -> None:
        """Write strategy.yaml, best/ and the report."""
        from llmzero_ray.report import write_outcome

        try:
            problem = (await asyncio.to_thread(write_outcome, self._storage)).problem
        except Exception as error:
            logger.exception("the outcome could not be written")
            problem = f"{type(error).__name__}: {error}"
        await self._post(ev.OutcomeWritten(problem=problem))
