"""The coordinator's till: the one ledger of a search, for agents in its threads and for other processes.

Not here: sums and caps (llmzero_ray.agents.llm.ledger), the way to here from the stopper (house.py).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from llmzero_ray import events as ev
from llmzero_ray.agents.backend import MODEL_BACKENDS, House, llm_settings
from llmzero_ray.agents.llm.call import Usage
from llmzero_ray.agents.llm.key import read_key
from llmzero_ray.agents.llm.ledger import Ledger, LedgerEntry, Reservation
from llmzero_ray.agents.llm.prices import Price
from llmzero_ray.config import SearchConfig
from llmzero_ray.records import Event
from llmzero_ray.storage import SearchStorage

from .desk import Desk
from .house import draw

logger = logging.getLogger("llmzero_ray.actors.till")
_POST_S = 30.0


class Till:
    """The coordinator's side: the search's only ledger, as its journal has it, and who may use it.

    Raises AgentError when this process has no key for the agents' model.
    """

    def __init__(self, config: SearchConfig, desk: Desk, storage: SearchStorage) -> None:
        assert desk.core.started is not None
        self.facts = dict(desk.core.started.agents)
        """Prompts and price as frozen when the search began."""
        self._desk, self._storage = desk, storage
        self._ledger = None
        if config.agents.backend in MODEL_BACKENDS:
            self._ledger = ledger_of(config, self.facts, desk.events)
        if config.agents.backend == "claude":
            read_key(llm_settings(config.agents))  # the command had one; this process may be elsewhere
        self._open: dict[int, Reservation] = {}

    def use(self, config: SearchConfig) -> None:
        """Settings were changed: another cap, perhaps."""
        if self._ledger is not None:
            self._ledger.cap_dollars = config.budget.dollars

    def house(self) -> House | None:
        """For agents that work in threads of this process; None when no language model is asked."""
        if self._ledger is None:
            return None
        loop = asyncio.get_running_loop()

        def post(event: Event) -> None:
            posted = asyncio.run_coroutine_threadsafe(self._desk.post(event), loop)
            try:
                posted.result(timeout=_POST_S)
            except concurrent.futures.TimeoutError:
                logger.error("%s was not journalled within %.0f s", type(event).__name__, _POST_S)

        keep = self._storage.write_call
        return House(facts=self.facts, purse=self._ledger, post=post, keep=keep, picture=draw)

    def reserve(self, agent: str, node: int, worst: Usage) -> int:
        """Set money aside for another process; the number to settle it with. Raises CapReachedError."""
        assert self._ledger is not None
        number = time.time_ns()
        self._open[number] = self._ledger.reserve(agent, node, worst)
        return number

    def settle(self, number: int, asked: Reservation, **spent: Any) -> LedgerEntry:
        """Book a call; one whose reservation a restart has lost is booked all the same."""
        assert self._ledger is not None
        reservation = self._open.pop(number, None)
        if reservation is None:
            return self._ledger.book(asked, **spent)
        return self._ledger.settle(reservation, **spent)


def ledger_of(config: SearchConfig, facts: Mapping[str, Any], events: Iterable[Event]) -> Ledger:
    """What has been spent so far, at the price frozen for the search."""
    price = Price(**{kind: float(value) for kind, value in facts["price"].items()})
    called = [event for event in events if isinstance(event, ev.AgentCalled)]
    return Ledger(price, config.budget.dollars, [_entry(event) for event in called])


def _entry(event: ev.AgentCalled) -> LedgerEntry:
    usage = Usage(
        input=event.input_tokens,
        output=event.output_tokens,
        cache_read=event.cache_read_tokens,
        cache_creation=event.cache_creation_tokens,
    )
    return LedgerEntry(
        agent=event.agent,
        node=event.node,
        usage=usage,
        dollars=event.dollars,
        latency_s=event.latency_s,
        outcome=event.outcome,
    )
