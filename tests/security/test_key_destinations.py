"""Which servers the environment's key is sent to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import anthropic  # noqa: F401 - its first import takes seconds, which no deadline below should pay
import pytest

from llmzero_ray.agents.backend import needs_key
from llmzero_ray.agents.llm.api_key import read_key
from llmzero_ray.agents.llm.client import MessagesClient
from llmzero_ray.agents.llm.errors import LlmCallError
from llmzero_ray.agents.llm.settings import LlmSettings
from llmzero_ray.cli.doctor.agents import _own_server
from llmzero_ray.config import AgentsConfig
from tests.agents.llm.messages_server import KEY, Fail, MessagesServer

MODEL = "claude-sonnet-4-6"


@pytest.fixture(autouse=True)
def secrets_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.delenv("ANTHROPIC_API_KEY_FILE", raising=False)
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "x-organisation: secret-organisation")


class Elsewhere(MessagesServer):
    """A server that counts as one of another machine: Linux takes its address here, but it is no loopback."""

    @property
    def base_url(self) -> str:
        return super().base_url.replace("127.0.0.1", "0.0.0.0")


@pytest.fixture
def elsewhere() -> Iterator[MessagesServer]:
    with Elsewhere(key=None) as server:
        yield server


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        (None, True),
        ("https://api.anthropic.com", True),
        ("https://api.anthropic.com:443/", True),
        ("http://127.0.0.1:8000", True),
        ("http://127.1.2.3:8000", True),
        ("http://localhost:8000", True),
        ("http://[::1]:8000", True),
        ("http://api.anthropic.com", False),
        ("https://api.anthropic.com:8443", False),
        ("https://api.anthropic.com.example.org", False),
        ("https://gateway.example.org", False),
        ("http://10.0.0.5:8000", False),
        ("http://localhost.example.org:8000", False),
        ("http://[2001:db8::1]:8000", False),
    ],
)
def test_the_key_goes_to_anthropic_and_to_this_machine_alone(url: str | None, sent: bool) -> None:
    assert (read_key(LlmSettings(model=MODEL, base_url=url)) == KEY) is sent


def test_requests_to_another_machine_carry_no_secret(elsewhere: MessagesServer) -> None:
    MessagesClient(LlmSettings(model=MODEL, base_url=elsewhere.base_url)).check()
    sent = repr([request.headers for request in elsewhere.requests])
    assert elsewhere.requests and KEY not in sent and "secret-organisation" not in sent
    assert os.environ["ANTHROPIC_API_KEY"] == KEY


def test_a_proxy_of_the_environment_is_not_asked_for_a_server_of_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be told the key, in clear."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with MessagesServer(key=KEY) as here, MessagesServer(key=None) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.base_url)
        settings = LlmSettings(model=MODEL, base_url=here.base_url)
        MessagesClient(settings).check()
        assert _own_server(settings, MODEL, KEY).status == "ok"
        assert [request.path for request in here.requests] == [f"/v1/models/{MODEL}", "/v1/models"]
        assert proxy.requests == []


def test_a_key_of_its_own_is_sent_in_place_of_the_environments(
    elsewhere: MessagesServer, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("its-own-key\n")
    own = LlmSettings(model=MODEL, base_url=elsewhere.base_url, key_file=str(tmp_path / "key"))
    MessagesClient(own).check()
    headers = elsewhere.requests[0].headers
    assert (headers["x-api-key"], headers["authorization"]) == ("its-own-key", "Bearer its-own-key")
    assert KEY not in repr(headers)


def test_a_server_that_asks_for_a_key_is_answered_with_what_to_do(elsewhere: MessagesServer) -> None:
    elsewhere.models_endpoint = False
    elsewhere.play([Fail(status=401, message="who are you?")])
    with pytest.raises(LlmCallError, match=r"agents\.key_file") as caught:
        MessagesClient(LlmSettings(model=MODEL, base_url=elsewhere.base_url)).check()
    assert caught.value.kind == "auth"


def test_a_key_file_without_a_server_is_refused() -> None:
    with pytest.raises(ValueError, match=r"agents\.base_url must name"):
        AgentsConfig(key_file="key.txt")


def test_actors_get_the_key_only_where_it_is_sent(tmp_path: Path) -> None:
    def asked(**agents: str) -> bool:
        return needs_key(AgentsConfig(backend="claude", **agents))

    assert asked() and asked(base_url="http://127.0.0.1:1")
    assert not asked(base_url="http://10.0.0.5:8000")
    assert not asked(base_url="http://127.0.0.1:1", key_file="key.txt")
    assert not needs_key(AgentsConfig(backend="expert"))
