"""What the agents' calls have cost, and a cap that no set of concurrent calls can pass.

A call reserves its worst case before it is made and settles what it really cost afterwards. The books balance
to the tokens that servers report: a try that died on the wire and was repeated leaves no trace in them.
Plain Python, thread-safe. Not here: prices (prices.py), estimates (estimate.py), calling (client.py).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmzero_ray.agents.llm.call import Usage
from llmzero_ray.agents.llm.prices import Price, cost
from llmzero_ray.errors import CapReachedError, JournalError

_ROUNDING = 1e-9
"""Dollars by which sums of floats may differ from the cap."""


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One finished call."""

    agent: str
    node: int
    usage: Usage
    dollars: float
    latency_s: float
    outcome: str
    """`ok`, or the error's kind."""
    estimated: bool = False
    """The server reported no tokens although it may bill some: these are the worst case."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; `from_json` gives the entry back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LedgerEntry:
        """The entry that `to_json` wrote.

        Raises:
            JournalError: fields are missing or unknown.
        """
        try:
            return cls(**{**data, "usage": Usage(**data["usage"])})
        except (KeyError, TypeError) as error:
            raise JournalError(f"a ledger entry is incomplete or of another version: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Total:
    """A sum of entries."""

    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    dollars: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """Money set aside for one call; settle it exactly once. A copy from another process is the same one."""

    agent: str
    node: int
    worst: Usage
    dollars: float
    number: int = 0
    """Counts a ledger's reservations from 1; 0: made elsewhere."""


class Ledger:
    """Entries, open reservations and the cap of one search."""

    def __init__(
        self, price: Price, cap_dollars: float | None = None, entries: Iterable[LedgerEntry] = ()
    ) -> None:
        """`entries` restores a ledger, for instance after a restart; `cap_dollars` None: no cap."""
        self.price = price
        self.cap_dollars = cap_dollars
        self._lock = threading.Lock()
        self._entries = list(entries)
        self._open: set[Reservation] = set()
        self._numbers = itertools.count(1)

    def reserve(self, agent: str, node: int, worst: Usage) -> Reservation:
        """Set aside what a call can cost at most; to be settled after it.

        Raises:
            CapReachedError: spent + reserved + this would pass the cap. Nothing is reserved then.
        """
        dollars = cost(worst, self.price)
        with self._lock:
            spent, held = self._spent(), self._held()
            if self.cap_dollars is not None and spent + held + dollars > self.cap_dollars + _ROUNDING:
                raise CapReachedError(
                    f"budget.dollars is {self.cap_dollars:g}: {spent:.4f} are spent and {held:.4f} set aside "
                    f"for calls under way; the {agent}'s call for node {node} could cost {dollars:.4f}. "
                    "Raise budget.dollars to let agents go on."
                )
            number = next(self._numbers)
            asked = Reservation(agent=agent, node=node, worst=worst, dollars=dollars, number=number)
            self._open.add(asked)
        return asked

    def settle(
        self, reservation: Reservation, *, usage: Usage | None, latency_s: float, outcome: str
    ) -> LedgerEntry:
        """Book what the call cost and free the rest. `usage` None: unknown, the worst case is booked.

        Raises:
            ValueError: the reservation is not open (settled before, or of another ledger).
        """
        with self._lock:
            if reservation not in self._open:
                raise ValueError(f"the reservation of {reservation.agent} is not open; settle it once.")
            self._open.remove(reservation)
            return self._booked(reservation, usage, latency_s, outcome)

    def book(self, asked: Reservation, *, usage: Usage | None, latency_s: float, outcome: str) -> LedgerEntry:
        """`settle` for a call whose reservation this ledger does not hold, since a restart has lost it: it
        was made and is owed, cap or no cap."""
        with self._lock:
            return self._booked(asked, usage, latency_s, outcome)

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """Every finished call, in the order they were settled."""
        with self._lock:
            return tuple(self._entries)

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

    def total(self) -> Total:
        """Sum of all entries."""
        return _sum(self.entries)

    def to_json(self) -> dict[str, Any]:
        """Price, cap and entries as plain JSON data. Open reservations are left out."""
        return {
            "price": self.price.to_json(),
            "cap_dollars": self.cap_dollars,
            "entries": [entry.to_json() for entry in self.entries],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Ledger:
        """The ledger that `to_json` wrote.

        Raises:
            JournalError: fields are missing or unknown.
        """
        try:
            price, cap, entries = Price(**data["price"]), data["cap_dollars"], data["entries"]
        except (KeyError, TypeError) as error:
            raise JournalError(f"a ledger is incomplete or of another version: {error}") from error
        return cls(price, cap, [LedgerEntry.from_json(entry) for entry in entries])

    def _booked(self, asked: Reservation, usage: Usage | None, latency_s: float, outcome: str) -> LedgerEntry:
        tokens = asked.worst if usage is None else usage
        entry = LedgerEntry(
            agent=asked.agent,
            node=asked.node,
            usage=tokens,
            dollars=cost(tokens, self.price),
            latency_s=latency_s,
            outcome=outcome,
            estimated=usage is None,
        )
        self._entries.append(entry)
        return entry

    def _spent(self) -> float:
        return math.fsum(entry.dollars for entry in self._entries)

    def _held(self) -> float:
        return math.fsum(reservation.dollars for reservation in self._open)


def _sum(entries: Iterable[LedgerEntry]) -> Total:
    entries = list(entries)
    return Total(
        calls=len(entries),
        usage=sum((entry.usage for entry in entries), Usage()),
        dollars=math.fsum(entry.dollars for entry in entries),
    )
