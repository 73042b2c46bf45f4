"""What an HTTP status means, whether to try again, and how long to wait.

Pure: clocks and sleeping stay with the caller. Not here: connections (client.py).
"""

from __future__ import annotations

import email.utils
import json
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from llmzero_ray.agents.llm.errors import ErrorKind, LlmCallError, shown
from llmzero_ray.agents.llm.settings import LlmSettings

RETRIED: frozenset[ErrorKind] = frozenset({"rate_limited", "overloaded", "server", "connection"})
"""Kinds that pass by themselves."""


@dataclass(frozen=True, kw_only=True)
class HttpFailure:
    """A response that is not a success."""

    status: int
    body: bytes
    retry_after: str | None = None
    request_id: str | None = None


class Backoff:
    """Growing waits with jitter: the k-th lies between half and all of `backoff_s` · 2^(k-1), capped."""

    def __init__(self, settings: LlmSettings, rng: random.Random) -> None:
        self._next, self._max, self._rng = settings.backoff_s, settings.backoff_max_s, rng

    def wait_s(self) -> float:
        """Seconds before the next try."""
        limit = min(self._next, self._max)
        self._next = min(2 * limit, self._max)
        return limit * (0.5 + 0.5 * self._rng.random())


def retry_after_s(header: str | None, now: datetime | None = None) -> float | None:
    """Seconds that a `retry-after` header asks for (a number or an HTTP date); None: nothing usable."""
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


def refuses_forced_tool(failure: HttpFailure) -> bool:
    """The model does not let a tool be forced (it thinks by itself): the choice must be left to it."""
    return failure.status == 400 and "tool_choice" in _reason(failure.body)


def error_of(failure: HttpFailure, settings: LlmSettings, secret: str | None) -> LlmCallError:
    """The error that a response stands for, with the server's own reason in short."""
    kind, text = _described(failure, settings, shown(_reason(failure.body) or "no reason given", secret))
    error = LlmCallError(text, kind=kind)
    error.request_id = failure.request_id
    return error


def _described(failure: HttpFailure, settings: LlmSettings, reason: str) -> tuple[ErrorKind, str]:
    status, model, url = failure.status, settings.model, settings.url
    match status:
        case 401:
            # The reason is left out: it may quote part of the key.
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
        case 404 | 405:
            return "not_found", (
                f"{url} has no Messages API ({status}: {reason}). Set agents.base_url to the server's root, "
                "without /v1."
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


def _reason(body: bytes) -> str:
    """`error.message` of the documented shape (or vLLM's and FastAPI's); empty where there is none."""
    try:
        data: Any = json.loads(body)
    except ValueError:
        return ""
    if not isinstance(data, dict):
        return ""
    error = data.get("error")
    found = error.get("message") if isinstance(error, dict) else data.get("message", data.get("detail"))
    return found if isinstance(found, str) else ""
