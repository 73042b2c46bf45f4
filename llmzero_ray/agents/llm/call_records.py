"""Records of the agents' calls: a JSON record with the node, and journal events that restore the ledger."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeAlias

from llmzero_ray.agents.llm.agent_client import CallReport
from llmzero_ray.agents.llm.budget import BudgetLedger, LedgerEntry, Reservation
from llmzero_ray.agents.llm.messages import ImageBlock, LlmCall, LlmResponse, TextBlock, Usage
from llmzero_ray.agents.llm.prices import Price
from llmzero_ray.agents.llm.settings import HOURLY
from llmzero_ray.records import Event
from llmzero_ray.records import events as ev
from llmzero_ray.utils.files import text_digest

logger = logging.getLogger(__name__)

Post: TypeAlias = Callable[[Event], None]
WriteCall: TypeAlias = Callable[[int, str, Mapping[str, Any], bytes | None], None]
"""Callback that stores a call's record with its node: (node, name, record, PNG of the figure)."""


class CallRecorder:
    """Stores the record of each call, then posts its event. A failed write never fails the call."""

    def __init__(self, prompts_digest: str, post: Post, write_call: WriteCall) -> None:
        self._digest, self._post, self._write_call = prompts_digest, post, write_call

    def __call__(self, report: CallReport) -> None:
        """Record and journal one call."""
        node = report.call.node
        event = ev.AgentCalled(
            node=node,
            agent=report.call.agent,
            call=report.name,
            outcome=report.outcome,
            model=report.model,
            prompt=prompt_hash(report.call),
            **_token_fields(report.usage),
            dollars=report.dollars,
            latency_s=round(report.latency_s, 3),
            n_attempts=report.n_attempts,
            estimated=report.estimated,
            reservations=report.reservations,
            source=f"call:{node}:{report.name}:{time.time_ns()}",
        )
        try:
            record = call_record(report, event, self._digest)
            self._write_call(node, report.name, record, report.png)
        except Exception:
            logger.exception("node=%d: the record of %s could not be written", node, report.name)
        self._post(event)


def lost_event(reservation: Reservation, model: str) -> ev.AgentCalled:
    """Event of a request whose process died before its cost was known. It is booked at its worst case, which
    the provider may have billed."""
    return ev.AgentCalled(
        node=reservation.node,
        agent=reservation.agent,
        call="",
        outcome="lost",
        model=model,
        prompt="",
        **_token_fields(reservation.worst),
        dollars=reservation.dollars,
        n_attempts=1,
        estimated=True,
        reservations=(reservation.id,),
        source=f"lost:{reservation.id}",
    )


def booked_entry(event: ev.AgentCalled) -> LedgerEntry:
    """Ledger entry of a journalled call."""
    return LedgerEntry(
        agent=event.agent,
        node=event.node,
        usage=_usage_of(event),
        dollars=event.dollars,
        latency_s=event.latency_s,
        outcome=event.outcome,
        estimated=event.estimated,
    )


def reserved_event(reservation: Reservation, holder: ev.CallHolder) -> ev.CallReserved:
    """Event of a reservation that a process is about to use."""
    return ev.CallReserved(
        node=reservation.node,
        agent=reservation.agent,
        holder=holder,
        reservation=reservation.id,
        **_token_fields(reservation.worst),
        dollars=reservation.dollars,
        source=f"reserved:{reservation.id}",
    )


class JournalledBudget:
    """Ledger whose reservations are journalled before a request is sent."""

    def __init__(self, ledger: BudgetLedger, post: Post) -> None:
        self._ledger, self._post = ledger, post

    def reserve(self, agent: str, node: int, worst: Usage) -> Reservation:
        """Reserve the worst case and journal it. Raises CapReachedError."""
        reservation = self._ledger.reserve(agent, node, worst)
        try:
            self._write(reservation)
        except BaseException:  # the request will not be sent
            self._ledger.release(reservation)
            raise
        return reservation

    def settle(
        self, reservation: Reservation, *, usage: Usage | None, latency_s: float, outcome: str
    ) -> LedgerEntry:
        """Book the cost of the attempt."""
        return self._ledger.settle(reservation, usage=usage, latency_s=latency_s, outcome=outcome)

    def _write(self, reservation: Reservation) -> None:
        self._post(reserved_event(reservation, "coordinator"))


class CheckBudget(JournalledBudget):
    """Ledger for checking a model before there is a journal. `book` receives each call twice: as lost, at its
    worst case, before it is sent, and under the same `source` once its cost is known."""

    def __init__(self, ledger: BudgetLedger, book: Callable[[ev.AgentCalled], None], model: str) -> None:
        super().__init__(ledger, lambda _: None)
        self._book, self._model = book, model

    def settle(
        self, reservation: Reservation, *, usage: Usage | None, latency_s: float, outcome: str
    ) -> LedgerEntry:
        """Book the cost of the attempt."""
        entry = super().settle(reservation, usage=usage, latency_s=latency_s, outcome=outcome)
        called = replace(
            self._lost(reservation),
            outcome=outcome,
            **_token_fields(entry.usage),
            dollars=entry.dollars,
            latency_s=latency_s,
            estimated=entry.estimated,
        )
        self._book(called)
        return entry

    def _write(self, reservation: Reservation) -> None:
        self._book(self._lost(reservation))

    def _lost(self, reservation: Reservation) -> ev.AgentCalled:
        lost = lost_event(reservation, self._model)
        return replace(lost, source=f"check:{reservation.id}", reservations=())


def ledger_of(
    facts: Mapping[str, Any], cap_dollars: float | None, events: Iterable[Event] = ()
) -> BudgetLedger:
    """Ledger restored from events, at the prices of `facts` (`SearchStarted.agents`)."""
    price, own = (
        _price(facts["price"]),
        {a: _price(numbers) for a, numbers in facts.get("prices", {}).items()},
    )
    own |= {agent: own.get(agent, price).kept_an_hour for agent in HOURLY}
    entries = [booked_entry(event) for event in events if isinstance(event, ev.AgentCalled)]
    return BudgetLedger(price, cap_dollars, entries, prices=own)


def _price(numbers: Mapping[str, Any]) -> Price:
    return Price(**{kind: float(value) for kind, value in numbers.items()})


def _token_fields(usage: Usage) -> dict[str, Any]:
    """Fields of an event for these tokens."""
    return {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "cache_read_tokens": usage.cache_read,
        "cache_creation_tokens": usage.cache_creation,
    }


def _usage_of(event: ev.AgentCalled | ev.CallReserved) -> Usage:
    """Tokens in the fields that `_token_fields` makes."""
    return Usage(
        input=event.input_tokens,
        output=event.output_tokens,
        cache_read=event.cache_read_tokens,
        cache_creation=event.cache_creation_tokens,
    )


def open_reservations(events: Iterable[Event]) -> dict[str, tuple[Reservation, ev.CallHolder]]:
    """Open reservations of a journal by id, each with its holder."""
    found: dict[str, tuple[Reservation, ev.CallHolder]] = {}
    for event in events:
        if isinstance(event, ev.CallReserved):
            reservation = Reservation(
                agent=event.agent,
                node=event.node,
                worst=_usage_of(event),
                dollars=event.dollars,
                id=event.reservation,
            )
            found[event.reservation] = (reservation, event.holder)
        elif isinstance(event, ev.AgentCalled):
            for id_ in event.reservations:
                found.pop(id_, None)
    return found


def prompt_hash(call: LlmCall) -> str:
    """SHA-256 of a call's content: texts, picture, tools, rejected answers and exchanges, without the
    server's ids."""
    parts: dict[str, Any] = {
        "system": [call.system],
        "content": [
            block.text if isinstance(block, TextBlock) else base64.b64encode(block.png).decode()
            for block in call.content
        ],
        "tool": [call.tool.name, call.tool.description, dict(call.tool.schema)],
    }
    if call.refused:
        parts["refused"] = [
            {**turn, "answer": [{k: v for k, v in block.items() if k != "id"} for block in turn["answer"]]}
            for turn in _refused(call)
        ]
    if call.others:
        parts["others"] = [[tool.name, tool.description, dict(tool.schema)] for tool in call.others]
    if call.exchanges:
        parts["exchanges"] = [
            [
                [{k: v for k, v in block.items() if k != "id"} for block in exchange.content],
                exchange.result,
                exchange.is_error,
                exchange.then,
            ]
            for exchange in call.exchanges
        ]
    return text_digest(json.dumps(parts, sort_keys=True))


def call_record(report: CallReport, event: ev.AgentCalled, prompts_digest: str) -> dict[str, Any]:
    """A call as plain JSON data: prompt, hash of the figure, response, tokens and cost."""
    call = report.call
    pictures = [block.png for block in call.content if isinstance(block, ImageBlock)]
    return {
        "agent": call.agent,
        "model": event.model,
        "prompts": prompts_digest,
        "prompt": event.prompt,
        "system": [call.system],
        "user": [block.text for block in call.content if isinstance(block, TextBlock)],
        "images": [text_digest(png) for png in pictures],
        **({"refused": _refused(call)} if call.refused else {}),
        # The records of earlier calls hold the earlier exchanges.
        **({"exchanges": len(call.exchanges)} if call.exchanges else {}),
        "tool": {"name": call.tool.name, "schema": dict(call.tool.schema)},
        "max_tokens": call.max_tokens,
        "outcome": event.outcome,
        "problem": report.problem,
        "answer": None if report.response is None else _response_record(report.response),
        "dollars": event.dollars,
        "latency_s": event.latency_s,
    }


def _response_record(response: LlmResponse) -> dict[str, Any]:
    return {
        "input": dict(response.input),
        "stop_reason": response.stop_reason,
        "usage": asdict(response.usage),
        "latency_s": round(response.latency_s, 3),
        "n_attempts": response.n_attempts,
        "model": response.model,
        "request_id": response.request_id,
        # `input` has the tool's input. Other blocks are needed to go on after a rejection.
        **(
            {"content": [dict(block) for block in response.content]}
            if len(response.content) > 1
            or response.tool
            or any(block["type"] == "text" for block in response.content)
            else {}
        ),
        **({"tool": response.tool} if response.tool else {}),
    }


def _refused(call: LlmCall) -> list[dict[str, Any]]:
    return [
        {"answer": [dict(block) for block in answer.content], "reason": answer.reason}
        for answer in call.refused
    ]
