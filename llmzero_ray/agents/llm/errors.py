"""Error class for failed calls to a language model, with a kind.

Messages state the request, the response and the remedy. They never contain the key, request headers or whole
bodies. Not here: which failures are retried (the SDK decides), connections (client.py).
"""

from __future__ import annotations

import email.utils
import json
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from llmzero_ray.agents.llm.messages import Usage
from llmzero_ray.agents.llm.settings import LlmSettings
from llmzero_ray.errors import AgentError, OutageError
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
"""`no_key` no key or an unreadable one · `auth` key or account refused · `not_found` unknown model or wrong
base_url · `bad_request` request refused (images, parameters, size) · `refusal` the model declined ·
`max_tokens` the answer was cut off · `empty` an answer without content · `no_tool_call` text or another tool
instead of the tool · `malformed` not the Messages API's JSON, or the tool's input is not an object ·
`rate_limited` 429 · `overloaded` 529 or 503 · `server` 408, 409, other 5xx · `connection` no or broken
connection · `deadline` time was up."""

OUTAGE_KINDS: frozenset[ErrorKind] = frozenset(
    {"rate_limited", "overloaded", "server", "connection", "deadline"}
)
"""Errors of a server that may answer later."""
REPROMPT_KINDS: frozenset[ErrorKind] = frozenset({"malformed", "no_tool_call", "empty", "max_tokens"})
"""Errors after which a retry with the reason in the prompt may succeed."""
_MAX_EXCERPT = 300


class LlmCallError(AgentError):
    """Failure of a call, with its `kind` and the `usage` that it still cost."""

    def __init__(self, message: str, *, kind: ErrorKind = "connection", usage: Usage | None = None) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind
        self.usage = usage
        """Tokens that the server reported for the failed answer, or None if it reported none."""
        self.latency_s = 0.0
        self.n_attempts = 0
        """Number of HTTP requests sent."""
        self.request_id: str | None = None


def raise_outage(error: Exception, on_outage: str) -> None:
    """Raise OutageError if an outage made the call fail and the search should wait for its end."""
    if on_outage == "wait" and isinstance(error, LlmCallError) and error.kind in OUTAGE_KINDS:
        raise OutageError(str(error)) from error


def excerpt(text: object, secret: str | None = None) -> str:
    """Untrusted text made safe for a message: one short line, without the key or control characters."""
    return one_line(redacted(str(text), secret), _MAX_EXCERPT)


def redacted(text: str, secret: str | None) -> str:
    """Text with every occurrence of the key replaced by `[key]`."""
    return text.replace(secret, "[key]") if secret else text


def error_of(status: int, body: bytes, settings: LlmSettings, secret: str | None) -> LlmCallError:
    """Error for an unsuccessful response, with a short form of the server's reason."""
    reason = excerpt(reason_of(body) or "no reason given", secret)
    kind, text = _described(status, reason, settings)
    return LlmCallError(text, kind=kind)


def reason_of(body: bytes) -> str:
    """Server's reason: `error.message`, or the fields that vLLM and FastAPI use. Empty if there is none."""
    try:
        data: Any = json.loads(body)
    except ValueError:
        return ""
    if not isinstance(data, dict):
        return ""
    error = data.get("error")
    found = error.get("message") if isinstance(error, dict) else data.get("message", data.get("detail"))
    return found if isinstance(found, str) else ""


def retry_after_s(header: str | None, now: datetime | None = None) -> float | None:
    """Seconds to wait according to a `retry-after` header (a number or an HTTP date), or None."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            then = email.utils.parsedate_to_datetime(header)
        except ValueError:
            return None
        if then.tzinfo is None:
            then = then.replace(tzinfo=UTC)
        seconds = (then - (now or datetime.now(UTC))).total_seconds()
    return max(0.0, seconds) if abs(seconds) < float("inf") else None


def _described(status: int, reason: str, settings: LlmSettings) -> tuple[ErrorKind, str]:
    model, url = settings.model, settings.url
    match status:
        case 401:
            # The reason is left out: it may quote part of the key.
            if not settings.takes_environment_key:
                return "auth", (
                    f"{url} asks for a key of its own (401). {settings.key_env} is sent to the provider and "
                    "to this machine alone; name a file with this server's key in agents.key_file."
                )
            return "auth", (
                f"{url} refused the API key (401). Check {settings.key_env} or {settings.key_file_env} in "
                "the process that calls."
            )
        case 402 | 403:
            return "auth", (
                f"{url} refused the account behind the API key ({status}: {reason}). Check its billing and "
                f"whether it may use {model}."
            )
        case 404 if "model" in reason.lower() or model in reason:
            return "not_found", (
                f"{url} knows no model {model!r} (404: {reason}). Set agents.model to a model it serves."
            )
        case 404 | 405 if settings.provider == "openai":
            return "not_found", (
                f"{url} has no chat completions ({status}: {reason}). Set agents.base_url to the server's "
                "root with /v1."
            )
        case 404 | 405:
            return "not_found", (
                f"{url} has no Messages API ({status}: {reason}). Set agents.base_url to the server's root, "
                "without /v1, or agents.provider: openai if it has chat completions."
            )
        case 413:
            return "bad_request", (
                f"The request is larger than {url} takes (413: {reason}). Shorten the prompt or shrink the "
                "image."
            )
        case 429:
            return "rate_limited", f"{url} limits the rate of requests (429: {reason})."
        case 529 | 503:
            return "overloaded", f"{url} is overloaded ({status}: {reason})."
        case 408 | 409:
            return "server", f"{url} asked to repeat the request ({status}: {reason})."
        case _ if status >= 500:
            return "server", f"{url} failed ({status}: {reason})."
        case _ if "image" in reason.lower():
            return "bad_request", (
                f"{model} refused the image ({status}: {reason}). Set agents.visual: false, or choose a "
                "model that sees."
            )
        case _:
            return "bad_request", f"{url} refused the request ({status}: {reason})."
