"""The ledger of the agents' calls, and a cap in dollars that concurrent calls cannot exceed.

Every attempt of a call reserves its worst case before it is sent. An attempt that was lost on the way may
have been billed and is booked at its worst case; one that the server refused costs nothing.
Plain Python, thread-safe. Not here: prices (prices.py), worst cases (token_bound.py), transport (client.py).
"""

from __future__ import annotations

import logging
import math
import threading
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from llmzero_ray.agents.llm.errors import LlmCallError
from llmzero_ray.agents.llm.messages import LlmCall, LlmResponse, Usage
from llmzero_ray.agents.llm.prices import Price, cost
from llmzero_ray.errors import CapReachedError

logger = logging.getLogger(__name__)

_ROUNDING = 1e-9
"""Dollars by which sums of floats may differ from the cap."""
_PLAUSIBLE = 2
"""Times the worst case: a server that reports more tokens than this is not believed."""


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One call that is over, or an attempt of it that was lost."""

    agent: str
    node: int
    usage: Usage
    dollars: float
    latency_s: float
    outcome: str
    """`ok`, or the error's kind."""
    estimated: bool = False
    """The server reported no tokens although it may bill some, or more than the call can have used: these are
    the worst case."""


@dataclass(frozen=True, kw_only=True)
class LedgerTotal:
    """A sum of entries."""

    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    dollars: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """Dollars reserved for one attempt; settle it exactly once. A copy from another process is equal."""

    agent: str
    node: int
    worst: Usage
    dollars: float
    id: str
    """Unique, also beyond this process."""


class BudgetClient(Protocol):
    """Reserves and settles attempts: a `BudgetLedger`, or a proxy of one in another process."""

    def reserve(self, agent: str, node: int, worst: Usage) -> Reservation:
        """Set the worst case aside. Raises CapReachedError."""
        ...

    def settle(
        self, reservation: Reservation, *, usage: Usage | None, latency_s: float, outcome: str
    ) -> LedgerEntry:
        """Book the cost of the attempt; `usage` None: unknown, booked at the worst case."""
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
        """`entries` restores a ledger, for instance after a restart; `cap_dollars` None: no cap; `prices` are
        those of agents with a model of their own."""
        self.price = price
        self._prices = dict(prices or {})
        self.cap_dollars = cap_dollars
        self._lock = threading.Lock()
        self._entries = list(entries)
        self._open: dict[str, Reservation] = {}

    def reserve(self, agent: str, node: int, worst: Usage, id_: str | None = None) -> Reservation:
        """Set aside what an attempt can cost at most; to be settled after it. `id_` None: a new one.

        Raises:
            CapReachedError: spent + reserved + this would pass the cap. Nothing is reserved then.
        """
        dollars = cost(worst, self._price_of(agent))
        with self._lock:
            spent, held = self._spent(), self._held()
            if self.cap_dollars is not None and spent + held + dollars > self.cap_dollars + _ROUNDING:
                raise CapReachedError(
                    f"budget.dollars is {self.cap_dollars:g}: {spent:.4f} are spent and {held:.4f} set aside "
                    f"for calls under way; the {agent}'s call for node {node} could cost {dollars:.4f}. "
                    "Raise budget.dollars to let agents go on."
                )
            id_ = id_ or uuid.uuid4().hex
            reservation = Reservation(agent=agent, node=node, worst=worst, dollars=dollars, id=id_)
            self._open[id_] = reservation
        return reservation

    def restore(self, reservation: Reservation) -> None:
        """Hold a reservation again that a restart has lost and that is not settled."""
        with self._lock:
            self._open[reservation.id] = reservation

    def release(self, reservation: Reservation) -> None:
        """Free a reservation whose attempt was not sent; nothing is booked."""
        with self._lock:
            self._open.pop(reservation.id, None)

    def settle(
        self, reservation: Reservation, *, usage: Usage | None, latency_s: float, outcome: str
    ) -> LedgerEntry:
        """Book what the attempt cost and free the rest. `usage` None: unknown, the worst case is booked.

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
        """`settle` for a reservation that a restart has lost: booked even above the cap."""
        with self._lock:
            return self._booked(reservation, usage, latency_s, outcome)

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """Every entry, in the order they were settled."""
        with self._lock:
            return tuple(self._entries)

    @property
    def open(self) -> tuple[Reservation, ...]:
        """Reservations that are not settled, oldest first."""
        with self._lock:
            return tuple(self._open.values())

    @property
    def dollars(self) -> float:
        """Spent so far."""
        with self._lock:
            return self._spent()

    @property
    def reserved(self) -> float:
        """Dollars set aside for calls under way."""
        with self._lock:
            return self._held()

    @property
    def left(self) -> float | None:
        """Dollars neither spent nor set aside; None: no cap."""
        with self._lock:
            return None if self.cap_dollars is None else self.cap_dollars - self._spent() - self._held()

    def total(self) -> LedgerTotal:
        """Sum of all entries."""
        entries = self.entries
        return LedgerTotal(
            calls=len(entries),
            usage=sum((entry.usage for entry in entries), Usage()),
            dollars=math.fsum(entry.dollars for entry in entries),
        )

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
        tokens = usage if usage is not None and believed else reservation.worst
        entry = LedgerEntry(
            agent=reservation.agent,
            node=reservation.node,
            usage=tokens,
            dollars=cost(tokens, price),
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
    return cost(usage, price) <= _PLAUSIBLE * cost(worst, price)


class CallBudget:
    """The reservations of one call: its transport reports every attempt, `finish` books them all.

    The transport may report from another thread, and go on after its caller has given up.
    """

    def __init__(self, client: BudgetClient, agent: str, node: int, worst: Usage) -> None:
        """`worst`: what one attempt can cost at most."""
        self.n_attempts = 0
        """Attempts that were sent."""
        self.usage = Usage()
        """Tokens that were booked."""
        self.dollars = 0.0
        self.latency_s = 0.0
        self.estimated = False
        """Whether a part of `usage` is a worst case and not what the server reported."""
        self.reservations: tuple[str, ...] = ()
        """Ids of the reservations that were settled."""
        self._client, self._agent, self._node, self._worst = client, agent, node, worst
        self._lock = threading.Lock()
        self._reserved: Reservation | None = None
        self._lost: list[Reservation] = []
        self._may_be_billed = False
        self._finished = False

    def begin_attempt(self) -> None:
        """Reserve and count the next attempt; to be called before it is sent.

        Raises:
            CapReachedError: the cap does not allow it; it must not be sent.
            AgentError: the ledger cannot be reached, or the call is over.
        """
        self.reserve()
        self.n_attempts += 1

    def reserve(self) -> None:
        """Reserve the worst case, unless it is reserved. Raises as `begin_attempt` does."""
        # A ledger in another process is called without the lock, so that `finish` never waits for it.
        new = self._reserved is None
        reservation = self._client.reserve(self._agent, self._node, self._worst) if new else self._reserved
        assert reservation is not None
        with self._lock:
            if not self._finished:
                self._reserved, self._may_be_billed = reservation, True
                return
        if new:
            self._client.settle(reservation, usage=Usage(), latency_s=0.0, outcome="deadline")
        raise LlmCallError("The call is over; nothing more is sent.", kind="deadline")

    def attempt_not_billed(self) -> None:
        """The attempt was refused, or never left: its reservation serves the next one."""
        with self._lock:
            self._may_be_billed = False

    def attempt_lost(self) -> None:
        """The attempt was sent and no response arrived: it stays reserved until it is booked."""
        with self._lock:
            if self._reserved is not None and not self._finished:
                self._lost.append(self._reserved)
                self._reserved, self._may_be_billed = None, False

    def finish(self, *, usage: Usage | None, latency_s: float, outcome: str) -> None:
        """Book the call. `usage` None: the server reported nothing. Lost and unanswered attempts are booked
        at their worst case."""
        with self._lock:
            self._finished, self.latency_s = True, latency_s
            reserved, lost = self._reserved, self._lost
            if usage is None and not self._may_be_billed:
                usage = Usage()
        for reservation in lost:
            self._settle(reservation, None, latency_s, "connection")
        if reserved is not None:
            self._settle(reserved, usage, latency_s, outcome)

    def _settle(self, reservation: Reservation, usage: Usage | None, latency_s: float, outcome: str) -> None:
        entry = self._client.settle(reservation, usage=usage, latency_s=latency_s, outcome=outcome)
        self.usage += entry.usage
        self.dollars += entry.dollars
        self.estimated |= entry.estimated
        self.reservations += (reservation.id,)


class LlmClient(Protocol):
    """A client of a language model: `MessagesClient`, or the replay of a recorded call."""

    def call(self, call: LlmCall, budget: CallBudget) -> LlmResponse:
        """The response; blocks. Every attempt begins with `budget.begin_attempt`. Raises LlmCallError."""
        ...

    def worst_case(self, call: LlmCall) -> Usage:
        """Upper bound of what one attempt can cost."""
        ...


def call_within_budget(client: LlmClient, call: LlmCall, budget: CallBudget) -> LlmResponse:
    """The response to `call`; `budget` is always finished, on errors too.

    Raises:
        CapReachedError: an attempt could have passed the cap; it was not sent.
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
