"""Client of the Messages API: one call and one response through a tool, within one deadline.

The anthropic SDK provides retries, back-off, `retry-after`, connection timeouts and error types. This module
adds one deadline over all attempts, and a budget reservation before each of them. The key is read for each
call and lives only in that call's frames. Errors are passed out of them as values, without a traceback.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import os
import threading
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from llmzero_ray.agents.llm.api_key import read_key
from llmzero_ray.agents.llm.budget import BudgetClient, BudgetLedger, CallBudget
from llmzero_ray.agents.llm.call_thread import CallThread
from llmzero_ray.agents.llm.capabilities import Capabilities, stated_capabilities
from llmzero_ray.agents.llm.errors import (
    OUTAGE_KINDS,
    LlmCallError,
    error_of,
    excerpt,
    reason_of,
    redacted,
    retry_after_s,
)
from llmzero_ray.agents.llm.messages import LlmCall, LlmResponse, Usage
from llmzero_ray.agents.llm.messages_api import (
    check_model,
    parse_message,
    probe_body,
    reported_usage,
    request_body,
)
from llmzero_ray.agents.llm.openai_api import chat_request, message_of
from llmzero_ray.agents.llm.prices import FREE, probe_worst_case, worst_case
from llmzero_ray.agents.llm.providers import NEEDS, check_packages, sdk_client, sdk_module
from llmzero_ray.agents.llm.settings import LlmSettings, is_same_server
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.utils.api_key import CUSTOM_HEADERS_ENV
from llmzero_ray.utils.text import number

logger = logging.getLogger(__name__)

T = TypeVar("T")
_Work: TypeAlias = Callable[["_Attempts", Any], Coroutine[Any, Any, T]]
"""Coroutine function of (attempts of the call, SDK client)."""

GRACE_S = 0.25
"""Seconds past the deadline that a caller waits for its thread, which may be too busy to meet it."""
_LEAST_S = 0.1
_CONNECT_S = 10.0
_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds between attempts at an OpenAI-style server, unless it says how long to wait."""
_MAX_RETRIES = 1_000
"""Retries of the SDK: more than any deadline allows, so that only the deadline ends them."""
_PASSING = OUTAGE_KINDS - {"deadline"}
"""Errors that the SDK retries: 408, 409, 429, 5xx and broken connections."""
_REFUSALS = (400, 404, 422)
"""Statuses with which servers refuse part of a request. OpenRouter sends 404 if no server takes it."""
# These failed before the request left, so that nothing can have been billed.
_UNSENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError"})
_KEY_HEADERS = ("authorization", "x-api-key")
_PUBLIC_HEADERS = {"host", "connection", "accept", "accept-encoding", "content-type", "content-length"}
_PUBLIC_HEADERS |= {"transfer-encoding", "anthropic-version", "anthropic-beta"}
"""Headers that a request to the API needs, in addition to the SDK's own `x-stainless-...`."""
# Fields that every version of the SDK takes by name. Others differ between versions (temperature went, effort
# came), while the server decides by model what it accepts.
_NAMED = frozenset({"model", "max_tokens", "messages", "system", "tools", "tool_choice"})


class MessagesClient:
    """Client that calls one model. Thread-safe, with any number of concurrent calls, and picklable."""

    def __init__(self, settings: LlmSettings) -> None:
        check_packages(settings)
        self.settings = settings
        self._can: Capabilities | None = None
        """Capabilities of the model, or None if its server has not been asked yet."""
        self._running: set[CallThread[Any]] = set()

    def call(self, call: LlmCall, budget: CallBudget) -> LlmResponse:
        """Response to the call. Blocks this thread for at most the deadline and `GRACE_S`, so it must not run
        on an event loop's thread.

        Raises:
            CapReachedError: `budget` did not allow an attempt; it was not sent.
            LlmCallError: no usable response; `kind` says why.
        """
        deadline_s = self.settings.deadline_s if call.deadline_s is None else call.deadline_s

        async def work(attempts: _Attempts, sdk: Any) -> LlmResponse:
            return await self._send(call, attempts, sdk)

        return self._run(work, budget, deadline_s)

    def check(self, *, image: bytes | None = None, budget: BudgetClient | None = None) -> Usage:
        """Query the server for its model, to detect a wrong key, base_url or model before a search starts.

        Blocks like `call`, under `check_deadline_s`. With `image` (a small PNG), also check whether the model
        accepts images. A server without a models endpoint gets a message of one token instead, paid from
        `budget` as agent `check`.

        Returns its usage, which is zero if the endpoint exists.

        Raises:
            CapReachedError: `budget` does not allow the message; it was not sent.
            LlmCallError: the check failed; `kind` says why.
        """
        sdk_module(self.settings)  # importing it takes seconds, which should not count against the deadline

        async def work(attempts: _Attempts, sdk: Any) -> Usage:
            return await self._check_model(image, attempts, sdk, paid)

        free = BudgetLedger(FREE)
        paid = CallBudget(budget or free, "check", 0, probe_worst_case(image))
        usage: Usage | None = None
        outcome, started = "interrupted", time.monotonic()
        try:
            usage = self._run(work, CallBudget(free, "check", 0, Usage()), self.settings.check_deadline_s)
            outcome = "ok"
        except LlmCallError as error:
            usage, outcome = error.usage, error.kind
            raise
        finally:
            paid.finish(usage=usage, latency_s=time.monotonic() - started, outcome=outcome)
        return usage

    def worst_case(self, call: LlmCall) -> Usage:
        """Upper bound of the tokens of one attempt at `call`."""
        return worst_case(call, self.settings if self._can is None else self._can.applied_to(self.settings))

    def warm_up(self) -> None:
        """Import the SDK in the background, so that the first call does not wait for it."""
        threading.Thread(target=sdk_module, args=(self.settings,), daemon=True).start()

    def close(self) -> None:
        """Cancel the calls in flight. Later calls still work."""
        for thread in tuple(self._running):
            thread.cancel()

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(MessagesClient(state["settings"]).__dict__)

    def __repr__(self) -> str:
        return f"MessagesClient({self.settings!r})"

    def _run(self, work: _Work[T], budget: CallBudget, deadline_s: float) -> T:
        attempts = _Attempts(self.settings, budget, deadline_s)
        thread = CallThread(attempts.outcome_of(work))
        self._running.add(thread)
        outcome: T | LlmzeroError
        try:
            outcome = thread.result(deadline_s + GRACE_S)
        except TimeoutError:
            outcome = attempts.described(attempts.late())
        except concurrent.futures.CancelledError:
            outcome = attempts.described(LlmCallError("The client was closed while it waited for an answer."))
        finally:
            self._running.discard(thread)
        if isinstance(outcome, LlmzeroError):
            raise outcome
        return outcome

    async def _send(self, call: LlmCall, attempts: _Attempts, sdk: Any) -> LlmResponse:
        errors = sdk_module(self.settings)
        can = self._can or await self._ask_capabilities(attempts, sdk)
        attempts.budget.reserve()
        while True:
            body = request_body(call, self.settings, can.limited_to(attempts.budget.affordable_output))
            try:
                content = await attempts.create(sdk, body, newest_limit=can.newest_limit)
                break
            except errors.APIStatusError as refusal:
                reason = reason_of(refusal.response.content)
                less = can.without_refused(self.settings, body, reason)
                if refusal.status_code not in _REFUSALS or less is None:
                    raise
                logger.info("model=%s: left out from now on: %s", self.settings.model, excerpt(reason))
                self._can = can = less
        others = [tool.name for tool in call.others]
        try:
            reply = parse_message(content, tool=call.tool.name, max_tokens=body["max_tokens"], others=others)
        except LlmCallError as error:
            if "tools" not in body and error.kind == "no_tool_call":  # the next try uses a tool
                self._can = replace(can, structured_outputs=None)
            raise
        return LlmResponse(
            input=reply.input,
            stop_reason=reply.stop_reason,
            usage=reply.usage,
            latency_s=attempts.elapsed_s(),
            n_attempts=attempts.budget.n_attempts,
            model=reply.model,
            request_id=attempts.request_id,
            content=reply.content,
            tool=reply.tool if others else "",
        )

    async def _ask_capabilities(self, attempts: _Attempts, sdk: Any) -> Capabilities:
        """Capabilities from Anthropic's models endpoint; no other provider states them. If it cannot be
        reached, this call assumes none, and the next call asks again."""
        if self.settings.provider != "anthropic":
            self._can = Capabilities()
            return self._can
        import anthropic

        paid = attempts.budget
        attempts.start_over(CallBudget(BudgetLedger(FREE), "check", 0, Usage()))
        limit_s = min(self.settings.check_deadline_s, attempts.left_s() / 4)
        try:
            async with asyncio.timeout(limit_s):
                models = sdk.with_options(max_retries=0).models.with_raw_response
                response = await models.retrieve(self.settings.model)
            found = stated_capabilities(attempts.content(response.http_response)) or Capabilities()
        except (TimeoutError, anthropic.APIError, LlmCallError) as failure:
            logger.info("model=%s: its capabilities are not known: %s", self.settings.model, type(failure))
            found = Capabilities()
            if getattr(failure, "status_code", None) not in (404, 405):
                return found
        finally:
            attempts.start_over(paid)
        self._can = found
        return found

    async def _check_model(
        self, image: bytes | None, attempts: _Attempts, sdk: Any, paid: CallBudget
    ) -> Usage:
        errors = sdk_module(self.settings)
        try:
            if self.settings.lists_models and await attempts.finds_model(sdk, image is not None):
                return Usage()
        except errors.APIStatusError as failure:
            if self.settings.base_url is None or failure.status_code not in (404, 405):
                raise
        attempts.budget = paid
        return reported_usage(await attempts.create(sdk, probe_body(self.settings, image)))


class FallbackClient:
    """Client that gives the first model half of the deadline. If that one is unavailable, the second model
    gets the rest."""

    def __init__(self, first: MessagesClient, second: MessagesClient) -> None:
        self._first, self._second = first, second

    def call(self, call: LlmCall, budget: CallBudget) -> LlmResponse:
        """Response of either model. Raises what `MessagesClient.call` raises."""
        limit_s = self._first.settings.deadline_s if call.deadline_s is None else call.deadline_s
        until = time.monotonic() + limit_s
        try:
            return self._first.call(replace(call, deadline_s=limit_s / 2), budget)
        except LlmCallError as error:
            if error.kind not in OUTAGE_KINDS:
                raise
            failure = error
        model = self._second.settings.model
        logger.warning("model=%s is asked instead: %s", model, failure)
        rest = budget.hand_over(failure, model, self._second.worst_case(call))
        return self._second.call(replace(call, deadline_s=max(until - time.monotonic(), _LEAST_S)), rest)

    def worst_case(self, call: LlmCall) -> Usage:
        """Upper bound of the tokens of one attempt of the first model."""
        return self._first.worst_case(call)


class _Attempts:
    """Attempts of one call: a middleware that the SDK runs for each attempt."""

    def __init__(self, settings: LlmSettings, budget: CallBudget, deadline_s: float) -> None:
        self.budget = budget
        self.request_id: str | None = None
        self._settings, self._deadline_s = settings, deadline_s
        self._started = time.monotonic()
        self._key: str | None = None
        self._failure: LlmCallError | None = None
        """Failure of the last attempt. None before the first failure, or during an attempt."""
        self._last = ""
        self._server = settings.url
        """Address of the server that the key is meant for."""

    def elapsed_s(self) -> float:
        """Seconds since the call began."""
        return time.monotonic() - self._started

    def left_s(self) -> float:
        """Seconds until the deadline, negative after it."""
        return self._deadline_s - self.elapsed_s()

    def start_over(self, budget: CallBudget) -> None:
        """Continue with another request, paid from `budget`."""
        self.budget, self.request_id, self._failure, self._last = budget, None, None, ""

    async def outcome_of(self, work: _Work[T]) -> T | LlmzeroError:
        """Result of `work`, or its failure as a value, so that no traceback holds the key."""
        try:
            # The SDK limits the time of each attempt, but not of all attempts and waits together.
            async with asyncio.timeout(self.left_s()):
                return await self._connected(work)
        except TimeoutError:
            return self.described(self._gave_up(self._failure) if self._failure else self.late())
        except LlmzeroError as failure:
            return self.described(failure)
        except Exception as failure:  # noqa: BLE001 - its text or traceback may hold the key
            if self._failure is not None:
                return self.described(self._failure)
            what = excerpt(f"{type(failure).__name__}: {failure}", self._key)
            cure = NEEDS.get(self._settings.provider, "")
            text = f"The call could not be made: {what} {cure}".rstrip()
            return self.described(LlmCallError(text, kind="bad_request"))

    async def create(self, sdk: Any, body: dict[str, Any], *, newest_limit: bool = True) -> bytes:
        """Response of the model, as a body of `POST /v1/messages`."""
        if self._settings.provider == "openai":
            chat = chat_request(body, newest_limit=newest_limit)
            named = {name: chat.pop(name) for name in ("model", "messages")}
            completions = sdk.chat.completions.with_raw_response
            return message_of(await self._tried(lambda: completions.create(**named, extra_body=chat)))
        named = {name: value for name, value in body.items() if name in _NAMED}
        extra = {name: value for name, value in body.items() if name not in _NAMED}
        response = await sdk.messages.with_raw_response.create(**named, extra_body=extra)
        return self.content(response.http_response)

    async def finds_model(self, sdk: Any, images: bool) -> bool:
        """Whether the models endpoint knows the model. False if another endpoint answers."""
        model, models = self._settings.model, sdk.models.with_raw_response
        if self._settings.provider == "openai":
            return b'"model"' in await self._tried(lambda: models.retrieve(model))
        response = await models.retrieve(model)
        return check_model(self.content(response.http_response), self._settings, images)

    async def _tried(self, send: Callable[[], Awaitable[Any]]) -> bytes:
        """Body of a response through OpenAI's SDK. It has no middleware, so its retries are off and this
        method retries."""
        import openai

        async def once(_: Any) -> Any:
            try:
                return await send()
            except openai.APIStatusError as refusal:
                return refusal

        for pause_s in itertools.chain(_PAUSES_S, itertools.repeat(_PAUSES_S[-1])):
            with contextlib.suppress(openai.APIConnectionError):
                response = await self._attempt(None, once)
                if not isinstance(response, openai.APIStatusError):
                    return self.content(response.http_response)
                if self._failure is None or self._failure.kind not in _PASSING:
                    raise response
                pause_s = retry_after_s(response.response.headers.get("retry-after")) or pause_s
            await asyncio.sleep(pause_s)
        raise AssertionError("the pauses never end")

    def content(self, response: Any) -> bytes:
        """Body of a response, without the key."""
        body: bytes = response.content
        return body.replace(self._key.encode(), b"[key]") if self._key else body

    def late(self) -> LlmCallError:
        """Error of a call whose deadline has passed."""
        n_attempts = self.budget.n_attempts
        last = f"; last: {self._last}" if self._last else ""
        tries = f" ({n_attempts} attempts{last})" if n_attempts else ""
        return LlmCallError(f"No answer within {number(self._deadline_s)} s{tries}.", kind="deadline")

    def described(self, error: LlmzeroError) -> LlmzeroError:
        """The error with details of the call, without the frames that raised it."""
        error.__traceback__ = error.__context__ = error.__cause__ = None
        if isinstance(error, LlmCallError):
            error.n_attempts = self.budget.n_attempts
            error.latency_s = self.elapsed_s()
            error.request_id = error.request_id or self.request_id
        return error

    async def _connected(self, work: _Work[T]) -> T:
        import anthropic

        from llmzero_ray.agents.llm.body_limit import limit_body

        self._key = read_key(self._settings)
        own_headers = {"accept-encoding": "identity"}
        if self._key and self._settings.base_url is not None and self._settings.provider == "anthropic":
            # vLLM reads the key from the first header, other servers from the second. The SDK would send only
            # the first.
            own_headers |= dict(zip(_KEY_HEADERS, (f"Bearer {self._key}", self._key), strict=True))
        if not self._settings.takes_environment_key or self._settings.provider != "anthropic":
            os.environ.pop(CUSTOM_HEADERS_ENV, None)  # the SDK would send them to any server
        # Longer than the deadline, so that a timeout is always reported as a missed deadline.
        read_s = max(self.left_s(), 0.0) + 5.0
        timeout = anthropic.Timeout(read_s, connect=min(_CONNECT_S, read_s))
        speaks_messages = self._settings.provider != "openai"
        own: dict[str, Any] = {"max_retries": 0}
        if speaks_messages:
            own = {"max_retries": _MAX_RETRIES, "middleware": [self._attempt]}
        async with sdk_client(
            self._settings,
            self._key,
            timeout=timeout,
            default_headers=own_headers,
            http_client=anthropic.DefaultAsyncHttpxClient(
                timeout=timeout,
                event_hooks={"request": [self._withhold], "response": [limit_body]},
                mounts=self._direct_routes(),
            ),
            **own,
        ) as sdk:
            self._server = str(sdk.base_url)
            return await work(self, sdk)

    def _direct_routes(self) -> dict[str, None]:
        """Addresses for which the environment's proxy is not used: a server on this machine."""
        if not self._settings.is_on_this_machine:
            return {}
        host = urllib.parse.urlsplit(self._settings.url).hostname or ""
        return {f"all://[{host}]" if ":" in host else f"all://{host}": None}

    async def _withhold(self, request: Any) -> None:
        """Request hook: removes the key and the user's headers if a redirect leads to another server."""
        if not is_same_server(str(request.url), self._server):
            for name in list(request.headers):
                if name not in _PUBLIC_HEADERS and not name.startswith("x-stainless-"):
                    del request.headers[name]

    async def _attempt(self, request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        """One attempt, reserved before it is sent. The SDK decides whether another one follows."""
        connection_error = sdk_module(self._settings).APIConnectionError
        self.budget.begin_attempt()  # may block: no other call uses this event loop
        self._failure = None
        try:
            response = await call_next(request)
        except connection_error as failure:
            cause = failure.__cause__ or failure
            if type(cause).__name__ in _UNSENT:
                self.budget.attempt_not_billed()
            else:
                self.budget.attempt_lost()
            if isinstance(cause, LlmCallError):
                raise cause from None
            what = excerpt(": ".join(filter(None, (type(cause).__name__, str(cause)))), self._key)
            self._failed(LlmCallError(f"No answer from {self._settings.url} ({what})."), tried_again=True)
            raise
        # OpenAI's SDK returns a refusal as an error that holds the response.
        http = getattr(response, "http_response", None) or response.response
        self.request_id = redacted(http.headers.get("request-id") or "", self._key) or None
        if not http.is_success:
            self.budget.attempt_not_billed()
            refusal = error_of(http.status_code, http.content, self._settings, self._key)
            tried_again = refusal.kind in _PASSING
            self._failed(refusal, tried_again=tried_again)
            # The SDK would wait as long as the server asks, even past the deadline.
            asked_s = retry_after_s(http.headers.get("retry-after"))
            if tried_again and asked_s is not None and asked_s >= self.left_s():
                raise self._gave_up(refusal, f"the server asked to wait {asked_s:.0f} s and ")
        return response

    def _failed(self, failure: LlmCallError, *, tried_again: bool) -> None:
        self._failure, self._last = failure, str(failure)
        if tried_again:
            logger.warning("attempt %d failed: %s", self.budget.n_attempts, failure)

    def _gave_up(self, failure: LlmCallError, why: str = "") -> LlmCallError:
        return LlmCallError(
            f"{failure} Gave up after {self.budget.n_attempts} attempts in {self.elapsed_s():.1f} s: {why}"
            f"{max(self.left_s(), 0):.1f} s were left.",
            kind=failure.kind,
        )
