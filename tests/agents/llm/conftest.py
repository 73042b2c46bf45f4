"""Fixtures of the agents' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agents.llm.messages_server import KEY, MessagesServer


@pytest.fixture
def messages_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MessagesServer]:
    """A server of the Messages API that answers with an empty tool input until its `script` is changed; its
    key is in the environment."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.delenv("ANTHROPIC_API_KEY_FILE", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with MessagesServer() as server:
        yield server
