"""The client of the Messages API: one question, one answer through a tool, within one deadline.

Everything happens on an event loop in a thread of its own, so that neither an actor's loop nor a stuck
connection holds a caller longer than its deadline. The SDK's retries are off; ours know the deadline. The key
is read for each call and lives only in that call's frames: errors leave them as values, without traceback.
Not here: what is asked (prompts), what it costs (ledger.py, metered.py).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib.util
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from llmzero_ray.agents.llm.call import LlmAnswer, LlmCall, Usage
from llmzero_ray.agents.llm.errors import LlmCallError, shown
from llmzero_ray.agents.llm.estimate import worst_case
from llmzero_ray.agents.llm.exchange import Exchange, Response
from llmzero_ray.agents.llm.key import read_key
from llmzero_ray.agents.llm.loop import LoopThread
from llmzero_ray.agents.llm.reply import check_model, parse_reply, reported_usage
from llmzero_ray.agents.llm.request import probe_body, request_body
from llmzero_ray.agents.llm.retry import HttpFailure, error_of, refuses_forced_tool
from llmzero_ray.agents.llm.settings import LlmSettings
from llmzero_ray.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

logger = logging.getLogger(__name__)

T = TypeVar("T")
_Work: TypeAlias = Callable[[Exchange, Any], Coroutine[Any, Any, T]]

GRACE_S = 0.25
"""How long past the deadline a caller waits for a loop that is too busy to keep it."""


class MessagesClient:
    """Asks one model, from any thread or event loop, any number of calls at once; picklable."""

    def __init__(self, settings: LlmSettings) -> None:
        if importlib.util.find_spec("anthropic") is None:
            raise ConfigError(
                "Agents that ask a language model need the anthropic package; install llmzero-ray[claude], "
                "or choose agents.backend: expert."
            )
        self.settings = settings
        self._force_tool = True
        self._loop = LoopThread("llmzero-llm")

    def call(self, call: LlmCall) -> LlmAnswer:
        """The answer; blocks this thread at most the deadline and `GRACE_S`. Not for an event loop's thread.

        Raises:
            LlmCallError: no usable answer; `kind` says why.
        """
        return self._wait(self._ask, call, self._deadline_s(call))

    async def ask(self, call: LlmCall) -> LlmAnswer:
        """`call` for coroutines: the work is done on the client's own loop, not on the caller's.

        Raises:
            LlmCallError: no usable answer; `kind` says why.
        """
        deadline_s = self._deadline_s(call)
        until = time.monotonic() + deadline_s
        work = self._loop.submit(self._guarded(self._ask, call, until, deadline_s))
        try:
            outcome = await asyncio.wait_for(asyncio.wrap_future(work), deadline_s + GRACE_S)
        except TimeoutError:
            outcome = _late(deadline_s)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            outcome = _closed()
        return _result(outcome)

    def check(self, *, image: bytes | None = None) -> Usage:
        """Ask the server for its model, to find a wrong key, base_url or model before anything is reserved.

        Blocks like `call`, under `check_deadline_s`. With `image` (a small PNG) also whether the model takes
        images. A server without an endpoint for models gets a message of one token instead.

        Returns what that cost: no tokens where the endpoint exists.

        Raises:
            LlmCallError: what is wrong.
        """
        return self._wait(self._look, image, self.settings.check_deadline_s)

    def worst_case(self, call: LlmCall) -> Usage:
        """Upper bound of what `call` can cost."""
        return worst_case(call, self.settings)

    def warm_up(self) -> None:
        """Load what calls need in the background: the first one comes when seconds count."""
        threading.Thread(target=_sdk, name="anthropic-import", daemon=True).start()

    def close(self) -> None:
        """Give up the calls under way and end the thread; a later call starts it again."""
        self._loop.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(MessagesClient(state["settings"]).__dict__)

    def __repr__(self) -> str:
        return f"MessagesClient({self.settings!r})"

    def _deadline_s(self, call: LlmCall) -> float:
        return self.settings.deadline_s if call.deadline_s is None else call.deadline_s

    def _wait(self, work: _Work[T], argument: Any, deadline_s: float) -> T:
        until = time.monotonic() + deadline_s
        future = self._loop.submit(self._guarded(work, argument, until, deadline_s))
        try:
            outcome = future.result(timeout=deadline_s + GRACE_S)
        except TimeoutError:
            future.cancel()
            outcome = _late(deadline_s)
        except concurrent.futures.CancelledError:
            outcome = _closed()
        return _result(outcome)

    async def _guarded(
        self, work: _Work[T], argument: Any, until: float, deadline_s: float
    ) -> T | LlmCallError:
        """The result of `work`, or any failure of it as a value: nothing that saw the key is raised here."""
        exchange = Exchange(self.settings, until)
        error: LlmCallError
        try:
            async with asyncio.timeout(until - time.monotonic()):
                exchange.key = await asyncio.to_thread(read_key, self.settings)
                sdk = await asyncio.to_thread(_sdk)
                async with exchange.opened(sdk):
                    return await work(exchange, argument)
        except LlmCallError as failure:
            error = failure
        except TimeoutError:
            error = _late(deadline_s, exchange.n_attempts, exchange.last)
            exchange.maybe_billed |= exchange.in_flight
        except Exception as failure:  # noqa: BLE001 - its text or traceback may hold the key
            what = shown(f"{type(failure).__name__}: {failure}", exchange.key)
            error = LlmCallError(f"The call could not be made: {what}", kind="bad_request")
        error.__traceback__ = error.__context__ = error.__cause__ = None
        error.maybe_billed = error.usage is None and (exchange.maybe_billed or error.kind == "malformed")
        error.n_attempts = exchange.n_attempts
        error.latency_s = exchange.elapsed_s()
        error.request_id = error.request_id or exchange.request_id
        return error

    async def _ask(self, exchange: Exchange, call: LlmCall) -> LlmAnswer:
        forced = self._force_tool
        body = request_body(call, self.settings, force_tool=forced)
        response = await exchange.persist(exchange.create(body))
        if isinstance(response, HttpFailure) and forced and refuses_forced_tool(response):
            logger.info("model=%s takes no forced tool; its own choice from now on", self.settings.model)
            self._force_tool = False
            body = request_body(call, self.settings, force_tool=False)
            response = await exchange.persist(exchange.create(body))
        if isinstance(response, HttpFailure):
            raise error_of(response, self.settings, exchange.key)
        reply = parse_reply(response.body, tool=call.tool.name, max_tokens=body["max_tokens"])
        return LlmAnswer(
            input=reply.input,
            stop_reason=reply.stop_reason,
            usage=reply.usage,
            latency_s=exchange.elapsed_s(),
            n_attempts=exchange.n_attempts,
            model=reply.model,
            request_id=response.request_id,
        )

    async def _look(self, exchange: Exchange, image: bytes | None) -> Usage:
        response = await exchange.persist(exchange.retrieve())
        own_server = self.settings.base_url is not None
        if isinstance(response, Response) and check_model(response.body, self.settings, image is not None):
            return Usage()
        if isinstance(response, HttpFailure) and not (own_server and response.status in (404, 405, 501)):
            raise error_of(response, self.settings, exchange.key)
        response = await exchange.persist(exchange.create(probe_body(self.settings, image)))
        if isinstance(response, HttpFailure):
            raise error_of(response, self.settings, exchange.key)
        return reported_usage(response.body)


def _sdk() -> ModuleType:
    import anthropic

    return anthropic


def _late(deadline_s: float, n_attempts: int = 0, last: str = "") -> LlmCallError:
    tries = f" ({n_attempts} attempts{'; last: ' + last if last else ''})" if n_attempts else ""
    error = LlmCallError(f"No answer within {deadline_s:g} s{tries}.", kind="deadline")
    error.latency_s, error.maybe_billed = deadline_s, True
    return error


def _closed() -> LlmCallError:
    error = LlmCallError("The client was closed while it waited for an answer.")
    error.maybe_billed = True
    return error


def _result(outcome: T | LlmCallError) -> T:
    if isinstance(outcome, LlmCallError):
        raise outcome
    return outcome
