"""Ledger of the agents' calls, with a cap in dollars that concurrent calls cannot exceed.

Every attempt of a call reserves its worst case before it is sent. A lost attempt may have been billed and is
booked at its worst case. An attempt that the server rejected costs nothing. Plain Python, thread-safe.
"""

from __future__ import annotations

import logging
import math
import threading
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from llmzero_ray.agents.llm.errors import LlmCallError
from llmzero_ray.agents.llm.messages import LlmCall, LlmResponse, Usage
from llmzero_ray.agents.llm.prices import Price, cost, worst_cost
from llmzero_ray.errors import CapReachedError

logger = logging.getLogger(__name__)

_ROUNDING = 1e-9
"""Tolerance in dollars by which float sums may exceed the cap."""
FALLBACK = "fallback"
"""Agent name for reservations of `agents.fallback_model`, because it has its own price."""
_PLAUSIBLE = 2
"""Multiple of the worst case above which reported tokens are taken for an error."""


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """A finished call, or a lost attempt of one."""

    agent: str
    node: int
    usage: Usage
    dollars: float
    latency_s: float
    outcome: str
    """`ok`, or the error's kind."""
    estimated: bool = False
    """Whether the tokens are a worst case, because the server reported none or implausibly many."""


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """Dollars reserved for one attempt, to be settled exactly once. Copies of one in other processes are
    equal."""

    agent: str
    node: int
    worst: Usage
    dollars: float
    id: str
    """Id that is unique across processes."""


class BudgetClient(Protocol):
    """Client that reserves and settles attempts: a `BudgetLedger`, or a proxy of one in another process."""

    def reserve(self, agent: str, node: int, worst: Usage) -> Reservation:
        """Reserve the worst case. Raises CapReachedError."""
        ...

    def settle(
        self, reservation: Reservation, *, usage: Usage | None, latency_s: float, outcome: str
    ) -> LedgerEntry:
        """Book the cost of the attempt. If `usage` is None, it is unknown and the worst case is booked."""
        ...


class BudgetLedger:
    """Entries, open reservations and the cap of one search."""

    def __init__(
        self,
        price: Price,
        cap_dollars: float | None = None,
        entries: Iterable[LedgerEntry] = (),
        *,
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        """`entries` restores a ledger, for instance after a restart. If `cap_dollars` is None, there is no
        cap. `prices` holds the prices of agents that use another model."""
        self.price = price
        self._prices = dict(prices or {})
        self.cap_dollars = cap_dollars
        self._lock = threading.Lock()
        self._entries = list(entries)
        self._open: dict[str, Reservation] = {}

    def reserve(self, agent: str, node: int, worst: Usage, id_: str | None = None) -> Reservation:
        """Reserve the maximum cost of an attempt; the caller settles it afterwards. If `id_` is None, a new
        one is made.

        Raises:
            CapReachedError: spent + reserved + this would exceed the cap. Nothing is reserved then.
        """
        price = self._price_of(agent)
        dollars = worst_cost(worst, price)
        with self._lock:
            spent, held = self._spent(), self._held()
            if self.cap_dollars is not None and spent + held + dollars > self.cap_dollars + _ROUNDING:
                refusal = CapReachedError(
                    f"budget.dollars is {self.cap_dollars:g}: {spent:.4f} are spent and {held:.4f} set aside "
                    f"for calls under way; the {agent}'s call for node {node} could cost {dollars:.4f}. "
                    "Raise budget.dollars to let agents continue."
                )
                rest = self.cap_dollars - spent - held - worst_cost(replace(worst, output=0), price)
                refusal.affordable_output = price.output_tokens(rest)
                raise refusal
            id_ = id_ or uuid.uuid4().hex
            reservation = Reservation(agent=agent, node=node, worst=worst, dollars=dollars, id=id_)
            self._open[id_] = reservation
        return reservation

    def restore(self, reservation: Reservation) -> None:
        """Restore an open reservation after a restart."""
        with self._lock:
            self._open[reservation.id] = reservation

    def release(self, reservation: Reservation) -> None:
        """Release a reservation whose attempt was not sent, without booking anything."""
        with self._lock:
            self._open.pop(reservation.id, None)

    def settle(
        self, reservation: Reservation, *, usage: Usage | None, latency_s: float, outcome: str
    ) -> LedgerEntry:
        """Book what the attempt cost and free the rest. If `usage` is None, it is unknown and the worst case
        is booked.

        Raises:
            ValueError: the reservation is not open (settled before, or of another ledger).
        """
        with self._lock:
            if reservation.id not in self._open:
                raise ValueError(f"the reservation of {reservation.agent} is not open; settle it once.")
            entry = self._booked(reservation, usage, latency_s, outcome)
            del self._open[reservation.id]
            return entry

    def book(
        self, reservation: Reservation, *, usage: Usage | None, latency_s: float, outcome: str
    ) -> LedgerEntry:
        """Like `settle`, for a reservation that a restart lost. It is booked even above the cap."""
        with self._lock:
            return self._booked(reservation, usage, latency_s, outcome)

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """All entries, in the order of settling."""
        with self._lock:
            return tuple(self._entries)

    @property
    def open(self) -> tuple[Reservation, ...]:
        """Reservations that are not settled, oldest first."""
        with self._lock:
            return tuple(self._open.values())

    @property
    def dollars(self) -> float:
        """Dollars spent so far."""
        with self._lock:
            return self._spent()

    @property
    def reserved(self) -> float:
        """Dollars reserved for calls in flight."""
        with self._lock:
            return self._held()

    def _booked(
        self, reservation: Reservation, usage: Usage | None, latency_s: float, outcome: str
    ) -> LedgerEntry:
        price = self._price_of(reservation.agent)
        believed = usage is not None and _is_plausible(usage, reservation.worst, price)
        if usage is not None and not believed:
            logger.warning(
                "node=%d %s: the server reports %s, more than %d times the call's upper bound %s, which is "
                "booked instead",
                reservation.node, reservation.agent, usage, _PLAUSIBLE, reservation.worst,
            )  # fmt: skip
        if usage is not None and believed:
            tokens, dollars = usage, cost(usage, price)
        else:
            tokens, dollars = reservation.worst, worst_cost(reservation.worst, price)
        entry = LedgerEntry(
            agent=reservation.agent,
            node=reservation.node,
            usage=tokens,
            dollars=dollars,
            latency_s=latency_s,
            outcome=outcome,
            estimated=not believed,
        )
        self._entries.append(entry)
        return entry

    def _price_of(self, agent: str) -> Price:
        return self._prices.get(agent, self.price)

    def _spent(self) -> float:
        return math.fsum(entry.dollars for entry in self._entries)

    def _held(self) -> float:
        return math.fsum(reservation.dollars for reservation in self._open.values())


def _is_plausible(usage: Usage, worst: Usage, price: Price) -> bool:
    if usage.all_input + usage.output > _PLAUSIBLE * (worst.all_input + worst.output):
        return False
    return cost(usage, price) <= _PLAUSIBLE * worst_cost(worst, price)


class CallBudget:
    """Reservations of one call. The transport reports every attempt, and `finish` books them all.

    The transport may report from another thread, even after its caller has given up.
    """

    def __init__(
        self, client: BudgetClient, agent: str, node: int, worst: Usage, least_output: int | None = None
    ) -> None:
        """`worst` is the maximum usage of one attempt. If the cap does not allow that, the answer gets fewer
        tokens, but at least `least_output`. If that is None, the answer is never shortened."""
        self.n_attempts = 0
        """Number of attempts sent."""
        self.affordable_output: int | None = None
        """Tokens that the cap allows for the answer, thinking included. None if it allows all of `worst`."""
        self.usage = Usage()
        """Tokens booked."""
        self.dollars = 0.0
        self.latency_s = 0.0
        self.estimated = False
        """Whether part of `usage` is a worst case, because the server reported no plausible usage."""
        self.reservations: tuple[str, ...] = ()
        """Ids of the settled reservations."""
        self._client, self._agent, self._node, self._worst = client, agent, node, worst
        self._least_output = least_output
        self._lock = threading.Lock()
        self._reserved: Reservation | None = None
        self._lost: list[Reservation] = []
        self._may_be_billed = False
        self._finished = False
        self.model: str | None = None
        """Fallback model that took over the call, or None."""
        self._successor: CallBudget | None = None

    def hand_over(self, failure: LlmCallError, model: str, worst: Usage) -> CallBudget:
        """Book the attempts so far, which ended in `failure`. Returns a budget for the fallback `model`,
        which `finish` books too."""
        self.finish(usage=failure.usage, latency_s=failure.latency_s, outcome=failure.kind)
        self.model = model
        self._successor = CallBudget(self._client, FALLBACK, self._node, worst, self._least_output)
        return self._successor

    def begin_attempt(self) -> None:
        """Reserve and count the next attempt. The transport calls this before sending it.

        Raises:
            CapReachedError: the cap does not allow the attempt; it must not be sent.
            AgentError: the ledger cannot be reached, or the call has been finished.
        """
        self.reserve()
        self.n_attempts += 1

    def reserve(self) -> None:
        """Reserve the worst case, unless already reserved. Raises as `begin_attempt` does."""
        # A ledger in another process is called without the lock, so that `finish` never waits for it.
        new = self._reserved is None
        reservation = self._affordable() if new else self._reserved
        assert reservation is not None
        with self._lock:
            if not self._finished:
                self._reserved, self._may_be_billed = reservation, True
                return
        if new:
            self._client.settle(reservation, usage=Usage(), latency_s=0.0, outcome="deadline")
        raise LlmCallError("The call is over; nothing more is sent.", kind="deadline")

    def _affordable(self) -> Reservation:
        """Reservation of the worst case. For the first attempt, its answer is shortened to what the cap
        allows."""
        try:
            return self._client.reserve(self._agent, self._node, self._worst)
        except CapReachedError as error:
            least = self._least_output
            if least is None or self.n_attempts or error.affordable_output < least:
                raise
            self.affordable_output = error.affordable_output
            self._worst = replace(self._worst, output=error.affordable_output)
        return self._client.reserve(self._agent, self._node, self._worst)

    def attempt_not_billed(self) -> None:
        """Record that the attempt was rejected or never sent. The next attempt reuses its reservation."""
        with self._lock:
            self._may_be_billed = False

    def attempt_lost(self) -> None:
        """Record that the attempt was sent and got no response. It stays reserved until `finish` books it."""
        with self._lock:
            if self._reserved is not None and not self._finished:
                self._lost.append(self._reserved)
                self._reserved, self._may_be_billed = None, False

    def finish(self, *, usage: Usage | None, latency_s: float, outcome: str) -> None:
        """Book the call. `usage` is None if the server reported nothing. Lost and unanswered attempts are
        booked at their worst case."""
        if self._successor is not None:
            return self._finish_successor(self._successor, usage, latency_s, outcome)
        with self._lock:
            self._finished, self.latency_s = True, latency_s
            reserved, lost = self._reserved, self._lost
            if usage is None and not self._may_be_billed:
                usage = Usage()
        for reservation in lost:
            self._settle(reservation, None, latency_s, "connection")
        if reserved is not None:
            self._settle(reserved, usage, latency_s, outcome)
        return None

    def _finish_successor(
        self, successor: CallBudget, usage: Usage | None, latency_s: float, outcome: str
    ) -> None:
        successor.finish(usage=usage, latency_s=latency_s, outcome=outcome)
        self.n_attempts += successor.n_attempts
        self.usage += successor.usage
        self.dollars += successor.dollars
        self.latency_s += latency_s
        self.estimated |= successor.estimated
        self.reservations += successor.reservations

    def _settle(self, reservation: Reservation, usage: Usage | None, latency_s: float, outcome: str) -> None:
        entry = self._client.settle(reservation, usage=usage, latency_s=latency_s, outcome=outcome)
        self.usage += entry.usage
        self.dollars += entry.dollars
        self.estimated |= entry.estimated
        self.reservations += (reservation.id,)


class LlmClient(Protocol):
    """Client of a language model: `MessagesClient`, or one that returns recorded responses."""

    def call(self, call: LlmCall, budget: CallBudget) -> LlmResponse:
        """Response to the call; blocks. Every attempt begins with `budget.begin_attempt`. Raises
        LlmCallError."""
        ...

    def worst_case(self, call: LlmCall) -> Usage:
        """Upper bound of the tokens of one attempt."""
        ...


def call_within_budget(client: LlmClient, call: LlmCall, budget: CallBudget) -> LlmResponse:
    """Response to `call`. `budget` is finished even on errors.

    Raises:
        CapReachedError: an attempt might exceed the cap; it was not sent.
        LlmCallError: no usable response; its cost is booked under the error's kind.
    """
    usage: Usage | None = None
    latency_s, outcome = 0.0, "interrupted"
    try:
        response = client.call(call, budget)
        usage, latency_s, outcome = response.usage, response.latency_s, "ok"
    except LlmCallError as error:
        usage, latency_s, outcome = error.usage, error.latency_s, error.kind
        raise
    finally:
        budget.finish(usage=usage, latency_s=latency_s, outcome=outcome)
    return response
