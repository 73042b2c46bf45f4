"""The client against a real server on loopback: answers, every failure, deadlines, retries, the key."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import logging
import pickle
import struct
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anthropic  # noqa: F401 - its first import takes seconds, which no deadline below should pay
import pytest

from llmzero_ray.agents.backend import llm_settings
from llmzero_ray.agents.llm.api_key import KEYLESS
from llmzero_ray.agents.llm.budget import BudgetLedger, CallBudget, call_within_budget
from llmzero_ray.agents.llm.capabilities import Capabilities, stated_capabilities
from llmzero_ray.agents.llm.client import MessagesClient
from llmzero_ray.agents.llm.errors import LlmCallError, retry_after_s
from llmzero_ray.agents.llm.messages import (
    ImageBlock,
    LlmCall,
    LlmResponse,
    RefusedAnswer,
    TextBlock,
    Tool,
    Usage,
)
from llmzero_ray.agents.llm.prices import FREE, Price, cost, worst_case
from llmzero_ray.agents.llm.settings import LlmSettings
from llmzero_ray.config.yaml_text import validated
from llmzero_ray.errors import AgentError, CapReachedError, ConfigError
from llmzero_ray.utils.ports import free_port
from tests.agents.llm.messages_server import (
    KEY,
    Answer,
    Fail,
    Hang,
    MessagesServer,
    Reply,
    Request,
    Reset,
    http_date,
    overloaded,
    rate_limited,
)
from tests.builders import make_config
from tests.waiting import PATIENCE_S, until_gone

MODEL = "claude-sonnet-4-6"
STABLE = "What every metric means. " * 20
LATE_S = 60.0
"""Slack of a busy machine; what is measured would otherwise last as long as the test allows."""

BETWEEN_TRIES_S = 5.0
"""A deadline within a pause of the SDK: its fourth try begins after at most 3.5 s, its fifth after at least
5.6 s, where a try takes no time."""

ClientOf = Callable[..., MessagesClient]

TEXT = [{"type": "text", "text": "I would rather talk."}]


def png(width: int = 8, height: int = 8) -> bytes:
    """A white picture."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + b"\xff" * width for _ in range(height)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def a_call(**changes: Any) -> LlmCall:
    call = LlmCall(
        agent="proposer",
        node=3,
        system=STABLE,
        content=(ImageBlock(png=png()), TextBlock(text="Node 3 has a plateau.")),
        tool=Tool(
            name="propose",
            description="The next phase.",
            schema={"type": "object", "properties": {"lr": {"type": "number"}}, "required": ["lr"]},
        ),
        max_tokens=500,
    )
    return replace(call, **changes)


@pytest.fixture
def client_of(messages_server: MessagesServer) -> Iterator[ClientOf]:
    """Clients of the server, closed at the end."""
    made: list[MessagesClient] = []

    def make(**settings: Any) -> MessagesClient:
        quick = {"base_url": messages_server.base_url, "deadline_s": PATIENCE_S}
        made.append(MessagesClient(LlmSettings(**{"model": MODEL, **quick, **settings})))
        return made[-1]

    yield make
    for client in made:
        client.close()


def ask(client: MessagesClient, call: LlmCall, ledger: BudgetLedger | None = None) -> LlmResponse:
    """The answer, booked in `ledger` or nowhere."""
    budget = CallBudget(ledger or BudgetLedger(FREE), call.agent, call.node, client.worst_case(call))
    return call_within_budget(client, call, budget)


def failure(
    client: MessagesClient, call: LlmCall | None = None, ledger: BudgetLedger | None = None
) -> LlmCallError:
    with pytest.raises(LlmCallError) as caught:
        ask(client, call or a_call(), ledger)
    return caught.value


def failure_and_estimate(client: MessagesClient) -> tuple[LlmCallError, bool]:
    """How a call fails, and whether its worst case is booked since it may have been billed."""
    ledger = BudgetLedger(Price(input=1, output=1, cache_write=1, cache_read=1))
    error = failure(client, ledger=ledger)
    return error, any(entry.estimated for entry in ledger.entries)


# --- answers ----------------------------------------------------------------------------------------------


def test_the_answer_is_the_tools_input_with_what_it_took(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.play([Answer(input={"lr": 1e-5}, output_tokens=33)])
    answer = ask(client_of(), a_call())
    assert answer.input == {"lr": 1e-5}
    assert (answer.stop_reason, answer.model, answer.n_attempts) == ("tool_use", MODEL, 1)
    assert answer.usage.output == 33 and answer.usage.all_input > 1000
    assert answer.request_id == "req_test"
    assert 0 < answer.latency_s < PATIENCE_S


def test_the_request_puts_stable_parts_first_and_forces_the_tool(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    ask(client_of(temperature=0.3, effort="low"), a_call())
    (request,) = messages_server.messages
    body = request.body
    assert [block.get("cache_control") for block in body["system"]] == [{"type": "ephemeral"}]
    assert body["tool_choice"] == {"type": "tool", "name": "propose", "disable_parallel_tool_use": True}
    assert body["tools"][0]["input_schema"]["required"] == ["lr"]
    assert (body["max_tokens"], body["temperature"], body["output_config"]) == (500, 0.3, {"effort": "low"})
    assert "thinking" not in body and "strict" not in body["tools"][0]
    image = body["messages"][0]["content"][0]["source"]
    assert base64.b64decode(image["data"]) == png() and image["media_type"] == "image/png"
    assert request.text == "Node 3 has a plateau." and request.n_images == 1


def test_the_second_call_reads_the_stable_part_from_the_cache(client_of: ClientOf) -> None:
    client = client_of()
    first = ask(client, a_call())
    second = ask(client, a_call(content=(TextBlock(text="Another node."),)))
    other = ask(client, a_call(system="Else. " * 50))
    assert first.usage.cache_creation > 0 and first.usage.cache_read == 0
    assert second.usage.cache_read == first.usage.cache_creation and second.usage.cache_creation == 0
    assert other.usage.cache_read == 0


def test_many_threads_ask_one_client_at_once(messages_server: MessagesServer, client_of: ClientOf) -> None:
    messages_server.play(lambda request: Answer(input={"said": request.text}, delay_s=0.1))
    client = client_of()
    answers: dict[int, LlmResponse] = {}

    def ask_one(i: int) -> None:
        answers[i] = ask(client, a_call(content=(TextBlock(text=f"question {i}"),)))

    threads = [threading.Thread(target=ask_one, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE_S)
    assert {i: answer.input for i, answer in answers.items()} == {
        i: {"said": f"question {i}"} for i in range(8)
    }


def test_a_client_travels_as_its_settings(messages_server: MessagesServer, client_of: ClientOf) -> None:
    client = client_of()
    ask(client, a_call())
    copy = pickle.loads(pickle.dumps(client))
    try:
        assert copy.settings == client.settings
        assert ask(copy, a_call()).input == {}
    finally:
        copy.close()


def test_a_closed_client_starts_again(client_of: ClientOf) -> None:
    client = client_of()
    ask(client, a_call())
    client.close()
    assert ask(client, a_call()).input == {}


def test_closing_ends_the_calls_under_way(messages_server: MessagesServer, client_of: ClientOf) -> None:
    client = client_of()

    def closed_meanwhile(_: Request) -> Reply:
        client.close()
        return Hang()

    messages_server.play(closed_meanwhile)
    error = failure(client)
    assert error.kind == "connection" and "closed" in str(error)


# --- thinking ---------------------------------------------------------------------------------------------


def test_with_a_thinking_budget_the_tool_is_left_to_the_model(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    client = client_of(thinking_budget=2000, temperature=0.5)
    assert ask(client, a_call()).input == {}
    (request,) = messages_server.messages
    assert request.body["thinking"] == {"type": "enabled", "budget_tokens": 2000}
    assert request.body["tool_choice"]["type"] == "auto"
    assert request.body["max_tokens"] == 2500 and "temperature" not in request.body


def test_adaptive_thinking_gets_room_but_no_budget(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    ask(client_of(thinking="adaptive", thinking_budget=4000), a_call())
    (request,) = messages_server.messages
    assert request.body["thinking"] == {"type": "adaptive"} and request.body["max_tokens"] == 4500


def test_thinking_before_the_tool_call_is_passed_over(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    blocks = [
        {"type": "thinking", "thinking": "", "signature": "x"},
        {"type": "text", "text": "I propose:"},
        {"type": "tool_use", "id": "t", "name": "propose", "input": {"lr": 2.0}},
    ]
    messages_server.play([Answer(content=blocks)])
    assert ask(client_of(thinking="adaptive"), a_call()).input == {"lr": 2.0}


def body_of(server: MessagesServer, client: MessagesClient, **changes: Any) -> dict[str, Any]:
    """Body of the last request of a call that is answered."""
    ask(client, a_call(**changes))
    found: dict[str, Any] = server.messages[-1].body
    return found


@pytest.mark.parametrize(
    ("types", "thinks", "sent", "room"),
    [
        (("adaptive", "between_tools"), True, {"type": "adaptive"}, 4000),
        (("enabled", "disabled"), True, {"type": "enabled", "budget_tokens": 4000}, 4000),
        (("disabled",), True, None, 0),
        (("adaptive", "between_tools"), False, {"type": "between_tools"}, 0),
        (("adaptive", "disabled", "enabled"), False, {"type": "disabled"}, 0),
        (("adaptive",), False, {"type": "adaptive"}, 4000),
        (("enabled",), False, None, 0),
    ],
)
def test_thinking_follows_what_the_models_endpoint_states_and_the_reservation_covers_its_room(
    messages_server: MessagesServer,
    client_of: ClientOf,
    types: tuple[str, ...],
    thinks: bool,
    sent: dict[str, Any] | None,
    room: int,
) -> None:
    messages_server.offers(MODEL, thinking=types)
    client = client_of(thinks_by_default=thinks, thinking_tokens=4000)
    assert client.worst_case(a_call()).output == 4500, "before the endpoint has been asked"
    body = body_of(messages_server, client)
    assert body.get("thinking") == sent
    assert body["max_tokens"] == 500 + room == client.worst_case(a_call()).output
    body_of(messages_server, client)
    assert [request.path for request in messages_server.requests].count(f"/v1/models/{MODEL}") == 1


def test_a_server_that_states_nothing_is_asked_without_thinking_through_a_forced_tool(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    strict = replace(a_call().tool, strict=True)
    for endpoint in (True, False):
        messages_server.models_endpoint = endpoint
        client = client_of(thinks_by_default=True, thinking_tokens=4000)
        body = body_of(messages_server, client, tool=strict)
        assert "thinking" not in body and "output_config" not in body and body["max_tokens"] == 500
        assert body["tool_choice"]["type"] == "tool" and body["tools"][0]["strict"] is True
        assert client.worst_case(a_call()).output == 500


@pytest.mark.parametrize("status", [429, 500, 529])
def test_a_models_endpoint_that_fails_for_now_is_asked_again_by_the_next_call(
    messages_server: MessagesServer, client_of: ClientOf, status: int
) -> None:
    messages_server.offers(MODEL, thinking=("adaptive",))
    messages_server.models_failure = Fail(status=status, retry_after="3600")
    client = client_of(thinks_by_default=True, thinking_tokens=4000)
    assert "thinking" not in body_of(messages_server, client)
    messages_server.models_failure = None
    assert body_of(messages_server, client)["thinking"] == {"type": "adaptive"}


@pytest.mark.parametrize(
    "stated",
    [
        {"capabilities": "all", "max_tokens": "many"},
        {"capabilities": {"thinking": {"supported": "yes", "types": 3}, "effort": []}, "max_tokens": -1},
        {"capabilities": {"thinking": {"supported": True, "types": {"adaptive": True}}}},
        {"capabilities": None, "max_tokens": None},
    ],
)
def test_capabilities_of_a_wrong_shape_count_as_not_stated(
    messages_server: MessagesServer, client_of: ClientOf, stated: dict[str, Any]
) -> None:
    assert stated_capabilities(json.dumps({"type": "model", **stated}).encode()) in (
        Capabilities(), Capabilities(thinking=frozenset()),
    )  # fmt: skip


def test_a_model_that_takes_no_images_is_asked_without_them(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.takes_images = False
    assert body_of(messages_server, client_of())["messages"][0]["content"] == [
        {"type": "text", "text": "Node 3 has a plateau."}
    ]


def test_no_request_asks_for_more_tokens_than_the_model_gives(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.offers(MODEL, thinking=("enabled",), max_tokens=4096)
    body = body_of(
        messages_server, client_of(thinks_by_default=True, thinking_tokens=15_000), max_tokens=3000
    )
    assert (body["max_tokens"], body["thinking"]["budget_tokens"]) == (4096, 2048)


def test_a_budget_of_thinking_is_room_for_a_model_that_thinks_adaptively_alone(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.offers(MODEL, thinking=("adaptive",))
    body = body_of(messages_server, client_of(thinking_budget=2000))
    assert body["thinking"] == {"type": "adaptive"} and body["max_tokens"] == 2500


def test_a_default_that_the_server_refuses_against_its_word_is_left_out_from_then_on(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.offers(MODEL, thinking=("adaptive",), structured_outputs=True)
    messages_server.refused = {
        "thinking": "thinking: not with this account",
        "output_config.format": "output_config.format: not with this account",
        "tool_choice.name": "tool_choice: only auto is supported",
    }
    client = client_of(thinks_by_default=True, thinking_tokens=4000)
    call = a_call(tool=replace(a_call().tool, strict=True))
    assert [ask(client, call).n_attempts for _ in range(2)] == [4, 1]
    body = messages_server.messages[-1].body
    assert "thinking" not in body and body["tool_choice"]["type"] == "auto"


def test_a_setting_that_the_server_refuses_is_not_left_out_silently(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.refused = {"thinking": "thinking: not with this account"}
    error = failure(client_of(thinking="adaptive", thinking_budget=2000))
    assert error.kind == "bad_request" and "not with this account" in str(error)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"thinking": "adaptive"}, r"takes no thinking 'adaptive'; it takes: disabled, enabled\."),
        ({"effort": "max"}, r"takes no effort 'max'; it takes: high, low\. Change agents\.effort"),
    ],
)
def test_the_check_refuses_a_setting_that_the_model_does_not_offer(
    messages_server: MessagesServer, client_of: ClientOf, settings: dict[str, Any], message: str
) -> None:
    messages_server.offers(MODEL, thinking=("enabled", "disabled"), effort=("low", "high"))
    with pytest.raises(LlmCallError, match=message):
        client_of(**settings).check()


# --- structured outputs -----------------------------------------------------------------------------------


def test_a_model_with_structured_outputs_answers_by_format_and_its_refused_answer_stays_text(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.offers(MODEL, thinking=("adaptive",), structured_outputs=True, effort=("low",))
    messages_server.play([Answer(input={"lr": 1.0}), Answer(input={"lr": 2.0})])
    client = client_of(effort="low", thinks_by_default=True, thinking_tokens=2000)
    call = a_call(tool=replace(a_call().tool, strict=True))
    answer = ask(client, call)
    assert answer.input == {"lr": 1.0}
    refused = RefusedAnswer(content=answer.content, reason="Too high.")
    assert ask(client, replace(call, refused=(refused,))).input == {"lr": 2.0}
    for request in messages_server.messages:
        assert "tools" not in request.body and "tool_choice" not in request.body
        output = request.body["output_config"]
        assert output["format"] == {"type": "json_schema", "schema": call.tool.schema}
        assert output["effort"] == "low" and request.body["thinking"] == {"type": "adaptive"}
        assert call.tool.description in request.system
    _, said, reason = messages_server.messages[-1].body["messages"]
    assert said == {"role": "assistant", "content": [{"type": "text", "text": '{"lr": 1.0}'}]}
    assert reason == {"role": "user", "content": [{"type": "text", "text": "Too high."}]}


def test_tools_are_used_without_strict_forms_and_where_several_are_offered(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.offers(MODEL, structured_outputs=True)
    strict = replace(a_call().tool, strict=True)
    several = replace(a_call(), tool=strict, others=(replace(strict, name="wait"),))
    for call in (a_call(), several):
        ask(client_of(), call)
        assert messages_server.messages[-1].body["tools"][0]["name"] == "propose"
    messages_server.offers(MODEL, structured_outputs=False)
    body = body_of(messages_server, client_of(), tool=strict)
    assert "strict" not in body["tools"][0] and body["tool_choice"]["type"] == "tool"


def test_a_model_that_ignores_the_format_is_asked_through_a_tool_next(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.offers(MODEL, structured_outputs=True)
    messages_server.play([Answer(content=TEXT, stop_reason="end_turn"), Answer(input={"lr": 1})])
    client, call = client_of(), a_call(tool=replace(a_call().tool, strict=True))
    assert failure(client, call).kind == "no_tool_call"
    assert ask(client, call).input == {"lr": 1}
    assert messages_server.messages[-1].body["tool_choice"]["type"] == "tool"


# --- cache marks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cache", "mark"),
    [("1h", {"type": "ephemeral", "ttl": "1h"}), ("5m", {"type": "ephemeral"}), (None, None)],
)
def test_the_stable_part_is_marked_for_as_long_as_the_next_call_takes(
    messages_server: MessagesServer, client_of: ClientOf, cache: str | None, mark: Any
) -> None:
    body = body_of(messages_server, client_of(cache=cache))
    assert [block.get("cache_control") for block in (*body["system"], *body["tools"])] == [mark, None]


def test_a_server_without_a_time_to_live_gets_plain_marks(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.play(
        lambda request: (
            Fail(status=400, message="system.0.cache_control.ttl: extra inputs are not permitted")
            if "ttl" in request.body["system"][0]["cache_control"]
            else Answer()
        )
    )
    client = client_of(cache="1h")
    assert [ask(client, a_call()).n_attempts for _ in range(2)] == [2, 1]


def test_a_model_that_always_thinks_is_asked_again_without_force_and_remembered(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.thinks_always = (MODEL,)
    client = client_of()
    assert ask(client, a_call()).n_attempts == 2
    assert ask(client, a_call()).n_attempts == 1
    choices = [request.body["tool_choice"]["type"] for request in messages_server.messages]
    assert choices == ["tool", "auto", "auto"]


# --- answers that are none --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "kind", "expected"),
    [
        (Answer(stop_reason="refusal", content=[]), "refusal", "category: not given"),
        (
            Answer(stop_reason="refusal", stop_details={"type": "refusal", "category": "frontier_llm"}),
            "refusal",
            "frontier_llm",
        ),
        (Answer(stop_reason="max_tokens", input={"lr": 1}), "max_tokens", "max_tokens 500"),
        (Answer(stop_reason="model_context_window_exceeded"), "max_tokens", "context_window"),
        (Answer(stop_reason="end_turn", content=[]), "empty", "without any content"),
        (Answer(stop_reason="end_turn", content=TEXT), "no_tool_call", "called no tool"),
        (Answer(tool="run_shell"), "no_tool_call", "'run_shell'"),
        (Answer(input=[1, 2]), "malformed", "is list"),
        (Answer(input="lr = 1"), "malformed", "is str"),
        (Answer(input=None), "malformed", "is NoneType"),
    ],
)
def test_an_unusable_answer_names_its_kind_and_what_it_cost(
    messages_server: MessagesServer, client_of: ClientOf, reply: Reply, kind: str, expected: str
) -> None:
    messages_server.play([reply])
    error, estimated = failure_and_estimate(client_of())
    assert error.kind == kind
    assert expected in str(error)
    assert error.usage is not None and error.usage.output == 40
    assert (error.n_attempts, len(messages_server.messages), estimated) == (1, 1, False)


GOOD = '"model":"m","stop_reason":"tool_use","usage":{"input_tokens":1,"output_tokens":1}'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"7",
        b"<html>It works!</html>",
        b'{"type":"message","content":[{"type":"tool_use","na',
        b"\xff\xfe\x00",
        b'{"content":"text",' + GOOD.encode() + b"}",
        b'{"content":[7],' + GOOD.encode() + b"}",
        b'{"content":[{"name":"propose"}],' + GOOD.encode() + b"}",
        b'{"content":[{"type":"tool_use","name":5,"input":{}}],' + GOOD.encode() + b"}",
        b'{"content":[],"model":"m","stop_reason":"end_turn"}',
        b'{"content":[],"model":"m","stop_reason":null,"usage":{"input_tokens":1,"output_tokens":1}}',
        b'{"content":[],"model":"m","stop_reason":"x","usage":{"input_tokens":"1","output_tokens":1}}',
        b'{"content":[],"model":"m","stop_reason":"x","usage":{"input_tokens":1,"output_tokens":-1}}',
        b'{"content":[],"model":3,"stop_reason":"x","usage":{"input_tokens":1,"output_tokens":1}}',
        b'{"type":"model","id":"claude"}',
    ],
)
def test_a_body_that_is_no_message_is_malformed_and_may_have_been_billed(
    messages_server: MessagesServer, client_of: ClientOf, body: bytes
) -> None:
    messages_server.play([Answer(body=body)])
    error, estimated = failure_and_estimate(client_of())
    assert (error.kind, error.n_attempts) == ("malformed", 1)
    assert "not a message of the Messages API" in str(error) and "base_url" in str(error)
    assert error.usage is None and estimated


# --- HTTP errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "kind", "expected"),
    [
        (Fail(status=400, message="max_tokens: too large"), "bad_request", "max_tokens: too large"),
        (Fail(status=400, message="temperature is deprecated"), "bad_request", "temperature"),
        (Fail(status=400, message="Image format not supported"), "bad_request", "agents.visual: false"),
        (Fail(status=401, message="invalid x-api-key"), "auth", "ANTHROPIC_API_KEY"),
        (Fail(status=402, message="No credit"), "auth", "billing"),
        (Fail(status=403, message="Not allowed"), "auth", MODEL),
        (Fail(status=403, message="No\x1b[2J\nway"), "auth", "(403: No way)"),
        (Fail(status=404, message=f"model: {MODEL}"), "not_found", "agents.model"),
        (Fail(status=404, body=b'{"detail":"Not Found"}'), "not_found", "agents.base_url"),
        (Fail(status=405, body=b"nginx"), "not_found", "agents.base_url"),
        (Fail(status=413, message="Request too large"), "bad_request", "Shorten the prompt"),
        (Fail(status=418, body=b""), "bad_request", "418"),
        (Fail(status=422, message="Bad"), "bad_request", "422"),
    ],
)
def test_errors_that_no_retry_cures_are_not_retried(
    messages_server: MessagesServer, client_of: ClientOf, reply: Fail, kind: str, expected: str
) -> None:
    messages_server.play([reply])
    error, estimated = failure_and_estimate(client_of())
    assert error.kind == kind
    assert expected in str(error)
    assert len(messages_server.messages) == 1 and error.request_id == "req_test"
    assert not estimated


def test_refused_images_and_unknown_models_of_the_server_read_as_such(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.takes_images = messages_server.models_endpoint = False
    assert "refused the image" in str(failure(client_of()))
    assert "knows no model 'claude-nope'" in str(failure(client_of(model="claude-nope")))


def again_at_once(status: int, **parts: Any) -> Fail:
    """A failure that the SDK retries after a millisecond."""
    return Fail(status=status, retry_after_ms="1", **parts)


PASSING = [
    (again_at_once(408), "server"),
    (again_at_once(409), "server"),
    (again_at_once(429, type="rate_limit_error"), "rate_limited"),
    (again_at_once(500), "server"),
    (again_at_once(502, body=b"<html>bad gateway</html>"), "server"),
    (again_at_once(503), "overloaded"),
    (again_at_once(504), "server"),
    (again_at_once(529, type="overloaded_error"), "overloaded"),
    (Reset(), "connection"),
    (Answer(truncated=True), "connection"),
]


@pytest.mark.parametrize(("reply", "kind"), PASSING)
def test_what_passes_by_itself_is_asked_again_until_it_has(
    messages_server: MessagesServer, client_of: ClientOf, reply: Reply, kind: str
) -> None:
    messages_server.play([reply, reply, Answer(input={"lr": 1})])
    answer = ask(client_of(), a_call())
    assert answer.input == {"lr": 1} and answer.n_attempts == 3


@pytest.mark.parametrize(
    ("reply", "kind", "deadline_s"),
    [
        (rate_limited("60"), "rate_limited", 50.0),
        (overloaded("60"), "overloaded", 50.0),
        (Reset(), "connection", BETWEEN_TRIES_S),
    ],
)
def test_what_does_not_pass_in_time_is_given_up_with_its_own_kind(
    messages_server: MessagesServer, client_of: ClientOf, reply: Reply, kind: str, deadline_s: float
) -> None:
    messages_server.play([reply])
    error = failure(client_of(deadline_s=deadline_s))
    assert (error.kind, error.n_attempts) == (kind, len(messages_server.messages))
    assert f"Gave up after {error.n_attempts} attempts" in str(error)


def test_nothing_listening_is_a_connection_error_that_cost_nothing(client_of: ClientOf) -> None:
    port = free_port()
    client = client_of(base_url=f"http://127.0.0.1:{port}", deadline_s=BETWEEN_TRIES_S)
    error, estimated = failure_and_estimate(client)
    assert error.kind == "connection" and f":{port}" in str(error)
    assert not estimated


def test_every_lost_attempt_is_booked_at_its_worst_and_the_answer_as_reported(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.play([Reset(), again_at_once(500), Answer(truncated=True), Answer(output_tokens=7)])
    ledger, client = BudgetLedger(Price(input=1, output=1, cache_write=1, cache_read=1)), client_of()
    answer = ask(client, a_call(), ledger)
    assert answer.n_attempts == 4
    assert [(entry.outcome, entry.estimated) for entry in ledger.entries] == [
        ("connection", True), ("connection", True), ("ok", False),
    ]  # fmt: skip
    worst = client.worst_case(a_call())
    assert [entry.usage for entry in ledger.entries] == [worst, worst, answer.usage]
    assert ledger.reserved == 0


def test_an_attempt_that_the_cap_does_not_allow_is_not_sent(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.play([Reset()])
    client, price = client_of(), Price(input=1, output=1, cache_write=1, cache_read=1)
    ledger = BudgetLedger(price, 2.5 * cost(client.worst_case(a_call()), price))
    with pytest.raises(CapReachedError, match=r"budget\.dollars"):
        ask(client, a_call(), ledger)
    assert len(messages_server.messages) == 2 == len(ledger.entries)
    assert ledger.reserved == 0 and ledger.dollars <= (ledger.cap_dollars or 0)


def test_a_small_cap_shortens_an_answer_before_it_forbids_it(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.offers(MODEL, thinking=("adaptive",))
    client, price = client_of(thinks_by_default=True, thinking_tokens=15_000), Price.of([1, 10, 1, 1])
    body_of(messages_server, client)
    call, worst = a_call(), client.worst_case(a_call())
    prompt = cost(replace(worst, output=0), price)
    for affordable, sent in ((worst.output, 15_500), (4000, 2500), (600, 600)):
        ledger = BudgetLedger(price, prompt + price.output * (affordable + 0.5) / 1e6)
        budget = CallBudget(ledger, "proposer", 1, worst, least_output=call.max_tokens)
        call_within_budget(client, call, budget)
        assert messages_server.messages[-1].body["max_tokens"] == sent <= affordable
    too_small = BudgetLedger(price, prompt + price.output * 499 / 1e6)
    with pytest.raises(CapReachedError):
        call_within_budget(client, call, CallBudget(too_small, "proposer", 1, worst, call.max_tokens))
    assert len(messages_server.messages) == 4 and too_small.reserved == 0


# --- waiting ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", ["1", lambda: http_date(2.0)])
def test_retry_after_is_waited_for(
    messages_server: MessagesServer, client_of: ClientOf, wait: str | Callable[[], str]
) -> None:
    messages_server.play(
        [Fail(status=429, type="rate_limit_error", message="Slow down", retry_after=wait), Answer()]
    )
    assert ask(client_of(), a_call()).n_attempts == 2
    first, second = messages_server.messages
    # A date has whole seconds, so that "in two" may be barely more than one.
    assert second.at - first.at >= 0.95


def test_a_wait_beyond_the_deadline_is_not_begun(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.play([rate_limited("60")])
    started = time.monotonic()
    error = failure(client_of(deadline_s=50.0))
    assert time.monotonic() - started < 60
    assert error.kind == "rate_limited" and "asked to wait 60 s" in str(error)
    assert len(messages_server.messages) == 1


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0.0),
        ("2.5", 2.5),
        ("-3", 0.0),
        ("Wed, 21 Oct 2026 07:28:10 GMT", 10.0),
        ("Wed, 21 Oct 2026 07:27:00 GMT", 0.0),
        ("soon", None),
        ("inf", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, datetime(2026, 10, 21, 7, 28, 0, tzinfo=UTC)) == seconds


@pytest.mark.parametrize(
    "reply", [Hang(), Answer(drip_s=0.05), Answer(delay_s=60.0)], ids=["hang", "drip", "late"]
)
def test_the_deadline_holds_against_a_server_that_stalls(
    messages_server: MessagesServer, client_of: ClientOf, reply: Reply
) -> None:
    messages_server.play([reply])
    started = time.monotonic()
    error, estimated = failure_and_estimate(client_of(deadline_s=3.0))
    assert 2.9 < time.monotonic() - started < 3.0 + LATE_S
    assert error.kind == "deadline"
    assert "within 3 s" in str(error)
    assert estimated


def test_the_deadline_holds_over_all_retries(messages_server: MessagesServer, client_of: ClientOf) -> None:
    messages_server.play([again_at_once(529), Reset(), Hang()])
    started = time.monotonic()
    error = failure(client_of(), a_call(deadline_s=2.0))
    assert time.monotonic() - started < 2.0 + LATE_S
    assert error.kind == "deadline"
    assert len(messages_server.messages) <= 3


class _SlowSchema(Mapping[str, Any]):
    """Blocks its reader (the client's loop, which builds requests) until `may_go_on` is set."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()

    def __getitem__(self, name: str) -> Any:
        return {"type": "object"}[name]

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        assert self.may_go_on.wait(PATIENCE_S)
        return iter(["type"])


def test_the_caller_is_free_at_the_deadline_even_when_the_loop_is_stuck(client_of: ClientOf) -> None:
    schema = _SlowSchema()
    slow = a_call(tool=replace(a_call().tool, schema=schema))
    budget = CallBudget(BudgetLedger(FREE), slow.agent, slow.node, Usage())
    with pytest.raises(LlmCallError) as caught:
        client_of(deadline_s=0.5).call(slow, budget)
    assert caught.value.kind == "deadline"
    assert not schema.may_go_on.is_set()
    schema.may_go_on.set()


def test_an_event_loop_goes_on_while_a_thread_of_it_asks(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.play([Hang()])
    client = client_of(deadline_s=3.0)

    async def ticks_while_asking() -> int:
        n_ticks = 0
        asked = asyncio.create_task(asyncio.to_thread(failure, client))
        while not asked.done():
            await asyncio.sleep(0.01)
            n_ticks += 1
        assert asked.result().kind == "deadline"
        return n_ticks

    assert asyncio.run(ticks_while_asking()) > 20


@pytest.mark.parametrize("reply", [Answer(), Fail(status=400), Hang()], ids=["answer", "failure", "hang"])
def test_no_thread_is_left_when_a_call_is_over(
    messages_server: MessagesServer, client_of: ClientOf, reply: Reply
) -> None:
    messages_server.play([reply])
    client = client_of(deadline_s=1.0)
    with contextlib.suppress(LlmCallError):
        ask(client, a_call())
    until_gone(lambda: [each.name for each in threading.enumerate() if each.name == "llmzero-llm"])


# --- foreign answers --------------------------------------------------------------------------------------


def test_a_body_that_never_ends_is_given_up(messages_server: MessagesServer, client_of: ClientOf) -> None:
    messages_server.play([Answer(body=b" " * (17 * 1024**2))])
    error, estimated = failure_and_estimate(client_of())
    assert (error.kind, error.n_attempts, estimated) == ("malformed", 1, True)
    assert "longer than 16777216 bytes" in str(error)


def test_a_compressed_body_cannot_unfold_in_memory(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.play([Answer(body=gzip.compress(b" " * 2**23) * 40, encoding="gzip")])
    error = failure(client_of())
    assert (error.kind, error.n_attempts) == ("malformed", 1)
    assert messages_server.messages[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (gzip.compress(gzip.compress(b" " * 2**26)), "gzip, gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"{}", "br"),
    ],
)
def test_a_body_that_may_unfold_without_any_limit_is_not_read(
    messages_server: MessagesServer, client_of: ClientOf, body: bytes, encoding: str
) -> None:
    messages_server.play([Answer(body=body, encoding=encoding)])
    error = failure(client_of())
    assert (error.kind, error.n_attempts) == ("malformed", 1)
    assert f"with content-encoding {encoding} is longer than 0 bytes" in str(error)


@pytest.mark.parametrize("count", ["1e309", "1" + "0" * 400, str(10**12)])
def test_impossible_token_counts_are_booked_at_the_worst_case(
    messages_server: MessagesServer, client_of: ClientOf, count: str
) -> None:
    usage = f'"usage":{{"input_tokens":{count},"output_tokens":1}}'
    body = f'{{"content":[],"model":"m","stop_reason":"end_turn",{usage}}}'.encode()
    messages_server.play([Answer(body=body)])
    error, estimated = failure_and_estimate(client_of())
    assert error.kind == "malformed" and estimated


def test_a_redirect_to_another_server_takes_no_key_and_no_header_of_the_users_along(
    messages_server: MessagesServer, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "x-organisation: secret-one\ncookie: secret-two")
    with MessagesServer(key=None) as elsewhere:
        messages_server.play([Fail(status=307, location=f"{elsewhere.base_url}/v1/messages")])
        ask(client_of(), a_call())
        (request,) = elsewhere.messages
    assert messages_server.messages[0].headers["x-organisation"] == "secret-one"
    assert KEY not in repr(request.headers) and "secret" not in repr(request.headers)
    assert request.headers["content-type"] == "application/json" and "anthropic-version" in request.headers


# --- the check at start-up --------------------------------------------------------------------------------


def check_failure(client: MessagesClient, image: bytes | None = None) -> LlmCallError:
    with pytest.raises(LlmCallError) as caught:
        client.check(image=image)
    return caught.value


def test_the_check_asks_for_the_model_and_costs_nothing(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    assert client_of().check(image=png()) == Usage()
    assert [request.path for request in messages_server.requests] == [f"/v1/models/{MODEL}"]


def test_the_check_sends_one_token_where_no_models_are_listed(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.models_endpoint = False
    messages_server.play([Answer(content=TEXT, stop_reason="max_tokens", output_tokens=1)])
    assert client_of().check(image=png()).output == 1
    (request,) = messages_server.messages
    assert request.body["max_tokens"] == 1 and request.n_images == 1


@pytest.mark.parametrize("models_endpoint", [True, False])
def test_the_check_finds_what_is_wrong(
    messages_server: MessagesServer,
    client_of: ClientOf,
    models_endpoint: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages_server.models_endpoint = models_endpoint
    unknown = check_failure(client_of(model="claude-nope"))
    assert unknown.kind == "not_found" and "agents.model" in str(unknown)
    elsewhere = check_failure(client_of(base_url=f"{messages_server.base_url}/v1"))
    assert elsewhere.kind == "not_found" and "agents.base_url" in str(elsewhere)
    messages_server.takes_images = False
    blind = check_failure(client_of(), image=png())
    assert blind.kind == "bad_request" and "agents.visual: false" in str(blind)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-wrong")
    wrong = check_failure(client_of())
    assert wrong.kind == "auth" and "ANTHROPIC_API_KEY" in str(wrong)


def test_the_check_has_a_deadline_of_its_own(messages_server: MessagesServer, client_of: ClientOf) -> None:
    messages_server.models_endpoint = False
    messages_server.play([Hang()])
    started = time.monotonic()
    error = check_failure(client_of(deadline_s=60.0, check_deadline_s=1.5))
    assert time.monotonic() - started < 1.5 + LATE_S
    assert error.kind == "deadline"


def test_the_check_refuses_a_page_that_is_no_api(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    messages_server.models_endpoint = False
    messages_server.play([Answer(body=b"<html>Welcome</html>")])
    assert check_failure(client_of()).kind == "malformed"


# --- the key ----------------------------------------------------------------------------------------------


def sent_keys(server: MessagesServer) -> list[str]:
    return [
        request.headers.get("x-api-key") or request.headers["authorization"].removeprefix("Bearer ")
        for request in server.requests
    ]


def test_the_key_is_read_anew_for_each_call(
    messages_server: MessagesServer, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    messages_server.key = None
    client = client_of()
    ask(client, a_call())
    messages_server.requests.clear()  # the first call asked for the model's capabilities too
    ask(client, a_call())
    file = tmp_path / "key"
    file.write_text("sk-from-file\n")
    monkeypatch.setenv("ANTHROPIC_API_KEY_FILE", str(file))
    ask(client, a_call())
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    ask(client, a_call())
    file.write_text("  sk-rotated  ")
    ask(client, a_call())
    monkeypatch.delenv("ANTHROPIC_API_KEY_FILE")
    ask(client, a_call())
    assert sent_keys(messages_server) == [KEY, KEY, "sk-from-file", "sk-rotated", KEYLESS]


def test_anthropics_own_server_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY_FILE", raising=False)
    client = MessagesClient(LlmSettings(model=MODEL, deadline_s=10.0))
    error = failure(client)
    client.close()
    assert (error.kind, error.n_attempts) == ("no_key", 0)
    assert "ANTHROPIC_API_KEY_FILE" in str(error) and "agents.base_url" in str(error)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot be read"),
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"sk-one\nsk-two\n", "line breaks"),
        (b"sk-\xc3\xbcmlaut", "characters that no key has"),
        (b"sk-one sk-two", "spaces"),
        (b"sk-" + b"x" * 5000, "too long"),
    ],
)
def test_an_unusable_key_file_is_named_but_not_quoted(
    messages_server: MessagesServer,
    client_of: ClientOf,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    content: bytes | None,
    expected: str,
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("ANTHROPIC_API_KEY_FILE", str(file))
    error = failure(client_of())
    assert error.kind == "no_key" and expected in str(error) and "ANTHROPIC_API_KEY_FILE" in str(error)
    assert "sk-" not in str(error)
    assert messages_server.requests == []


def test_a_key_with_foreign_characters_is_refused_before_any_request(
    messages_server: MessagesServer, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-schlüssel")
    error = failure(client_of())
    assert error.kind == "no_key" and "schl" not in str(error)
    assert messages_server.requests == []


@pytest.mark.parametrize(
    "reply",
    [
        Answer(input={"lr": KEY}),
        Answer(tool=KEY),
        Answer(stop_reason="refusal", stop_details={"category": KEY}),
        Fail(status=400, message=f"what is {KEY}?"),
        Fail(status=401, message=f"invalid x-api-key {KEY}"),
        Fail(status=403, message=f"{KEY} may not"),
        Fail(status=404, body=f'{{"detail": "{KEY}"}}'.encode()),
        Fail(status=500, message=f"{KEY} broke it"),
        Answer(body=f'{{"content": "{KEY}"}}'.encode()),
        Answer(stop_reason="end_turn", content=TEXT),
        Reset(),
        Hang(),
    ],
    ids=lambda reply: type(reply).__name__,
)
def test_the_key_shows_nowhere(
    messages_server: MessagesServer, client_of: ClientOf, caplog: pytest.LogCaptureFixture, reply: Reply
) -> None:
    caplog.set_level(logging.DEBUG)
    messages_server.play([reply])
    client = client_of(deadline_s=2.0)
    ledger = BudgetLedger(Price(input=1, output=1, cache_write=1, cache_read=1))
    found: list[str] = [repr(client), repr(client.settings), repr(pickle.dumps(client)), repr(vars(client))]
    try:
        found.append(repr(ask(client, a_call(), ledger)))
    except LlmCallError as error:
        # Below this test's own frame, whose locals hold the reply that quotes the key.
        below = error.__traceback__.tb_next if error.__traceback__ else None
        formatted = traceback.TracebackException(type(error), error, below, capture_locals=True)
        assert below is not None
        found += [*formatted.format(), str(error), repr(error), repr(error.args), repr(vars(error))]
        found += [repr(pickle.dumps(error)), repr(error.__cause__), repr(error.__context__)]
    found.append(repr(ledger.entries))
    for record in caplog.records:
        found += [record.getMessage(), repr(record.args), repr(record.exc_text)]
        if record.exc_info:
            found += traceback.format_exception(*record.exc_info)
    assert set(sent_keys(messages_server)) == {KEY}
    assert [text for text in found if KEY in text] == []


def test_an_error_of_a_call_survives_pickling() -> None:
    error = LlmCallError("Cut off.", kind="max_tokens", usage=Usage(output=7))
    error.latency_s = 1.5
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, AgentError)
    assert (str(copy), copy.kind, copy.usage, copy.latency_s) == (
        "Cut off.",
        "max_tokens",
        Usage(output=7),
        1.5,
    )


# --- settings, calls, estimates ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": " "}, "agents.model"),
        ({"base_url": "localhost:8000"}, "http://"),
        ({"base_url": "http://me:secret@host"}, "user name or password"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"deadline_s": float("inf")}, "deadline_s"),
        ({"thinking_budget": 100}, "1024"),
        ({"thinking": "enabled"}, "thinking_budget"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        validated(LlmSettings, {"model": MODEL, **changes}, "search.yaml")
    assert "secret" not in str(caught.value)


def test_the_remedy_of_an_answer_that_was_cut_off_raises_its_limit(
    messages_server: MessagesServer, client_of: ClientOf
) -> None:
    def long_winded(request: Request) -> Answer:
        return Answer(stop_reason="max_tokens") if request.body["max_tokens"] <= 500 else Answer()

    messages_server.play(long_winded)
    error = failure(client_of())
    assert "Raise agents.thinking_budget" in str(error)
    agents = make_config(agents={"backend": "claude", "model": MODEL, "thinking_budget": 1024}).agents
    raised = llm_settings(agents).model_copy(update={"base_url": messages_server.base_url})
    assert ask(MessagesClient(raised), a_call()).input == {}


def test_the_worst_case_covers_what_the_server_counts(client_of: ClientOf) -> None:
    client = client_of()
    call = a_call(content=(ImageBlock(png=png(1100, 700)), TextBlock(text="ä" * 400)))
    usage = ask(client, call).usage
    bound = client.worst_case(call)
    assert bound.all_input >= usage.all_input
    assert bound.output == 500


def test_the_worst_case_grows_by_a_token_a_byte_and_by_the_pixels() -> None:
    settings = LlmSettings(model=MODEL, thinking_budget=2000)

    def bound(*content: TextBlock | ImageBlock) -> Usage:
        return worst_case(a_call(content=content), settings)

    assert bound(TextBlock(text="x")).output == 2500
    assert bound(TextBlock(text="x" * 101)).all_input - bound(TextBlock(text="x")).all_input == 100
    small, large = bound(ImageBlock(png=png(70, 100))), bound(ImageBlock(png=png(700, 1000)))
    assert large.all_input - small.all_input == 990
    unreadable = bound(ImageBlock(png=b"no picture"))
    assert unreadable.all_input > large.all_input
