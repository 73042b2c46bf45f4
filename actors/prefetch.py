"""Proposes the likely next phase while the current one trains, so that its slot need not wait for an agent.

The guess: the phase ends with what it has reached so far. A shadow of the search, replayed from the journal,
is told so and decides; what it would ask the proposer is asked now. The answer is used when the real
decision is the same one, and dropped otherwise. It has not seen the phase's last steps, which is the price:
off by default (`agents.prefetch`). Not here: asking (asking.py).
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from llmzero_ray import commands as cmd
from llmzero_ray import events as ev
from llmzero_ray.coordinator import CoordinatorCore, replay
from llmzero_ray.records import Event, PhaseResult, Proposal
from llmzero_ray.series import last_points, load_points, validations

if TYPE_CHECKING:
    from llmzero_ray.coordinator.state import Run

    from .asking import Asking
    from .coordinator import SearchCoordinator

logger = logging.getLogger("llmzero_ray.actors.prefetch")
_SHARE = 0.7
"""Of a phase's steps are done before the next one is proposed: early enough for an answer, late enough to
know."""
_LOOK_S = 1.0


class Prefetch:
    """Answers of one search that may be needed soon, at most one per running phase."""

    def __init__(self, coordinator: SearchCoordinator, asking: Asking) -> None:
        self._it, self._asking = coordinator, asking
        self._guesses: dict[tuple[int, int], tuple[cmd.Propose, asyncio.Task[Proposal | None]]] = {}
        self._tried: set[tuple[int, int]] = set()

    async def watch(self) -> None:
        """Until the search is over."""
        while self._it.core.config.agents.prefetch and not self._it.over.is_set():
            await asyncio.sleep(_LOOK_S)
            for run in [run for run in self._it.core.runs.values() if run.active and run.started]:
                if run.node >= 0 and (run.node, run.attempt) not in self._tried and await self._is_late(run):
                    self._tried.add((run.node, run.attempt))
                    await self._guess(run)

    async def answer(self, command: cmd.Propose) -> Proposal | None:
        """The answer to a question that was guessed, waited for if it is on its way; None: ask now."""
        for key, (guess, task) in tuple(self._guesses.items()):
            if guess == command:
                del self._guesses[key]
                return await task
            if guess.node <= command.node:  # the search went another way
                del self._guesses[key]
                task.cancel()
        return None

    async def _is_late(self, run: Run) -> bool:
        """Whether most of the phase is done and it has a score."""
        try:
            health = await asyncio.wait_for(self._it.slots.health(run.slot), _LOOK_S)
        except Exception:  # noqa: BLE001 - a lost runner is noticed where its phase is waited for
            return False
        known = health["current"] == (run.node, run.attempt) and health["step"] is not None
        if run.spec is None or not known or health["step"] < _SHARE * run.spec.n_steps:
            return False
        _, best = await asyncio.to_thread(last_points, self._it.storage, run.node, run.attempt)
        return best is not None

    async def _guess(self, run: Run) -> None:
        """Ask what would be asked if the phase ended now; nothing when the next run needs no proposer."""
        assert self._it.desk is not None
        events, root = self._it.desk.events, self._it.storage.paths.root
        ended = await asyncio.to_thread(self._as_if_ended, run)
        shadow = await asyncio.to_thread(_ahead, events, ended, root)
        if shadow is None:
            return
        core, command = shadow
        logger.info("node=%d is proposed while node=%d trains", command.node, run.node)
        asked = asyncio.get_running_loop().create_task(self._asking.propose(core, command))
        self._guesses[run.node, run.attempt] = (command, asked)

    def _as_if_ended(self, run: Run) -> Event:
        storage = self._it.storage
        points = load_points(storage, run.node)
        scores = validations(points)
        best = max(scores, key=lambda step: (scores[step], -step), default=None)
        result = PhaseResult(
            node=run.node,
            status="completed",
            stop_reason="n_steps",
            steps_done=points[-1].step if points else 0,
            best_score=None if best is None else scores[best],
            best_step=best,
            start_score=None,
            final_score=None,
            checkpoints=storage.checkpoints(run.node, scores),
            wall_s=0.0,
            train_wall_s=0.0,
            gpu_hours=0.0,
            warm=True,
        )
        return ev.PhaseFinished(node=run.node, phase_attempt=run.attempt, result=result)


def _ahead(events: tuple[Event, ...], ended: Event, root: Path) -> tuple[CoordinatorCore, cmd.Propose] | None:
    """The search as it would be, and the question it would ask; None: none to the proposer."""
    core = replay(events, root)
    pending = [ended]
    known = {command.id for command in core.outstanding()}
    while pending:
        core.apply(pending.pop(0))
        fresh = [command for command in core.outstanding() if command.id not in known]
        known |= {command.id for command in fresh}
        pending += [command.event for command in fresh if isinstance(command, cmd.Record)]
        asked = [command for command in fresh if isinstance(command, cmd.Propose)]
        if asked:
            return core, asked[0]
    return None
