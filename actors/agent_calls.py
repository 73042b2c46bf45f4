"""Calls of the proposer and the error analyzer: when the core asks for one, or before it is needed.

Requests are built on the coordinator's loop; curves are read and agents are called in threads. `AgentCalls`
calls an agent and posts its proposal. `Prefetcher` requests a proposal for the likely next phase while the
current one trains, so that the slot need not wait for an agent (`agents.prefetch`, off by default).

Not here: agents themselves (llmzero_ray.agents), the early stopper's calls (stopper.py).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

from llmzero_ray import commands as cmd
from llmzero_ray import events as ev
from llmzero_ray.agents.backend import Agents
from llmzero_ray.agents.base import Answer, ErrorRequest, ProposalRequest
from llmzero_ray.agents.shown_answers import load_answers
from llmzero_ray.coordinator import CoordinatorCore, build_request, replay, request_record
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.errors import CapReachedError
from llmzero_ray.failpoints import reach
from llmzero_ray.metric_files import last_points, load_curves, load_points, saved_adapters, with_tokens
from llmzero_ray.metrics import Curves, best_validation, validations
from llmzero_ray.records import Event, PhaseResult, Proposal
from llmzero_ray.search import MODEL_METHODS
from llmzero_ray.storage import SearchStorage

from .event_loop import Post
from .runner_pool import RunnerPool

logger = logging.getLogger("llmzero_ray.actors.agent_calls")
_MAX_CALLS = 256
"""Concurrent calls. They take minutes and have their own threads: the loop's threads are for the journal."""

Prefetch: TypeAlias = Callable[[CoordinatorCore, cmd.Propose], Coroutine[Any, Any, Proposal | None]]


class AgentCalls:
    """One search's calls of its agents."""

    def __init__(self, core: CoordinatorCore, post: Post, storage: SearchStorage, agents: Agents) -> None:
        self._core, self._post, self._storage, self._agents = core, post, storage, agents
        self._threads = ThreadPoolExecutor(_MAX_CALLS, thread_name_prefix="agent")
        self._outlines = dict[int, Curves]()
        """Node -> validations of its phase, once that has ended."""

    async def call(self, command: cmd.Propose | cmd.Analyze, answer: Proposal | None = None) -> None:
        """Call the proposer or the error analyzer and post its proposal; a prefetched `answer` is posted as
        is."""
        source = f"agent:{command.node}"
        try:
            proposal = answer or await self._call(self._core, command)
        except CapReachedError:
            return await self._post(self._over_budget())
        except Exception as error:
            logger.exception("node=%d: the agent gave no answer", command.node)
            reason = f"{type(error).__name__}: {error}"
            failed = ev.ProposalFailed(node=command.node, reason=reason, tries=command.tries)
            return await self._post(dataclasses.replace(failed, source=source, sequence=command.tries))
        proposed = ev.Proposed(
            node=command.node, proposal=proposal, tries=command.tries, prefetched=answer is not None
        )
        return await self._post(dataclasses.replace(proposed, source=source, sequence=command.tries))

    async def prefetch(self, core: CoordinatorCore, command: cmd.Propose) -> Proposal | None:
        """A proposal for a predicted state, which may never occur; None when the call fails."""
        try:
            return await self._call(core, command)
        except Exception as error:  # noqa: BLE001 - a request that is really needed is made again
            logger.info("node=%d could not be proposed early: %s", command.node, error)
            return None

    async def _call(self, core: CoordinatorCore, command: cmd.Propose | cmd.Analyze) -> Proposal:
        curves, missing = dict[int, Curves](), list[int]()

        def curves_of(node: int) -> Curves:
            if node not in curves:
                missing.append(node)
            return curves.get(node, Curves())

        def outline_of(node: int) -> Curves:
            if core.config.search.method in MODEL_METHODS:
                return curves_of(node)  # its agent may read any metric of any run
            return self._outlines[node] if node in self._outlines else curves_of(node).outline()

        answers: tuple[Answer, ...] = ()
        if isinstance(command, cmd.Propose) and core.config.agents.backend != "expert":
            task = core.started.task if core.started is not None else {}
            answers = await asyncio.to_thread(load_answers, self._storage, command.on, task.get("val"))

        # A first pass finds out whose curves are needed; meanwhile other slots may have ended more phases.
        while (request := build_request(core, command, curves_of, outline_of, lambda _: answers)) and missing:
            ended = {node for node in missing if core.runs[node].outcome is not None}
            curves |= await read_curves(self._storage, missing)
            self._outlines |= {node: curves[node].outline() for node in ended}
            missing.clear()
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
        """Write request and proposal with the node's files; large ones take a while to encode."""
        agent = "error_analyzer" if isinstance(request, ErrorRequest) else "proposer"
        record = {"request": request_record(request), "answer": proposal}
        self._storage.write_agent_record(command.node, f"{agent}-{command.tries}", record)

    def _over_budget(self) -> ev.BudgetReached:
        limit = self._core.config.budget.dollars or 0.0
        source = f"ledger:dollars:{limit:g}:{self._core.n_settings}"
        return ev.BudgetReached(kind="dollars", used=self._core.dollars, limit=limit, source=source)


class Prefetcher:
    """Prefetched proposals of one search, at most one per running phase.

    The prediction: the phase ends with its present scores. A replay of the journal, extended by that end,
    makes the decision, and its request to the proposer is sent now. The proposal is used when the real
    decision leads to the same request, and dropped otherwise. Its disadvantage: it has not seen the phase's
    last steps.
    """

    SHARE = 0.7
    """Of a phase's steps are done before the next one is proposed: early enough for an answer, late enough to
    know."""
    EVERY_S = 1.0

    def __init__(
        self,
        core: CoordinatorCore,
        events: Callable[[], tuple[Event, ...]],
        storage: SearchStorage,
        pool: RunnerPool,
        prefetch: Prefetch,
    ) -> None:
        self._core, self._events, self._storage, self._pool = core, events, storage, pool
        self._prefetch = prefetch
        self._guesses: dict[tuple[int, int], tuple[cmd.Propose, asyncio.Task[Proposal | None]]] = {}
        self._tried: set[tuple[int, int]] = set()

    async def check(self) -> None:
        """Prefetch for every phase that is near its last step, once each."""
        for run in [run for run in self._core.runs.values() if run.active and run.started]:
            if run.node >= 0 and (run.node, run.attempt) not in self._tried and await self._is_late(run):
                self._tried.add((run.node, run.attempt))
                await self._guess(run)

    async def answer(self, command: cmd.Propose) -> Proposal | None:
        """The prefetched proposal for this request, awaited if its call is running; None: there is none."""
        for key, (guess, task) in tuple(self._guesses.items()):
            if guess == command:
                del self._guesses[key]
                return await task
            if guess.node <= command.node:  # the prediction was wrong
                del self._guesses[key]
                task.cancel()
        return None

    async def _is_late(self, run: PhaseRun) -> bool:
        """Whether most of the phase is done and it has a score."""
        try:
            health = await asyncio.wait_for(self._pool.health(run.slot), self.EVERY_S)
        except Exception:  # noqa: BLE001 - a lost runner is noticed where its phase is awaited
            return False
        known = health["current"] == (run.node, run.attempt) and health["step"] is not None
        if run.spec is None or not known or health["step"] < self.SHARE * run.spec.n_steps:
            return False
        _, best = await asyncio.to_thread(last_points, self._storage, run.node, run.attempt)
        return best is not None

    async def _guess(self, run: PhaseRun) -> None:
        """Send the request that would follow if the phase ended now; none when the next run needs no
        proposer."""
        ended = await asyncio.to_thread(self._as_if_ended, run)
        ahead = await asyncio.to_thread(_ahead, self._events(), ended, self._storage.paths.root)
        if ahead is None:
            return
        core, command = ahead
        logger.info("node=%d is proposed while node=%d trains", command.node, run.node)
        task = asyncio.get_running_loop().create_task(self._prefetch(core, command))
        self._guesses[run.node, run.attempt] = (command, task)

    def _as_if_ended(self, run: PhaseRun) -> Event:
        storage = self._storage
        points = load_points(storage, run.node)
        scores = validations(points)
        best = best_validation(scores)
        result = PhaseResult(
            node=run.node,
            status="completed",
            stop_reason="n_steps",
            steps_done=points[-1].step if points else 0,
            best_score=None if best is None else best[1],
            best_step=None if best is None else best[0],
            start_score=None,
            final_score=None,
            checkpoints=saved_adapters(storage, run.node, points),
            wall_s=0.0,
            train_wall_s=0.0,
            gpu_hours=0.0,
            warm=True,
        )
        if run.spec is not None:
            result = with_tokens(storage, run.spec, result)
        return ev.PhaseFinished(node=run.node, phase_attempt=run.attempt, result=result)


async def read_curves(storage: SearchStorage, nodes: Iterable[int]) -> dict[int, Curves]:
    """Curves of several nodes, read in a thread."""
    wanted = dict.fromkeys(nodes)
    return await asyncio.to_thread(lambda: {node: load_curves(storage, node, gains=True) for node in wanted})


def _ahead(events: tuple[Event, ...], ended: Event, root: Path) -> tuple[CoordinatorCore, cmd.Propose] | None:
    """(predicted state of the search, its request); None: no request to the proposer follows."""
    core = replay(events, root)
    pending = [ended]
    known = {command.id for command in core.outstanding()}
    while pending:
        core.apply(pending.pop(0))
        fresh = [command for command in core.outstanding() if command.id not in known]
        known |= {command.id for command in fresh}
        pending += [command.event for command in fresh if isinstance(command, cmd.Record)]
        requests = [command for command in fresh if isinstance(command, cmd.Propose)]
        if requests:
            return core, requests[0]
    return None
