"""A search's budget over the deaths of the processes that call: what is journalled before a request leaves,
and what the next coordinator makes of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest

from actors.llm_budget import LocalBudget, SearchBudget
from llmzero_ray.agents.llm.budget import CallBudget, Reservation, call_within_budget
from llmzero_ray.agents.llm.client import MessagesClient
from llmzero_ray.agents.llm.messages import LlmCall, TextBlock, Tool, Usage
from llmzero_ray.agents.llm.prices import Price, cost
from llmzero_ray.agents.llm.settings import LlmSettings
from llmzero_ray.errors import AgentError, CapReachedError, StorageError
from llmzero_ray.records import Event, from_json, to_json
from llmzero_ray.records import events as ev
from tests.agents.llm.messages_server import KEY, Answer, MessagesServer, Reply, Request, Reset
from tests.builders import make_config
from tests.waiting import PATIENCE_S

DOLLAR = Price(input=1e6, output=1e6, cache_write=1e6, cache_read=1e6)
"""One dollar a token."""
CALL = LlmCall(
    agent="proposer",
    node=1,
    system="?",
    content=(TextBlock(text="?"),),
    tool=Tool(name="answer", description="", schema={"type": "object"}),
    max_tokens=100,
)


class Books:
    """A journal in memory, and the budget of the coordinator that writes it; `restart` replaces that one."""

    def __init__(self, cap: float) -> None:
        config = make_config(agents={"backend": "claude"}, budget={"dollars": cap})
        started = ev.SearchStarted(
            config=config.to_json(), task={}, root={}, versions={}, agents={"price": DOLLAR.to_json()}
        )
        self.config, self.full = config, False
        self.journal: list[Event] = [started]
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.restart()

    def restart(self, *, lost: Sequence[ev.CallHolder] = (), cap: float | None = None) -> None:
        """The next coordinator, which reads the journal as it was written; `cap`: another one."""
        if cap is not None:
            budget = self.config.budget.model_copy(update={"dollars": cap})
            self.config = self.config.model_copy(update={"budget": budget})
        read = [from_json(to_json(event)) for event in self.journal]
        self.search = SearchBudget(self.config, read, self._record)
        for holder in lost:
            self.journal += self.search.settle_lost(holder)
        self.local = LocalBudget(self.search, self.loop)

    def reserve(self, holder: ev.CallHolder, tokens: int, id_: str) -> Reservation:
        """As another process asks for it."""
        work = self.search.reserve("early_stopper", 2, Usage(output=tokens), holder=holder, id_=id_)
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def settle(self, reservation: Reservation, tokens: int | None) -> None:
        usage = None if tokens is None else Usage(output=tokens)
        work = self.search.settle(reservation, usage=usage, latency_s=0.0, outcome="ok")
        asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    async def _record(self, event: Event) -> None:
        if self.full:
            raise StorageError("the disk is full")
        self.journal.append(event)

    @property
    def spent(self) -> float:
        assert self.search.ledger is not None
        return self.search.ledger.dollars

    @property
    def held(self) -> float:
        assert self.search.ledger is not None
        return self.search.ledger.reserved


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> Iterator[Books]:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    made = Books(cap=100.0)
    yield made
    made.loop.call_soon_threadsafe(made.loop.stop)


def test_a_coordinator_that_dies_in_a_call_books_its_worst_case(books: Books) -> None:
    books.local.reserve("proposer", 1, Usage(output=60))
    books.restart(lost=["coordinator"])
    assert (books.spent, books.held) == (60.0, 0.0)
    lost = books.journal[-1]
    assert isinstance(lost, ev.AgentCalled)
    assert (lost.outcome, lost.dollars, lost.estimated) == ("lost", 60.0, True)
    with pytest.raises(CapReachedError):
        books.local.reserve("proposer", 1, Usage(output=60))
    books.restart(lost=["coordinator"])  # it is booked once
    assert (books.spent, books.held) == (60.0, 0.0)


def test_a_call_of_the_stopper_is_held_over_a_restart_until_its_bill_comes(books: Books) -> None:
    reservation = books.reserve("stopper", 60, "a")
    books.restart(lost=["coordinator"])
    assert (books.spent, books.held) == (0.0, 60.0)
    with pytest.raises(CapReachedError):
        books.local.reserve("proposer", 1, Usage(output=41))
    books.settle(reservation, 5)
    assert (books.spent, books.held) == (5.0, 0.0)


def test_a_stopper_that_died_with_the_coordinator_is_booked_too(books: Books) -> None:
    books.reserve("stopper", 60, "a")
    books.restart(lost=["coordinator", "stopper"])
    assert (books.spent, books.held) == (60.0, 0.0)


def test_a_request_for_a_reservation_that_is_repeated_reserves_once(books: Books) -> None:
    first = books.reserve("stopper", 60, "a")
    books.restart()
    assert books.reserve("stopper", 60, "a") == first
    assert books.held == 60.0
    assert [type(event).__name__ for event in books.journal].count("CallReserved") == 1


def test_a_bill_that_is_sent_again_counts_once(books: Books) -> None:
    reservation = books.reserve("stopper", 60, "a")
    for _ in range(2):  # the first answer came too late for the stopper
        books.settle(reservation, 5)
    assert (books.spent, books.held) == (5.0, 0.0)


def test_a_call_between_its_bill_and_its_event_counts_at_its_worst(books: Books) -> None:
    reservation = books.local.reserve("proposer", 1, Usage(output=60))
    books.local.settle(reservation, usage=Usage(output=1), latency_s=0.0, outcome="ok")
    assert books.spent == 1.0
    books.restart(lost=["coordinator"])  # the bill was in memory alone
    assert books.spent == 60.0


def test_what_cannot_be_journalled_is_not_sent_and_holds_no_money(books: Books) -> None:
    books.full = True
    with pytest.raises(AgentError, match="the disk is full"):
        books.local.reserve("proposer", 1, Usage(output=60))
    assert (books.spent, books.held) == (0.0, 0.0)


def test_a_settled_call_is_settled_after_a_restart(books: Books) -> None:
    reservation = books.local.reserve("proposer", 1, Usage(output=60))
    entry = books.local.settle(reservation, usage=Usage(output=7), latency_s=0.0, outcome="ok")
    books.journal.append(_called(entry.dollars, (reservation.id,)))
    books.restart(lost=["coordinator", "stopper"])
    assert (books.spent, books.held) == (7.0, 0.0)


def _called(dollars: float, reservations: tuple[str, ...]) -> ev.AgentCalled:
    return ev.AgentCalled(
        node=1,
        agent="proposer",
        call="proposer-0.0",
        outcome="ok",
        model="m",
        prompt="",
        dollars=dollars,
        reservations=reservations,
    )


def test_a_reservation_is_in_the_journal_before_its_request_leaves(books: Books) -> None:
    books.restart(cap=1e6)
    seen: list[int] = []

    def looks(request: Request) -> Reply:
        seen.append(sum(isinstance(event, ev.CallReserved) for event in books.journal))
        return Reset() if len(seen) < 4 else Answer(input={}, output_tokens=5)

    with MessagesServer(looks) as server:
        settings = LlmSettings(model="claude-sonnet-4-6", base_url=server.base_url, deadline_s=PATIENCE_S)
        client = MessagesClient(settings)
        worst = client.worst_case(CALL)
        budget = CallBudget(books.local, "proposer", 1, worst)
        answer = call_within_budget(client, CALL, budget)
        client.close()
    assert seen == [1, 2, 3, 4]
    # Three were lost on the way; the provider bills each of them at most its worst case.
    assert books.spent == pytest.approx(3 * cost(worst, DOLLAR) + cost(answer.usage, DOLLAR))
    assert len(budget.reservations) == 4
    reserved = {event.reservation for event in books.journal if isinstance(event, ev.CallReserved)}
    assert set(budget.reservations) == reserved


@pytest.mark.parametrize("count", [10**6, 10**9])
def test_a_server_that_reports_absurd_usage_cannot_spend_the_cap(books: Books, count: int) -> None:
    with MessagesServer([Answer(input={}, output_tokens=count)]) as server:
        settings = LlmSettings(model="claude-sonnet-4-6", base_url=server.base_url, deadline_s=PATIENCE_S)
        client = MessagesClient(settings)
        worst = client.worst_case(CALL)
        cap = 2.5 * cost(worst, DOLLAR)
        books.restart(cap=cap)
        for _ in range(2):
            budget = CallBudget(books.local, "proposer", 1, worst)
            call_within_budget(client, CALL, budget)
            assert budget.estimated and budget.usage == worst
        with pytest.raises(CapReachedError):
            call_within_budget(client, CALL, CallBudget(books.local, "proposer", 1, worst))
        client.close()
        assert len(server.messages) == 2
    assert books.spent <= cap
