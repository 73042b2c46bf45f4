"""The client at each provider, against a scripted server that speaks its protocol."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import google.auth
import google.auth.credentials
import openai  # noqa: F401 - its first import takes seconds, which no deadline below should pay
import pytest

from llmzero_ray.agents.backend import lacks_model, llm_settings
from llmzero_ray.agents.llm.budget import BudgetLedger, CallBudget, call_within_budget
from llmzero_ray.agents.llm.client import MessagesClient
from llmzero_ray.agents.llm.errors import LlmCallError
from llmzero_ray.agents.llm.messages import LlmCall, LlmResponse, RefusedAnswer, ToolExchange
from llmzero_ray.agents.llm.prices import FREE, Price, price_of
from llmzero_ray.agents.llm.providers import check_packages
from llmzero_ray.agents.llm.settings import LlmSettings
from llmzero_ray.config import AgentsConfig
from llmzero_ray.errors import ConfigError
from tests.agents.llm.messages_server import KEY, Answer, Fail, Hang, MessagesServer, rate_limited
from tests.agents.llm.provider_server import TOKEN, ProviderServer
from tests.agents.llm.test_client import MODEL, a_call, png
from tests.waiting import PATIENCE_S

PROVIDERS = ("bedrock", "vertex", "foundry", "openai")
ClientOf = Callable[..., MessagesClient]


class _Credentials(google.auth.credentials.Credentials):  # type: ignore[misc, no-untyped-call]
    expired = False

    def __init__(self, token: str) -> None:
        super().__init__()
        self.token = token

    def refresh(self, request: Any) -> None:
        """It never expires."""


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """What each provider needs in the process that calls."""
    for name, value in {
        "AWS_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "AKIATEST",
        "AWS_SECRET_ACCESS_KEY": "aws-test-secret",
        "CLOUD_ML_REGION": "europe-west1",
        "ANTHROPIC_VERTEX_PROJECT_ID": "my-project",
        "ANTHROPIC_FOUNDRY_API_KEY": KEY,
        "OPENAI_API_KEY": KEY,
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_BEARER_TOKEN_BEDROCK", "AWS_PROFILE", "AWS_SESSION_TOKEN", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    signed_in_as(monkeypatch, TOKEN)
    return monkeypatch


def signed_in_as(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    """Google's default credentials with that token."""
    monkeypatch.setattr(google.auth, "default", lambda **_: (_Credentials(token), "my-project"))


@pytest.fixture
def server_of(environment: pytest.MonkeyPatch) -> Iterator[Callable[..., ProviderServer]]:
    made: list[ProviderServer] = []

    def make(provider: str, **settings: Any) -> ProviderServer:
        made.append(ProviderServer(provider, **settings))
        made[-1].__enter__()
        return made[-1]

    yield make
    for server in made:
        server.__exit__()


def client_of(server: ProviderServer, **settings: Any) -> MessagesClient:
    agents = AgentsConfig(backend="claude", provider=server.provider, base_url=server.url, model=MODEL)  # type: ignore[arg-type]
    return MessagesClient(llm_settings(agents).model_copy(update={"deadline_s": PATIENCE_S, **settings}))


def ask(client: MessagesClient, call: LlmCall, ledger: BudgetLedger | None = None) -> LlmResponse:
    budget = CallBudget(ledger or BudgetLedger(FREE), call.agent, call.node, client.worst_case(call))
    return call_within_budget(client, call, budget)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_each_provider_answers_through_the_tool_with_picture_usage_and_cost(
    server_of: Callable[..., ProviderServer], provider: str
) -> None:
    server = server_of(provider)
    server.play([Answer(input={"lr": 0.1}, output_tokens=7)])
    client, ledger = client_of(server), BudgetLedger(Price.of([1, 10, 1, 1]))
    answer = ask(client, a_call(), ledger)
    assert (answer.input, answer.usage.output, answer.stop_reason) == ({"lr": 0.1}, 7, "tool_use")
    assert answer.usage.input > 1000 and answer.model == MODEL
    (request,) = server.messages
    assert (request.n_images, request.body["tool_choice"]["type"], request.body["max_tokens"]) == (
        1,
        "tool",
        4500,
    ), "with room for thinking, which the server does not state"
    assert "What every metric means" in request.system and "Node 3" in request.text
    assert ledger.reserved == 0 and 0 < ledger.dollars < 1


@pytest.mark.parametrize("provider", PROVIDERS)
def test_each_provider_is_asked_again_while_it_limits_the_rate(
    server_of: Callable[..., ProviderServer], provider: str
) -> None:
    server = server_of(provider)
    server.play([rate_limited("0.01"), Answer(truncated=True, body=b'{"id": "half'), Answer(input={"lr": 1})])
    ledger = BudgetLedger(FREE)
    answer = ask(client_of(server), a_call(), ledger)
    assert (answer.n_attempts, answer.input) == (3, {"lr": 1})
    assert [entry.outcome for entry in ledger.entries] == ["connection", "ok"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_deadline_holds_at_each_provider(server_of: Callable[..., ProviderServer], provider: str) -> None:
    server = server_of(provider)
    server.play([Hang()])
    with pytest.raises(LlmCallError) as caught:
        ask(client_of(server, deadline_s=1.0), a_call())
    assert caught.value.kind == "deadline"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_check_at_the_start_finds_a_model_and_refused_credentials(
    server_of: Callable[..., ProviderServer], environment: pytest.MonkeyPatch, provider: str
) -> None:
    server = server_of(provider)
    client_of(server).check(image=png())
    environment.setenv("OPENAI_API_KEY", "wrong")
    environment.setenv("ANTHROPIC_FOUNDRY_API_KEY", "wrong")
    environment.setenv("AWS_BEARER_TOKEN_BEDROCK", "wrong")
    signed_in_as(environment, "wrong")
    with pytest.raises(LlmCallError) as caught:
        client_of(server).check()
    assert caught.value.kind == "auth"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("provider", "missing", "cure"),
    [
        ("bedrock", ("AWS_REGION",), "AWS_REGION"),
        ("vertex", ("CLOUD_ML_REGION",), "CLOUD_ML_REGION"),
        ("foundry", ("ANTHROPIC_FOUNDRY_API_KEY",), "ANTHROPIC_FOUNDRY_API_KEY"),
        ("openai", ("OPENAI_API_KEY",), "OPENAI_API_KEY"),
    ],
)
def test_missing_credentials_are_named_with_the_cure(
    environment: pytest.MonkeyPatch, provider: str, missing: tuple[str, ...], cure: str
) -> None:
    for name in missing:
        environment.delenv(name)
    environment.setenv("AWS_CONFIG_FILE", "/nowhere")
    agents = AgentsConfig(backend="claude", provider=provider, model=MODEL)  # type: ignore[arg-type]
    with pytest.raises(LlmCallError) as caught:
        ask(MessagesClient(llm_settings(agents)), a_call())
    assert caught.value.kind == "no_key" and cure in str(caught.value)
    assert lacks_model_of(agents) == (provider in ("foundry", "openai"))


def lacks_model_of(agents: AgentsConfig) -> bool:
    from tests.builders import make_config

    return lacks_model(make_config(agents=agents.model_dump(mode="json")))


def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    found = importlib.util.find_spec
    hidden = ("boto3", "google.auth", "openai")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in hidden else found(name))
    for provider, package in (("bedrock", "boto3"), ("vertex", "google.auth"), ("openai", "openai")):
        with pytest.raises(ConfigError, match=rf"{package}.*pip install '"):
            check_packages(LlmSettings(model="m", provider=provider))  # type: ignore[arg-type]
    check_packages(LlmSettings(model="m", provider="foundry"))


@pytest.mark.parametrize(
    ("provider", "model", "output"),
    [
        ("bedrock", "us.anthropic.claude-sonnet-5-5-v1:0", 11),
        ("vertex", "claude-sonnet-4-5@20250929", 15),
        ("openai", "gpt-5.2", 14),
        ("foundry", "claude-sonnet-4-6", 15),
    ],
)
def test_each_providers_list_price_is_found(provider: str, model: str, output: float) -> None:
    assert price_of(model, None, provider).output == output
    assert price_of("mine", [1, 2, 3, 4], provider).output == 2
    with pytest.raises(ConfigError, match=r"agents\.price"):
        price_of("mine", None, provider)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("status", "message", "is_refused", "sent"),
    [
        (400, "tools.0.custom.strict: Extra inputs are not permitted", "strict", {"strict": None}),
        (422, "structured outputs are not supported", "strict", {"strict": None}),
        (404, "No endpoints found that support tool use", "tools", {"format": True}),
        (400, "max_tokens: 4500 > 4096", "room", {"max_tokens": 500}),
        (400, "This model's maximum context length is 4096 tokens", "room", {"max_tokens": 500}),
    ],
)
def test_what_any_provider_refuses_is_left_out_from_then_on(
    server_of: Callable[..., ProviderServer],
    provider: str,
    status: int,
    message: str,
    is_refused: str,
    sent: dict[str, Any],
) -> None:
    def parts(body: Any) -> dict[str, Any]:
        tools = body.get("tools", ())
        return {
            "strict": next((True for tool in tools if tool.get("strict")), None),
            "tools": bool(tools),
            "format": "format" in body.get("output_config", {}),
            "max_tokens": body["max_tokens"],
            "room": body["max_tokens"] > 500,
        }

    server = server_of(provider)
    server.play(
        lambda request: (
            Fail(status=status, message=message)
            if parts(request.body)[is_refused]
            else Answer(input={"lr": 1})
        )
    )
    client, call = client_of(server), a_call(tool=replace(a_call().tool, strict=True))
    assert ask(client, call).input == {"lr": 1}
    assert ask(client, call).n_attempts == 1
    assert sent.items() <= parts(server.messages[-1].body).items()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_server_without_tools_and_formats_is_not_asked_again_and_again(
    server_of: Callable[..., ProviderServer], provider: str
) -> None:
    server = server_of(provider)
    server.play(
        lambda request: Fail(
            status=400,
            message="tools are not supported" if "tools" in request.body else "json_schema: unknown format",
        )
    )
    with pytest.raises(LlmCallError) as caught:
        ask(client_of(server), a_call(tool=replace(a_call().tool, strict=True)))
    assert caught.value.kind == "bad_request" and caught.value.n_attempts == 3


# --- OpenAI-style servers ---------------------------------------------------------------------------------


def test_a_chat_completion_is_asked_for_as_its_reference_says(
    server_of: Callable[..., ProviderServer],
) -> None:
    server = server_of("openai")
    ask(client_of(server), a_call(tool=replace(a_call().tool, strict=True)))
    chat = server.raw[-1].body
    assert [turn["role"] for turn in chat["messages"]] == ["system", "user"]
    picture, text = chat["messages"][1]["content"]
    assert picture["image_url"]["url"] == f"data:image/png;base64,{base64.b64encode(png()).decode()}"
    assert text == {"type": "text", "text": "Node 3 has a plateau."}
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "propose"}}
    assert chat["tools"][0]["function"]["strict"] is True
    assert (chat["max_completion_tokens"], chat["parallel_tool_calls"]) == (4500, False)


def test_refused_answers_and_exchanges_of_tools_keep_their_turns(
    server_of: Callable[..., ProviderServer],
) -> None:
    server, client = server_of("openai"), None
    client = client_of(server)
    first = ask(client, a_call())
    again = a_call(refused=(RefusedAnswer(content=first.content, reason="lr is missing"),))
    ask(client, again)
    turns = server.raw[-1].body["messages"]
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "tool"]
    assert turns[3] == {
        "role": "tool",
        "tool_call_id": turns[2]["tool_calls"][0]["id"],
        "content": "lr is missing",
    }
    exchange = ToolExchange(content=first.content, result="42", then="Go on.")
    ask(client, a_call(exchanges=(exchange,), others=(replace(a_call().tool, name="look"),)))
    chat = server.raw[-1].body
    assert [turn["role"] for turn in chat["messages"]] == ["system", "user", "assistant", "tool", "user"]
    assert chat["tool_choice"] == "required" and chat["messages"][-1]["content"] == "Go on."


@pytest.mark.parametrize(
    ("refused", "message", "sent"),
    [
        ("tool_choice", "unsupported tool_choice", lambda chat: chat["tool_choice"] == "auto"),
        ("tools", "this model does not support tools", lambda chat: "response_format" in chat),
    ],
)
def test_a_server_that_lacks_a_part_is_asked_without_it_from_then_on(
    server_of: Callable[..., ProviderServer], refused: str, message: str, sent: Callable[[Any], bool]
) -> None:
    server = server_of("openai")
    server.play(
        lambda request: (
            Fail(status=400, message=message)
            if (
                request.body.get("tool_choice", {}).get("type") == "tool"
                if refused == "tool_choice"
                else "tools" in request.body
            )
            else Answer(input={"lr": 0.5})
        )
    )
    client = client_of(server)
    for _ in range(2):
        assert ask(client, a_call()).input == {"lr": 0.5}
    assert len(server.raw) == 3 and sent(server.raw[-1].body)


def test_a_server_without_images_strict_forms_or_the_newest_limit_is_asked_without_them(
    server_of: Callable[..., ProviderServer],
) -> None:
    server = server_of("openai", takes_images=False)

    def old(request: Any) -> Any:
        if "max_completion_tokens" in server.raw[-1].body:
            return Fail(status=400, message="Unknown parameter: max_completion_tokens")
        if request.body["tools"][0].get("strict"):
            return Fail(status=400, message="tools.0.function.strict is not permitted")
        return Answer(input={"lr": 0.5})

    server.play(old)
    client = client_of(server)
    assert ask(client, a_call(tool=replace(a_call().tool, strict=True))).input == {"lr": 0.5}
    chat = server.raw[-1].body
    assert chat["max_tokens"] == 4500 and "strict" not in chat["tools"][0]["function"]
    assert server.messages[-1].n_images == 0


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Answer(input="{cut"), "malformed"),
        (
            Answer(content=[{"type": "text", "text": "I would rather talk."}], stop_reason="end_turn"),
            "no_tool_call",
        ),
        (Answer(content=[{"type": "text", "text": ""}], stop_reason="end_turn"), "empty"),
        (Answer(stop_reason="max_tokens"), "max_tokens"),
        (Answer(stop_reason="refusal"), "refusal"),
        (Answer(body=b'{"error": {"message": "the upstream is gone", "code": 502}}'), "server"),
        (Answer(body=b"<html>"), "malformed"),
        (Answer(body=b'{"choices": []}'), "malformed"),
        (Answer(body=b'{"choices": [{"message": 3, "finish_reason": []}], "model": 1}'), "malformed"),
        (Fail(status=400, message="too long"), "bad_request"),
        (Fail(status=404, message="no such route"), "not_found"),
    ],
)
def test_what_a_bad_server_answers_has_its_kind_and_one_sentence(
    server_of: Callable[..., ProviderServer], reply: Any, kind: str
) -> None:
    server = server_of("openai")
    server.play([reply])
    with pytest.raises(LlmCallError) as caught:
        ask(client_of(server), a_call())
    assert caught.value.kind == kind
    assert "\n" not in str(caught.value) and KEY not in str(caught.value)


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 10**9 + 1},
        {"completion_tokens": 10**7},
        {"prompt_tokens": -5},
        {"prompt_tokens_details": {"cached_tokens": 10**6}},
    ],
)
def test_a_usage_that_cannot_be_true_is_booked_at_the_worst_case(
    server_of: Callable[..., ProviderServer], usage: dict[str, Any]
) -> None:
    server, ledger = server_of("openai"), BudgetLedger(FREE)
    server.usage_fields = usage
    client = client_of(server)
    worst = client.worst_case(a_call())
    with contextlib.suppress(LlmCallError):  # some cannot be read at all
        ask(client, a_call(), ledger)
    (entry,) = ledger.entries
    assert entry.estimated and entry.usage == worst


def test_cached_tokens_are_booked_as_read_from_the_cache(server_of: Callable[..., ProviderServer]) -> None:
    server = server_of("openai")
    server.usage_fields = {"prompt_tokens": 900, "prompt_tokens_details": {"cached_tokens": 800}}
    usage = ask(client_of(server), a_call()).usage
    assert (usage.input, usage.cache_read, usage.cache_creation) == (100, 800, 0)


def test_a_key_of_another_provider_is_never_sent(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("ANTHROPIC_API_KEY", "sk-ant-other")
    with MessagesServer() as server:
        agents = AgentsConfig(
            backend="claude", provider="openai", base_url=f"{server.base_url}/v1", model=MODEL
        )
        with pytest.raises(LlmCallError):
            ask(MessagesClient(llm_settings(agents)), a_call(system="s"))
        assert server.requests
        assert not any("sk-ant-other" in json.dumps(dict(request.headers)) for request in server.requests)
