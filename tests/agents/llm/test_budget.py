"""Prices, the ledger, and the cap that concurrent calls cannot pass."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray.agents.llm.budget import BudgetLedger, CallBudget, LlmClient, call_within_budget
from llmzero_ray.agents.llm.call_records import ledger_of
from llmzero_ray.agents.llm.client import MessagesClient
from llmzero_ray.agents.llm.errors import ErrorKind, LlmCallError
from llmzero_ray.agents.llm.messages import LlmCall, LlmResponse, TextBlock, Tool, Usage
from llmzero_ray.agents.llm.prices import Price, cost, known_prices, price_of
from llmzero_ray.agents.llm.settings import LlmSettings
from llmzero_ray.errors import CapReachedError, ConfigError
from llmzero_ray.records import events as ev
from tests.agents.llm.messages_server import Answer, Fail, Hang, MessagesServer
from tests.builders import make_config
from tests.waiting import PATIENCE_S

PRICE = Price(input=3.0, output=15.0, cache_write=3.75, cache_read=0.3)
DOLLAR = Price(input=1e6, output=1e6, cache_write=1e6, cache_read=1e6)
"""One dollar a token."""


def a_call(agent: str = "proposer", node: int = 1) -> LlmCall:
    tool = Tool(name="answer", description="", schema={"type": "object"})
    return LlmCall(
        agent=agent, node=node, system="?", content=(TextBlock(text="?"),), tool=tool, max_tokens=100
    )


def ask(client: LlmClient, ledger: BudgetLedger, call: LlmCall) -> LlmResponse:
    return call_within_budget(
        client, call, CallBudget(ledger, call.agent, call.node, client.worst_case(call))
    )


# --- prices -----------------------------------------------------------------------------------------------


def test_the_cost_is_the_sum_over_kinds_of_token() -> None:
    usage = Usage(input=1_000_000, output=100_000, cache_read=2_000_000, cache_creation=400_000)
    assert cost(usage, PRICE) == pytest.approx(3.0 + 1.5 + 0.6 + 1.5)
    assert cost(Usage(), PRICE) == 0


def test_a_published_price_is_found_by_id_and_by_dated_id() -> None:
    assert price_of("claude-sonnet-4-6") == PRICE
    assert price_of("claude-haiku-4-5-20251001") == price_of("claude-haiku-4-5")
    assert price_of("claude-haiku-4-5").output == 5.0


def test_every_published_price_orders_as_the_api_bills() -> None:
    for model, price in known_prices().items():
        assert price.cache_read < price.input < price.cache_write < price.output, model
        assert price.cache_write == pytest.approx(1.25 * price.input, rel=0.05), model


@pytest.mark.parametrize(
    "model", ["claude-sonnet-4-7", "claude-haiku-4-5-2025", "claude-haiku-4-5-x", "gpt-6", ""]
)
def test_an_unknown_model_is_refused_with_the_way_out(model: str) -> None:
    with pytest.raises(ConfigError, match=r"agents\.price") as caught:
        price_of(model)
    assert "claude-sonnet-4-6" in str(caught.value)


def test_a_price_of_ones_own_counts_for_any_model() -> None:
    own = Price(input=1, output=2, cache_write=3, cache_read=4)
    assert price_of("my-model", [1, 2, 3, 4]) == own
    assert price_of("claude-sonnet-4-6", [0, 0, 0, 0]).input == 0


def test_a_prompt_is_reserved_as_input_where_writing_the_cache_costs_nothing() -> None:
    ledger = BudgetLedger(Price(input=1e6, output=1e6, cache_write=0, cache_read=0), 100)
    reservation = ledger.reserve("proposer", 1, Usage(cache_creation=60, output=1))
    assert reservation.dollars == 61
    assert ledger.settle(reservation, usage=None, latency_s=1, outcome="x").dollars == 61
    with pytest.raises(CapReachedError):
        ledger.reserve("proposer", 1, Usage(cache_creation=39, output=1))


# --- the ledger -------------------------------------------------------------------------------------------


def booked() -> BudgetLedger:
    ledger = BudgetLedger(DOLLAR, 1000)
    for agent, node, usage, outcome in (
        ("proposer", 2, Usage(input=1, output=2, cache_creation=4), "ok"),
        ("early_stopper", 2, Usage(input=1), "max_tokens"),
        ("proposer", 1, Usage(cache_read=8), "ok"),
    ):
        reservation = ledger.reserve(agent, node, Usage(input=100))
        ledger.settle(reservation, usage=usage, latency_s=0.5, outcome=outcome)
    return ledger


def test_totals_add_up() -> None:
    ledger = booked()
    usage = Usage(input=2, output=2, cache_read=8, cache_creation=4)
    assert sum((entry.usage for entry in ledger.entries), Usage()) == usage
    assert (ledger.dollars, ledger.reserved) == (16.0, 0.0)


def test_a_restored_ledger_still_holds_its_cap() -> None:
    ledger = BudgetLedger(DOLLAR, 1000, booked().entries)
    assert ledger.entries == booked().entries
    ledger.reserve("proposer", 3, Usage(input=984))
    with pytest.raises(CapReachedError):
        ledger.reserve("proposer", 3, Usage(input=1))


def test_an_unknown_cost_is_booked_at_its_worst() -> None:
    ledger = BudgetLedger(DOLLAR)
    entry = ledger.settle(
        ledger.reserve("proposer", 1, Usage(output=9)), usage=None, latency_s=1.0, outcome="deadline"
    )
    assert entry.estimated and entry.dollars == 9.0 and ledger.dollars == 9.0


def test_a_reservation_is_settled_once() -> None:
    ledger = BudgetLedger(DOLLAR)
    reservation = ledger.reserve("proposer", 1, Usage(input=1))
    ledger.settle(reservation, usage=Usage(), latency_s=0, outcome="ok")
    with pytest.raises(ValueError, match="settle it once"):
        ledger.settle(reservation, usage=Usage(), latency_s=0, outcome="ok")
    assert len(ledger.entries) == 1


def test_a_reservation_is_the_same_after_a_way_through_another_process() -> None:
    ledger = BudgetLedger(DOLLAR, 10)
    first, second = (ledger.reserve("proposer", 1, Usage(input=4)) for _ in range(2))
    ledger.settle(pickle.loads(pickle.dumps(first)), usage=Usage(input=1), latency_s=0, outcome="ok")
    assert ledger.reserved == 4.0
    ledger.settle(second, usage=Usage(input=1), latency_s=0, outcome="ok")
    assert ledger.reserved == 0


def test_a_call_that_a_restart_forgot_is_booked_all_the_same() -> None:
    asked = BudgetLedger(DOLLAR, 10).reserve("proposer", 1, Usage(input=9))
    restarted = BudgetLedger(DOLLAR, 10)
    entry = restarted.book(asked, usage=Usage(input=3), latency_s=0, outcome="ok")
    assert restarted.entries == (entry,) and restarted.dollars == 3.0


@pytest.mark.parametrize(
    ("reported", "believed"),
    [
        (Usage(input=8, output=4), True),
        (Usage(output=13), False),
        (Usage(input=9, cache_read=4), False),
        (Usage(output=10**6), False),
        (Usage(input=10**400), False),
    ],
)
def test_more_than_twice_the_worst_case_is_not_believed(reported: Usage, believed: bool) -> None:
    ledger = BudgetLedger(DOLLAR, 100)
    reservation = ledger.reserve("proposer", 1, Usage(input=4, output=2))
    entry = ledger.settle(reservation, usage=reported, latency_s=0, outcome="ok")
    assert entry.usage == (reported if believed else Usage(input=4, output=2))
    assert entry.estimated is not believed
    assert ledger.dollars == (12.0 if believed else 6.0)


def test_a_search_keeps_the_price_that_it_started_with() -> None:
    config = make_config(agents={"backend": "claude"}, budget={"dollars": 1000})
    called = ev.AgentCalled(
        node=1, agent="proposer", call="proposer-0.0", outcome="ok", model="m", prompt="", dollars=2.5
    )
    ledger = ledger_of({"price": DOLLAR.to_json()}, config.budget.dollars, [called])
    assert (ledger.price, ledger.dollars, ledger.cap_dollars) == (DOLLAR, 2.5, 1000)


# --- the cap ----------------------------------------------------------------------------------------------


def test_a_call_that_could_pass_the_cap_is_not_made() -> None:
    ledger = BudgetLedger(DOLLAR, 10)
    first = ledger.reserve("proposer", 1, Usage(input=6))
    with pytest.raises(CapReachedError, match=r"budget\.dollars is 10") as caught:
        ledger.reserve("early_stopper", 2, Usage(input=5))
    assert "6.0000 set aside" in str(caught.value)
    ledger.settle(first, usage=Usage(input=1), latency_s=0, outcome="ok")
    ledger.reserve("early_stopper", 2, Usage(input=9))
    assert ledger.dollars + ledger.reserved == 10


def test_a_cap_of_zero_allows_only_what_is_free() -> None:
    with pytest.raises(CapReachedError):
        BudgetLedger(PRICE, 0.0).reserve("proposer", 1, Usage(input=1))
    free = Price.of([0, 0, 0, 0])
    BudgetLedger(free, 0.0).reserve("proposer", 1, Usage(input=10**9))


@given(
    cap=st.floats(0, 50),
    steps=st.lists(st.tuples(st.integers(0, 20), st.floats(0, 1), st.booleans()), max_size=40),
)
def test_no_order_of_calls_spends_more_than_the_cap(cap: float, steps: list[tuple[int, float, bool]]) -> None:
    ledger = BudgetLedger(DOLLAR, cap)
    waiting = []
    for worst, share, settle_now in steps:
        try:
            waiting.append((ledger.reserve("proposer", 1, Usage(input=worst)), int(worst * share)))
        except CapReachedError:
            assert ledger.dollars + ledger.reserved + worst > cap
        if settle_now and waiting:
            reservation, tokens = waiting.pop(0)
            ledger.settle(reservation, usage=Usage(input=tokens), latency_s=0, outcome="ok")
        assert ledger.dollars + ledger.reserved <= cap + 1e-6


class _Greedy:
    """A client whose every call costs its worst case; counts how many are made at once."""

    def __init__(self) -> None:
        self.n_calls = 0
        self._together = threading.Barrier(4)

    def worst_case(self, call: LlmCall) -> Usage:
        return Usage(output=10)

    def call(self, call: LlmCall, budget: CallBudget) -> LlmResponse:
        budget.begin_attempt()
        self._together.wait(timeout=PATIENCE_S)
        self.n_calls += 1
        return LlmResponse(
            input={},
            stop_reason="tool_use",
            usage=Usage(output=10),
            latency_s=0,
            n_attempts=1,
            model="m",
            request_id=None,
        )


def test_concurrent_calls_cannot_pass_the_cap_together() -> None:
    ledger, client = BudgetLedger(DOLLAR, 45), _Greedy()
    refused: list[CapReachedError] = []

    def ask_one() -> None:
        try:
            ask(client, ledger, a_call())
        except CapReachedError as error:
            refused.append(error)

    threads = [threading.Thread(target=ask_one) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE_S)
    # Four fit below the cap; they wait for each other, so that the others find them under way.
    assert (client.n_calls, len(refused)) == (4, 8)
    assert ledger.dollars == 40.0 and ledger.reserved == 0


def test_an_attempt_that_begins_after_its_caller_gave_up_is_not_sent_and_holds_no_money() -> None:
    ledger = BudgetLedger(DOLLAR, 10)
    budget = CallBudget(ledger, "proposer", 1, Usage(output=4))
    budget.begin_attempt()
    budget.finish(usage=None, latency_s=1.0, outcome="deadline")
    assert (ledger.dollars, ledger.reserved, budget.n_attempts) == (4.0, 0.0, 1)
    with pytest.raises(LlmCallError, match="over"):
        budget.begin_attempt()
    late = CallBudget(ledger, "proposer", 1, Usage(output=4))
    late.finish(usage=None, latency_s=1.0, outcome="deadline")
    with pytest.raises(LlmCallError, match="over"):
        late.begin_attempt()
    assert (ledger.dollars, ledger.reserved, late.n_attempts) == (4.0, 0.0, 0)


def test_a_refused_attempt_hands_its_reservation_to_the_next_one() -> None:
    ledger = BudgetLedger(DOLLAR, 5)
    budget = CallBudget(ledger, "proposer", 1, Usage(output=4))
    for _ in range(3):
        budget.begin_attempt()
        budget.attempt_not_billed()
    assert ledger.reserved == 4.0
    budget.finish(usage=None, latency_s=1.0, outcome="rate_limited")
    (entry,) = ledger.entries
    assert (entry.outcome, entry.dollars, entry.estimated, ledger.reserved) == (
        "rate_limited",
        0.0,
        False,
        0.0,
    )


# --- calls that are paid for ------------------------------------------------------------------------------


@pytest.fixture
def client(messages_server: MessagesServer) -> Iterator[MessagesClient]:
    settings = LlmSettings(
        model="claude-sonnet-4-6", base_url=messages_server.base_url, deadline_s=PATIENCE_S
    )
    made = MessagesClient(settings)
    yield made
    made.close()


def test_an_answered_call_is_booked_with_its_tokens(
    messages_server: MessagesServer, client: MessagesClient
) -> None:
    messages_server.play([Answer(input={"a": 1}, output_tokens=30)])
    ledger = BudgetLedger(PRICE, 1.0)
    answer = ask(client, ledger, a_call("early_stopper", 7))
    (entry,) = ledger.entries
    assert (entry.agent, entry.node, entry.outcome, entry.estimated) == ("early_stopper", 7, "ok", False)
    assert entry.usage == answer.usage and entry.usage.output == 30
    assert entry.dollars == cost(answer.usage, PRICE) and entry.latency_s == answer.latency_s


@pytest.mark.parametrize(
    ("reply", "kind", "billed"),
    [
        (Answer(stop_reason="max_tokens", output_tokens=100), "max_tokens", "reported"),
        (Answer(stop_reason="refusal", content=[], output_tokens=3), "refusal", "reported"),
        (Fail(status=400, message="No"), "bad_request", "nothing"),
        (Answer(body=b"{"), "malformed", "worst"),
        (Hang(), "deadline", "worst"),
    ],
)
def test_a_failed_call_is_booked_with_what_it_may_have_cost(
    messages_server: MessagesServer, reply: Answer | Fail | Hang, kind: ErrorKind, billed: str
) -> None:
    messages_server.play([reply])
    ledger = BudgetLedger(PRICE, 1.0)
    deadline_s = 3.0 if kind == "deadline" else PATIENCE_S
    client = MessagesClient(
        LlmSettings(model="claude-sonnet-4-6", base_url=messages_server.base_url, deadline_s=deadline_s)
    )
    with pytest.raises(LlmCallError) as caught:
        ask(client, ledger, a_call())
    client.close()
    (entry,) = ledger.entries
    assert (caught.value.kind, entry.outcome, ledger.reserved) == (kind, kind, 0)
    expected = {"reported": caught.value.usage, "nothing": Usage(), "worst": client.worst_case(a_call())}
    assert entry.usage == expected[billed] and entry.estimated == (billed == "worst")
