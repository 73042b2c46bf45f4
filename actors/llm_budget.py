"""Budget of a search's language-model calls: the one ledger of the search, and the ledger's clients.

Every reservation is in the journal before its request is sent. If a process dies during a call, the call
counts at its worst case until its cost is known. Not here: sums and caps (llmzero_ray.agents.llm.budget),
other services of the agents (agent_services.py).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from llmzero_ray.agents.backend import MODEL_BACKENDS, llm_settings
from llmzero_ray.agents.llm.api_key import read_key
from llmzero_ray.agents.llm.budget import FALLBACK, BudgetLedger, LedgerEntry, Reservation
from llmzero_ray.agents.llm.call_records import ledger_of, lost_event, open_reservations, reserved_event
from llmzero_ray.agents.llm.messages import Usage
from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import AgentError, CapReachedError, LlmzeroError
from llmzero_ray.records import Event
from llmzero_ray.records import events as ev

from .names import coordinator_name, find_actor

_RESTART_S = 60.0
"""Seconds that `RemoteBudget.settle` waits for a coordinator that is restarting."""
_REPLY_S = 30.0

T = TypeVar("T")


class SearchBudget:
    """The coordinator's ledger, rebuilt from the journal, for agents in this process and in the stopper's.

    The callback `record` makes an event durable or raises.

    Raises:
        AgentError: this process has no key for the agents' model.
    """

    def __init__(
        self,
        config: SearchConfig,
        events: Sequence[Event],
        record: Callable[[Event], Coroutine[Any, Any, None]],
    ) -> None:
        started = next(event for event in events if isinstance(event, ev.SearchStarted))
        self.facts: dict[str, Any] = dict(started.agents)
        """Prompts and price, frozen when the search began."""
        self.ledger: BudgetLedger | None = None
        """The ledger, or None if the agents use no language model."""
        if config.agents.backend in MODEL_BACKENDS:
            self.ledger = ledger_of(self.facts, config.budget.dollars, events)
        if config.agents.backend == "claude":
            read_key(llm_settings(config.agents))  # this process may run on another machine than the command
        self._agents, self._record = config.agents, record
        self._holders: dict[str, ev.CallHolder] = {}
        """Id of each open reservation -> its holder."""
        self._settled: dict[str, LedgerEntry] = {}
        """Id of each reservation whose cost was reported -> its entry."""
        for reservation, holder in open_reservations(events).values():
            if self.ledger is not None:
                self.ledger.restore(reservation)
                self._holders[reservation.id] = holder

    def use(self, config: SearchConfig) -> None:
        """Apply changed settings: the cap."""
        if self.ledger is not None:
            self.ledger.cap_dollars = config.budget.dollars

    async def reserve(
        self, agent: str, node: int, worst: Usage, *, holder: ev.CallHolder, id_: str
    ) -> Reservation:
        """Reserve `worst` for a call by `holder`. The reservation is durable when this returns. Idempotent:
        the same id returns the same reservation.

        Raises:
            CapReachedError: not enough is left.
            LlmzeroError: the journal cannot be written.
        """
        assert self.ledger is not None
        known = next((open_ for open_ in self.ledger.open if open_.id == id_), None)
        if known is not None:
            return known
        reservation = self.ledger.reserve(agent, node, worst, id_)
        self._holders[id_] = holder
        try:
            await self._record(reserved_event(reservation, holder))
        except BaseException:  # includes cancellation by a caller that timed out; the request is not sent
            self._holders.pop(id_, None)
            self.ledger.release(reservation)
            raise
        return reservation

    async def settle(self, reservation: Reservation, **spent: Any) -> LedgerEntry:
        """Book the cost of a reservation, even of one that this ledger does not know. Idempotent: a client in
        another process repeats the call if the reply is late."""
        assert self.ledger is not None
        entry = self._settled.get(reservation.id)
        if entry is None:
            known = self._holders.pop(reservation.id, None) is not None
            book = self.ledger.settle if known else self.ledger.book
            entry = self._settled[reservation.id] = book(reservation, **spent)
        return entry

    def settle_lost(self, holder: ev.CallHolder) -> list[ev.AgentCalled]:
        """Book every open reservation of `holder`, a process that died, at its worst case, because the
        provider may have billed it in full. Returns an event for each call."""
        lost: list[ev.AgentCalled] = []
        if self.ledger is None:
            return lost
        for reservation in self.ledger.open:
            if self._holders.get(reservation.id) != holder:
                continue
            del self._holders[reservation.id]
            self.ledger.settle(reservation, usage=None, latency_s=0.0, outcome="lost")
            lost.append(lost_event(reservation, self._model_of(reservation.agent)))
        return lost

    def _model_of(self, agent: str) -> str:
        own = {str(name): one.model for name, one in self._agents.per_agent.items()}
        own[FALLBACK] = self._agents.fallback_model
        return own.get(agent) or self._agents.model


class LocalBudget:
    """Client of the coordinator's budget for threads of its own process. The thread of `loop`, its event
    loop, must not use it."""

    def __init__(self, budget: SearchBudget, loop: asyncio.AbstractEventLoop) -> None:
        self._budget, self._loop = budget, loop

    def reserve(self, agent: str, node: int, worst: Usage) -> Reservation:
        """Reserve `worst`. The reservation is in the journal when this returns.

        Raises:
            CapReachedError: not enough is left.
            AgentError: it could not be journalled; the call must not be made.
        """
        id_ = uuid.uuid4().hex
        work = self._budget.reserve(agent, node, worst, holder="coordinator", id_=id_)
        return self._wait_for(work)

    def settle(
        self, reservation: Reservation, *, usage: Usage | None, latency_s: float, outcome: str
    ) -> LedgerEntry:
        """Book the cost."""
        return self._wait_for(
            self._budget.settle(reservation, usage=usage, latency_s=latency_s, outcome=outcome)
        )

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return done.result(timeout=_REPLY_S)
        except (CapReachedError, AgentError):
            raise
        except concurrent.futures.TimeoutError:
            done.cancel()
            raise AgentError(f"the journal was not written within {_REPLY_S:.0f} s") from None
        except LlmzeroError as error:
            raise AgentError(f"the journal cannot be written: {error}") from error


class RemoteBudget:
    """Client of the coordinator's budget for the stopper's process, through the coordinator's actor."""

    def __init__(self, root: Path) -> None:
        """`root` is the search's directory."""
        self._root = root

    def reserve(self, agent: str, node: int, worst: Usage) -> Reservation:
        """Reserve `worst` in the coordinator's ledger.

        Raises:
            CapReachedError: not enough is left.
            AgentError: the coordinator cannot be reached; the call must not be made.
        """
        id_ = uuid.uuid4().hex  # Ray retries the call if the coordinator is killed
        reservation = self._call_coordinator(
            "reserve", agent, node, worst, holder="stopper", id_=id_, wait_s=0.0
        )
        assert isinstance(reservation, Reservation)
        return reservation

    def settle(
        self, reservation: Reservation, *, usage: Usage | None, latency_s: float, outcome: str
    ) -> LedgerEntry:
        """Book the cost, waiting up to a minute for a coordinator that is restarting."""
        spent = {"usage": usage, "latency_s": latency_s, "outcome": outcome}
        entry = self._call_coordinator("settle", reservation, wait_s=_RESTART_S, **spent)
        assert isinstance(entry, LedgerEntry)
        return entry

    def _call_coordinator(self, what: str, *arguments: Any, wait_s: float, **named: Any) -> Any:
        import ray

        until = time.monotonic() + wait_s
        while True:
            try:
                actor = find_actor(coordinator_name(self._root))
                return ray.get(actor.use_budget.remote(what, *arguments, **named), timeout=_REPLY_S)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, CapReachedError):
                    raise error.cause from None
                raise AgentError(f"the ledger refused: {error.cause}") from None
            except (ValueError, ray.exceptions.RayError) as error:
                if time.monotonic() >= until:
                    raise AgentError(f"the coordinator cannot be reached: {type(error).__name__}") from None
                time.sleep(1.0)
