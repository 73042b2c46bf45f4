"""Fixtures of the drafting agents' tests."""

from __future__ import annotations

from tests.agents.llm.conftest import messages_server

__all__ = ["messages_server"]
