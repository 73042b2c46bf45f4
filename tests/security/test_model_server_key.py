"""A served model answers nobody who has not its key, whatever the path."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.model_server_key import SERVER_KEY_FILE_ENV, RequireKey

KEY = b"a-key"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RequireKey:
    (tmp_path / "key").write_bytes(KEY + b"\n")
    monkeypatch.setenv(SERVER_KEY_FILE_ENV, str(tmp_path / "key"))

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    return RequireKey(app)


def first_message(server: RequireKey, **scope: Any) -> dict[str, Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("no request is read before its key")

    asyncio.run(server({"type": "http", "path": "/v1/messages", "headers": [], **scope}, receive, send))
    return dict(sent[0])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b"authorization", b"Bearer a-key")], 200),
        ([(b"Authorization", b"bearer a-key")], 200),
        ([(b"x-api-key", KEY)], 200),
        ([(b"x-api-key", b"no-key-needed"), (b"authorization", b"Bearer a-key")], 200),
        ([], 401),
        ([(b"x-api-key", b"")], 401),
        ([(b"x-api-key", b"a-key-")], 401),
        ([(b"authorization", b"Basic a-key")], 401),
        ([(b"authorization", b"a-key")], 401),
    ],
)
def test_a_request_needs_the_key(server: RequireKey, headers: Any, status: int) -> None:
    assert first_message(server, headers=headers)["status"] == status


@pytest.mark.parametrize("path", ["/health", "/metrics", "/invocations", "/scale_elastic_ep", "/"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_no_path_is_open(server: RequireKey, path: str, method: str) -> None:
    assert first_message(server, path=path, method=method)["status"] == 401


def test_a_websocket_needs_the_key_too(server: RequireKey) -> None:
    assert first_message(server, type="websocket")["type"] == "websocket.close"


def test_the_start_of_the_server_needs_none(server: RequireKey) -> None:
    assert first_message(server, type="lifespan")["status"] == 200
