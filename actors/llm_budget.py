"""The budget of a search's language-model calls: its one ledger, and the client for other processes.

Not here: sums and caps (llmzero_ray.agents.llm.budget), other services of the agents (agent_services.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmzero_ray import events as ev
from llmzero_ray.agents.backend import MODEL_BACKENDS, llm_settings
from llmzero_ray.agents.llm.api_key import read_key
from llmzero_ray.agents.llm.budget import BudgetLedger, LedgerEntry, Reservation
from llmzero_ray.agents.llm.call_records import booked_entry, call_event
from llmzero_ray.agents.llm.messages import Usage
from llmzero_ray.agents.llm.prices import Price
from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import AgentError, CapReachedError
from llmzero_ray.records import Event

from .names import NAMESPACE, coordinator_name

_RESTART_S = 60.0
"""How long `RemoteBudget.settle` waits for a coordinator that is being restarted."""
_REPLY_S = 30.0


class SearchBudget:
    """The coordinator's ledger, rebuilt from the journal, for agents here and (by number) in other processes.

    Raises:
        AgentError: this process has no key for the agents' model.
    """

    def __init__(self, config: SearchConfig, events: Sequence[Event]) -> None:
        started = next(event for event in events if isinstance(event, ev.SearchStarted))
        self.facts: dict[str, Any] = dict(started.agents)
        """Prompts and price as frozen when the search began."""
        self.ledger: BudgetLedger | None = None
        """None: the agents use no language model."""
        if config.agents.backend in MODEL_BACKENDS:
            self.ledger = ledger_of(config, self.facts, events)
        if config.agents.backend == "claude":
            read_key(llm_settings(config.agents))  # the command had one; this process may be elsewhere
        self._open: dict[int, Reservation] = {}
        self._agents = config.agents

    def use(self, config: SearchConfig) -> None:
        """Take over changed settings: the cap."""
        if self.ledger is not None:
            self.ledger.cap_dollars = config.budget.dollars

    def reserve(self, agent: str, node: int, worst: Usage) -> int:
        """Reserve for another process.

        Returns the number to settle the reservation with.

        Raises:
            CapReachedError: the cap does not allow it.
        """
        assert self.ledger is not None
        number = time.time_ns()
        self._open[number] = self.ledger.reserve(agent, node, worst)
        return number

    def settle(self, number: int, copy: Reservation, **spent: Any) -> LedgerEntry:
        """Book what a reservation cost; one that a restart of the coordinator lost is booked all the same."""
        assert self.ledger is not None
        reservation = self._open.pop(number, None)
        if reservation is None:
            return self.ledger.book(copy, **spent)
        return self.ledger.settle(reservation, **spent)

    def settle_lost(self) -> list[ev.AgentCalled]:
        """Book every open reservation of another process at its worst case: that process died in its calls.

        Returns the calls as events; the provider may have billed each of them in full.
        """
        lost = []
        for number, reservation in tuple(self._open.items()):
            del self._open[number]
            assert self.ledger is not None
            entry = self.ledger.settle(reservation, usage=None, latency_s=0.0, outcome="lost")
            event = call_event(
                entry,
                call="",
                model=self._model_of(entry.agent),
                prompt="",
                n_attempts=1,
                source=f"lost:{entry.node}:{number}",
            )
            lost.append(event)
        return lost

    def _model_of(self, agent: str) -> str:
        own = {str(name): one.model for name, one in self._agents.per_agent.items()}
        return own.get(agent) or self._agents.model


class RemoteBudget:
    """The coordinator's budget, used from another process through its actor."""

    def __init__(self, search: str) -> None:
        self._search = search
        self._numbers: dict[int, int] = {}

    def reserve(self, agent: str, node: int, worst: Usage) -> Reservation:
        """Reserve `worst` in the coordinator's ledger.

        Raises:
            CapReachedError: there is not enough left.
            AgentError: the coordinator cannot be reached; the call must not be made.
        """
        number = self._call_coordinator("reserve", agent, node, worst, wait_s=0.0)
        reservation = Reservation(agent=agent, node=node, worst=worst, dollars=0.0)
        self._numbers[id(reservation)] = number
        return reservation

    def settle(
        self, reservation: Reservation, *, usage: Usage | None, latency_s: float, outcome: str
    ) -> LedgerEntry:
        """Book what it cost, also with a coordinator that comes back within a minute."""
        number = self._numbers.pop(id(reservation))
        spent = {"usage": usage, "latency_s": latency_s, "outcome": outcome}
        entry = self._call_coordinator("settle", number, reservation, wait_s=_RESTART_S, **spent)
        assert isinstance(entry, LedgerEntry)
        return entry

    def _call_coordinator(self, what: str, *arguments: Any, wait_s: float, **named: Any) -> Any:
        import ray

        until = time.monotonic() + wait_s
        while True:
            try:
                actor = ray.get_actor(coordinator_name(self._search), namespace=NAMESPACE)
                return ray.get(actor.use_budget.remote(what, *arguments, **named), timeout=_REPLY_S)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, CapReachedError):
                    raise error.cause from None
                raise AgentError(f"the ledger refused: {error.cause}") from None
            except (ValueError, ray.exceptions.RayError) as error:
                if time.monotonic() >= until:
                    raise AgentError(f"the coordinator is away: {type(error).__name__}") from None
                time.sleep(1.0)


def ledger_of(config: SearchConfig, facts: Mapping[str, Any], events: Iterable[Event]) -> BudgetLedger:
    """What has been spent so far, at the price frozen for the search."""
    price = _price(facts["price"])
    called = [event for event in events if isinstance(event, ev.AgentCalled)]
    own = {agent: _price(numbers) for agent, numbers in facts.get("prices", {}).items()}
    entries = [booked_entry(event) for event in called]
    return BudgetLedger(price, config.budget.dollars, entries, prices=own)


def _price(numbers: Mapping[str, Any]) -> Price:
    return Price(**{kind: float(value) for kind, value in numbers.items()})
