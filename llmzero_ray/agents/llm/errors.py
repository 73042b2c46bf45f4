"""Why a call to a language model failed, in one class with a kind.

Messages state the request, the response and the remedy. They never contain the key, request headers or whole
bodies. Not here: the kind for a response (http_errors.py).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from llmzero_ray.agents.llm.messages import Usage
from llmzero_ray.errors import AgentError
from llmzero_ray.utils.text import one_line

ErrorKind: TypeAlias = Literal[
    "no_key",
    "auth",
    "not_found",
    "bad_request",
    "refusal",
    "max_tokens",
    "empty",
    "no_tool_call",
    "malformed",
    "rate_limited",
    "overloaded",
    "server",
    "connection",
    "deadline",
]
"""`no_key` none given or unreadable · `auth` key or account refused · `not_found` unknown model or wrong
base_url · `bad_request` refused as it stands (images, parameters, size) · `refusal` the model declined ·
`max_tokens` the answer was cut off · `empty` an answer without content · `no_tool_call` text or another tool
instead of the tool · `malformed` not the Messages API's JSON, or the tool's input is no object ·
`rate_limited` 429 · `overloaded` 529 or 503 · `server` 408, 409, other 5xx · `connection` no or broken
connection · `deadline` time was up."""

REPROMPT_KINDS: frozenset[ErrorKind] = frozenset({"malformed", "no_tool_call", "empty", "max_tokens"})
"""After these errors a retry with the reason in the prompt may succeed."""
_MAX_EXCERPT = 300


class LlmCallError(AgentError):
    """A call failed; `kind` says how, `usage` what it cost nevertheless."""

    def __init__(self, message: str, *, kind: ErrorKind = "connection", usage: Usage | None = None) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind
        self.usage = usage
        """Tokens that the server reported for the failed answer; None: it reported none."""
        self.latency_s = 0.0
        self.n_attempts = 0
        """HTTP requests sent."""
        self.request_id: str | None = None


def excerpt(text: object, secret: str | None = None) -> str:
    """Foreign text as it may stand in a message: one short line, without the key or control characters."""
    return one_line(redacted(str(text), secret), _MAX_EXCERPT)


def redacted(text: str, secret: str | None) -> str:
    """The text with every occurrence of the key replaced by `[key]`."""
    return text.replace(secret, "[key]") if secret else text
