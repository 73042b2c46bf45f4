"""One call's dealings with the server: connection, tries, waits, and what became of them.

Imports no SDK: it is handed the module. Not here: the deadline's enforcement and the meaning of answers
(client.py, reply.py).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

from llmzero_ray.agents.llm.errors import LlmCallError, shown
from llmzero_ray.agents.llm.key import KEYLESS
from llmzero_ray.agents.llm.retry import RETRIED, Backoff, HttpFailure, error_of, retry_after_s
from llmzero_ray.agents.llm.settings import LlmSettings

logger = logging.getLogger(__name__)

_CONNECT_S = 10.0
# These failed before the request left, so that nothing can have been billed.
_UNSENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError"})
# Fields that every version of the SDK takes by name. The others come and go (temperature went, effort came),
# while the server decides by model what it accepts.
_NAMED = frozenset({"model", "max_tokens", "messages", "system", "tools", "tool_choice"})


@dataclass(frozen=True, kw_only=True)
class Response:
    """A success, unread."""

    body: bytes
    request_id: str | None


Send: TypeAlias = Callable[[], Awaitable[Response | HttpFailure | LlmCallError]]
"""One try. Failures are values: a traceback would lead to the key."""


class Exchange:
    """Key, connection, tries and waits of one call."""

    def __init__(self, settings: LlmSettings, until: float) -> None:
        self.key: str | None = None
        self.n_attempts = 0
        self.in_flight = False
        self.maybe_billed = False
        self.last = ""
        self.request_id: str | None = None
        self._settings = settings
        self._started = time.monotonic()
        self._until = until
        self._backoff = Backoff(settings, random.Random(settings.seed))
        self._client: Any = None
        self._sdk: Any = None

    def opened(self, sdk: ModuleType) -> Any:
        """The SDK's client as a context manager, without retries of its own."""
        # Looser than the deadline, so that a time-out is always reported as such.
        left_s = max(self.left_s(), 0.0) + 5.0
        self._sdk = sdk
        self._client = sdk.AsyncAnthropic(
            api_key=self.key or KEYLESS,
            base_url=self._settings.url,
            max_retries=0,
            timeout=sdk.Timeout(left_s, connect=min(_CONNECT_S, left_s)),
        )
        return self._client

    def elapsed_s(self) -> float:
        """Seconds since the call began."""
        return time.monotonic() - self._started

    def left_s(self) -> float:
        """Seconds to the deadline; negative after it."""
        return self._until - time.monotonic()

    def create(self, body: dict[str, Any]) -> Send:
        """A try at `POST /v1/messages`."""
        named = {name: value for name, value in body.items() if name in _NAMED}
        extra = {name: value for name, value in body.items() if name not in _NAMED}
        create = self._client.messages.with_raw_response.create
        return lambda: self._sent(create(**named, extra_body=extra), billed=True)

    def retrieve(self) -> Send:
        """A try at `GET /v1/models/{id}`."""
        model = self._settings.model
        return lambda: self._sent(self._client.models.with_raw_response.retrieve(model), billed=False)

    async def persist(self, send: Send) -> Response | HttpFailure:
        """Try until it succeeds, fails for good, or the next wait would pass the deadline.

        Raises:
            LlmCallError: the last failure would have passed by itself, but time is up.
        """
        while True:
            outcome = await send()
            if isinstance(outcome, Response):
                return outcome
            asked_s: float | None = None
            if isinstance(outcome, LlmCallError):
                error = outcome
            else:
                error = error_of(outcome, self._settings, self.key)
                if error.kind not in RETRIED:
                    return outcome
                asked_s = retry_after_s(outcome.retry_after)
            self.last = str(error)
            wait_s = max(self._backoff.wait_s(), asked_s or 0.0)
            if wait_s >= self.left_s():
                wanted = f"the server asked to wait {asked_s:.0f} s and " if asked_s else ""
                raise LlmCallError(
                    f"{error} Gave up after {self.n_attempts} attempts in {self.elapsed_s():.1f} s: {wanted}"
                    f"{max(self.left_s(), 0):.1f} s were left.",
                    kind=error.kind,
                )
            logger.warning("attempt %d failed: %s Next in %.1f s", self.n_attempts, error, wait_s)
            await asyncio.sleep(wait_s)

    async def _sent(self, request: Awaitable[Any], *, billed: bool) -> Response | HttpFailure | LlmCallError:
        self.n_attempts += 1
        self.in_flight = billed
        outcome = await self._answered(request, billed)  # cut off by the deadline, it stays in flight
        self.in_flight = False
        return outcome

    async def _answered(self, request: Awaitable[Any], billed: bool) -> Response | HttpFailure | LlmCallError:
        try:
            raw = (await request).http_response
        except self._sdk.APIStatusError as failure:
            self.request_id = failure.response.headers.get("request-id")
            return HttpFailure(
                status=failure.status_code,
                body=failure.response.content,
                retry_after=failure.response.headers.get("retry-after"),
                request_id=self.request_id,
            )
        except self._sdk.APIConnectionError as failure:
            cause = failure.__cause__ or failure
            self.maybe_billed |= billed and type(cause).__name__ not in _UNSENT
            what = shown(": ".join(filter(None, (type(cause).__name__, str(cause)))), self.key)
            return LlmCallError(f"No answer from {self._settings.url} ({what}).")
        self.request_id = raw.headers.get("request-id")
        return Response(body=raw.content, request_id=self.request_id)
