"""Asks agents, and tells the stopper whom running phases have to beat: everything that needs curves of nodes.

Questions are built on the coordinator's loop, curves are read and agents answer in threads. Not here:
hardware.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from llmzero_ray import commands as cmd
from llmzero_ray import events as ev
from llmzero_ray.agents.base import Curves, ErrorRequest, ProposalRequest
from llmzero_ray.coordinator import build_request, incumbent_path, node_view, request_record, task_view
from llmzero_ray.errors import CapReachedError
from llmzero_ray.failpoints import reach
from llmzero_ray.records import Proposal
from llmzero_ray.series import load_curves

from .prefetch import Prefetch

if TYPE_CHECKING:
    from llmzero_ray.coordinator import CoordinatorCore

    from .coordinator import SearchCoordinator

logger = logging.getLogger("llmzero_ray.actors.asking")


class Asking:
    """One search's way to its agents."""

    def __init__(self, coordinator: SearchCoordinator) -> None:
        self._it = coordinator
        self._told: set[int] = set()
        self.prefetch = Prefetch(coordinator, self)

    async def ask(self, command: cmd.Propose | cmd.Analyze) -> None:
        """Ask the proposer or the error analyzer, and post what it says."""
        source = f"agent:{command.node}"
        early = await self.prefetch.answer(command) if isinstance(command, cmd.Propose) else None
        try:
            proposal = early or await self._asked(self._it.core, command)
        except CapReachedError:
            return await self._it.post(self._over_budget())
        except Exception as error:
            logger.exception("node=%d: the agent gave no answer", command.node)
            reason = f"{type(error).__name__}: {error}"
            failed = ev.ProposalFailed(node=command.node, reason=reason, tries=command.tries)
            return await self._it.post(dataclasses.replace(failed, source=source, sequence=command.tries))
        proposed = ev.Proposed(
            node=command.node, proposal=proposal, tries=command.tries, prefetched=early is not None
        )
        return await self._it.post(dataclasses.replace(proposed, source=source, sequence=command.tries))

    async def propose(self, core: CoordinatorCore, command: cmd.Propose) -> Proposal | None:
        """Ask about a state that may never be; None when there is no answer."""
        try:
            return await self._asked(core, command)
        except Exception as error:  # noqa: BLE001 - the question is asked again if it is really to be asked
            logger.info("node=%d could not be proposed early: %s", command.node, error)
            return None

    async def _asked(self, core: CoordinatorCore, command: cmd.Propose | cmd.Analyze) -> Proposal:
        curves, needed = dict[int, Curves](), list[int]()

        def look_up(node: int) -> Curves:
            if node not in curves:
                needed.append(node)
            return curves.get(node, Curves())

        # A first pass finds out whose curves are needed; meanwhile other slots may have ended more phases.
        while (request := build_request(core, command, look_up)) and needed:
            curves |= await self._curves(needed)
            needed.clear()
        proposal = await asyncio.to_thread(self._answer, request)
        await asyncio.to_thread(self._keep, command, request, proposal)
        reach("agent.answered")
        return proposal

    def _keep(
        self, command: cmd.Propose | cmd.Analyze, request: ProposalRequest | ErrorRequest, proposal: Proposal
    ) -> None:
        """Question and answer beside the node; large ones take a while to become text."""
        agent = "error_analyzer" if isinstance(request, ErrorRequest) else "proposer"
        record = {"request": request_record(request), "answer": proposal}
        self._it.storage.write_agent_record(command.node, f"{agent}-{command.tries}", record)

    def _over_budget(self) -> ev.BudgetReached:
        core = self._it.core
        limit = core.config.budget.dollars or 0.0
        return ev.BudgetReached(
            kind="dollars", used=core.dollars, limit=limit, source=f"ledger:dollars:{limit:g}"
        )

    async def push_incumbent(self, command: cmd.PushIncumbent) -> None:
        """Give the stopper the best node with its path curve, and the phases that have ended since."""
        core = self._it.core
        done = [n for n, run in core.runs.items() if n >= 0 and run.outcome is not None]
        fresh = [node for node in done if node not in self._told]
        self._told.update(fresh)
        curves = await self._curves([command.node, *fresh, *(node for node, _, _ in command.path)])
        views = {node: node_view(core, node, curves.__getitem__) for node in (command.node, *fresh)}
        path = incumbent_path(command, curves.__getitem__)
        self._it.stopper.set_incumbent.remote(views[command.node], path, tuple(views[n] for n in fresh))

    def forget(self) -> None:
        """The stopper lost its memory: tell it everything again."""
        self._told.clear()

    def watch(self, slot: int, node: int, attempt: int) -> None:
        """Have the stopper watch a phase; nobody watches the reference, which is to be trained to its end."""
        if node != ev.REFERENCE:
            view = node_view(self._it.core, node, lambda _: Curves())
            self._it.stopper.watch.remote(slot, attempt, view, task_view(self._it.core))

    def _answer(self, request: ProposalRequest | ErrorRequest) -> Proposal:
        agents = self._it.agents
        if isinstance(request, ErrorRequest):
            return agents.error_analyzer.analyze(request)
        return agents.proposer.propose(request)

    async def _curves(self, nodes: Iterable[int]) -> dict[int, Curves]:
        storage, wanted = self._it.storage, dict.fromkeys(nodes)
        return await asyncio.to_thread(lambda: {node: load_curves(storage, node) for node in wanted})
