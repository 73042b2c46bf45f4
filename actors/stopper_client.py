"""The coordinator's client of the stopper actor: sends it the phases to watch and the incumbent."""

from __future__ import annotations

import time
from typing import Any

from llmzero_ray.coordinator import (
    CoordinatorCore,
    budget_of,
    earlier_verdicts,
    incumbent_chain,
    node_view,
    task_view,
)
from llmzero_ray.records import commands as cmd
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.records.metrics import Curves
from llmzero_ray.storage import SearchStorage

from .agent_calls import read_curves
from .runner_pool import RunnerPool


class StopperClient:
    """Client of one search's stopper. `actor` is its handle, `pool` has the runners that it watches."""

    def __init__(self, core: CoordinatorCore, storage: SearchStorage, actor: Any, pool: RunnerPool) -> None:
        self._core, self._storage, self._actor, self._pool = core, storage, actor, pool

    def use_settings(self) -> None:
        """Send the search's configuration, whose settings may have changed."""
        self._actor.use_settings.remote(self._storage.relocated(self._core.config).to_json())

    async def set_incumbent(self, command: cmd.PushIncumbent) -> None:
        """Send the incumbent with the curves along its path."""
        curves = await read_curves(self._storage, [node for node, _, _ in command.path])
        chain = incumbent_chain(self._core, command, curves.__getitem__)
        self._actor.set_incumbent.remote(chain, time.time())

    def watch(self, slot: int, node: int, attempt: int) -> None:
        """Watch a phase. The reference is not watched, because it always trains to its end."""
        if node != REFERENCE:
            view = node_view(self._core, node, lambda _: Curves())
            verdicts = earlier_verdicts(self._core, node, attempt)
            budget = budget_of(self._core, node)
            ended = tuple(
                node_view(self._core, number, lambda _: Curves())
                for number, run in self._core.runs.items()
                if run.score is not None and number not in (node, REFERENCE)
            )
            task, runner = task_view(self._core), self._pool.runner(slot)
            self._actor.watch.remote(slot, runner, attempt, view, task, time.time(), verdicts, budget, ended)

    async def resend(self) -> None:
        """Send settings, the incumbent and all running phases to a restarted stopper."""
        self.use_settings()
        for command in self._core.outstanding():
            if isinstance(command, cmd.PushIncumbent):
                await self.set_incumbent(command)
        for run in self._core.runs.values():
            if run.active and run.started:
                self.watch(run.slot, run.node, run.attempt)
