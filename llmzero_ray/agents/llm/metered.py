"""A call that is paid for: reserved before, booked after, whatever happens in between."""

from __future__ import annotations

from typing import Protocol

from llmzero_ray.agents.llm.call import LlmAnswer, LlmCall, Usage
from llmzero_ray.agents.llm.errors import LlmCallError
from llmzero_ray.agents.llm.ledger import LedgerEntry, Reservation


class LlmClient(Protocol):
    """What answers calls: `MessagesClient`, or a recording of one."""

    def call(self, call: LlmCall) -> LlmAnswer:
        """The answer; blocks. Raises LlmCallError."""
        ...

    def worst_case(self, call: LlmCall) -> Usage:
        """Upper bound of what the call can cost."""
        ...


class Purse(Protocol):
    """Where calls are paid from: a `Ledger`, or the way to one in another process."""

    def reserve(self, agent: str, node: int, worst: Usage) -> Reservation:
        """Set the worst case aside. Raises CapReachedError."""
        ...

    def settle(
        self, reservation: Reservation, *, usage: Usage | None, latency_s: float, outcome: str
    ) -> LedgerEntry:
        """Book what the call cost; `usage` None: unknown, the worst case."""
        ...


def metered_call(client: LlmClient, purse: Purse, call: LlmCall) -> LlmAnswer:
    """The answer to `call`, booked in `purse`.

    Raises:
        CapReachedError: the call could pass the cap; it was not made.
        LlmCallError: no usable answer; what it cost is booked under the error's kind.
    """
    reservation = purse.reserve(call.agent, call.node, client.worst_case(call))
    usage: Usage | None = None
    latency_s, outcome = 0.0, "interrupted"
    try:
        answer = client.call(call)
        usage, latency_s, outcome = answer.usage, answer.latency_s, "ok"
    except LlmCallError as error:
        usage, latency_s, outcome = error.usage, error.latency_s, error.kind
        if usage is None and not error.maybe_billed:
            usage = Usage()
        raise
    finally:
        purse.settle(reservation, usage=usage, latency_s=latency_s, outcome=outcome)
    return answer
