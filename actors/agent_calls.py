"""Calls of the proposer and the error analyzer.

Requests are built on the coordinator's event loop. Threads read the curves and call the agents.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from llmzero_ray.agents.backend import Agents
from llmzero_ray.coordinator import CoordinatorCore, build_request, request_record
from llmzero_ray.dynamics.stored_outcomes import with_outcomes
from llmzero_ray.errors import CapReachedError, OutageError
from llmzero_ray.records import Proposal
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.agents import ErrorRequest, ProposalRequest
from llmzero_ray.records.metrics import KL, REWARDS, Curves
from llmzero_ray.search import needs_model
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import load_curves
from llmzero_ray.utils.failpoints import reach

from .event_loop import Post

logger = logging.getLogger("llmzero_ray.actors.agent_calls")
_FIRST_WAIT_S, _LONGEST_WAIT_S = 60.0, 900.0
_MAX_CALLS = 256
"""Maximum concurrent calls. A call takes minutes, so calls have their own threads and do not delay the
journal's."""


class AgentCalls:
    """Agent calls of one search."""

    def __init__(self, core: CoordinatorCore, post: Post, storage: SearchStorage, agents: Agents) -> None:
        self._core, self._post, self._storage, self._agents = core, post, storage, agents
        self._threads = ThreadPoolExecutor(_MAX_CALLS, thread_name_prefix="agent")
        self._validations = dict[int, Curves]()
        """Node -> validations of its phase, once the phase has ended."""
        self._one_call = defaultdict[int, asyncio.Lock](asyncio.Lock)
        """Node -> lock of its calls: a run that was cancelled and revived may still have one in flight."""

    def use_settings(self) -> None:
        """Apply changed settings to agents that are language models."""
        for agent in (self._agents.proposer, self._agents.error_analyzer):
            if use := getattr(agent, "use_settings", None):
                use(self._core.config.agents)

    async def call(self, command: cmd.Propose | cmd.Analyze) -> None:
        """Call the proposer or the error analyzer and post its proposal, unless an earlier call did."""
        async with self._one_call[command.node]:
            if self._core.runs[command.node].needs_answer(command.tries):
                await self._ask(command)

    async def _ask(self, command: cmd.Propose | cmd.Analyze) -> None:
        source = f"agent:{command.node}"
        try:
            proposal = await self._proposal(command)
        except OutageError:
            return None  # the search or the run ended meanwhile; resuming the search repeats the command
        except CapReachedError:
            return await self._post(self._over_budget())
        except Exception as error:
            logger.exception("node=%d: the agent gave no answer", command.node)
            reason = f"{type(error).__name__}: {error}"
            failed = ev.ProposalFailed(node=command.node, reason=reason, tries=command.tries)
            return await self._post(dataclasses.replace(failed, source=source, sequence=command.tries))
        proposed = ev.Proposed(node=command.node, proposal=proposal, tries=command.tries)
        return await self._post(dataclasses.replace(proposed, source=source, sequence=command.tries))

    async def _proposal(self, command: cmd.Propose | cmd.Analyze) -> Proposal:
        """The agent's proposal. During an outage of its model, the call is retried with a fresh request.

        Raises:
            OutageError: the search ended, or the run was cancelled, before the model answered.
        """
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                return await self._call(command)
            except OutageError as error:
                core, run = self._core, self._core.runs[command.node]
                if core.end_reason is not None or core.interrupted is not None or run.stage != "proposing":
                    raise
                logger.warning("node=%d: asked again in %.0f s: %s", command.node, wait_s, error)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def _call(self, command: cmd.Propose | cmd.Analyze) -> Proposal:
        core = self._core
        curves, missing = dict[int, Curves](), list[int]()
        asks_model = core.config.agents.backend != "expert"
        series = (*REWARDS, KL) if asks_model else ()

        def curves_of(node: int) -> Curves:
            if node not in curves:
                missing.append(node)
            return curves.get(node, Curves())

        def validations_of(node: int) -> Curves:
            if needs_model(core.search):
                return curves_of(node)  # its agent may read any metric of any run
            return self._validations[node] if node in self._validations else curves_of(node).selected(series)

        # Each pass finds out whose curves are missing. While they are read, other slots may end more phases.
        while (request := build_request(core, command, curves_of, validations_of)) and missing:
            ended = {node for node in missing if core.runs[node].outcome is not None}
            curves |= await read_curves(self._storage, missing)
            self._validations |= {node: curves[node].selected(series) for node in ended}
            missing.clear()
        if isinstance(request, ProposalRequest) and asks_model:
            val_file = None if core.started is None else core.started.task.get("val")
            request = await asyncio.to_thread(with_outcomes, self._storage, request, val_file)
        loop = asyncio.get_running_loop()
        proposal = await loop.run_in_executor(self._threads, self._answer, request)
        await asyncio.to_thread(self._record, command, request, proposal)
        reach("agent.answered")
        return proposal

    def _answer(self, request: ProposalRequest | ErrorRequest) -> Proposal:
        if isinstance(request, ErrorRequest):
            return self._agents.error_analyzer.analyze(request)
        return self._agents.proposer.propose(request)

    def _record(
        self, command: cmd.Propose | cmd.Analyze, request: ProposalRequest | ErrorRequest, proposal: Proposal
    ) -> None:
        """Write request and proposal to the node's files. Encoding large ones takes a while."""
        agent = "error_analyzer" if isinstance(request, ErrorRequest) else "proposer"
        record = {"request": request_record(request), "answer": proposal}
        self._storage.write_agent_record(command.node, f"{agent}-{command.tries}", record)

    def _over_budget(self) -> ev.BudgetReached:
        limit = self._core.config.budget.dollars or 0.0
        source = f"ledger:dollars:{limit:g}:{self._core.n_settings}"
        return ev.BudgetReached(kind="dollars", used=self._core.dollars, limit=limit, source=source)


async def read_curves(storage: SearchStorage, nodes: Iterable[int]) -> dict[int, Curves]:
    """Curves of several nodes, read in a thread."""
    wanted = dict.fromkeys(nodes)
    return await asyncio.to_thread(lambda: {node: load_curves(storage, node, gains=True) for node in wanted})
