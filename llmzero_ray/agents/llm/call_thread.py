"""Runs a coroutine in a thread of its own with an event loop of its own.

The caller's event loop never waits for a language model, and the caller's timeout holds even if the coroutine
blocks its loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class CallThread(Generic[T]):
    """Daemon thread that runs one coroutine."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._result: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(work)
        threading.Thread(target=self._run, name="llmzero-llm", daemon=True).start()

    def result(self, timeout_s: float) -> T:
        """Result of the coroutine; blocks.

        Raises:
            TimeoutError: it has not returned in time; it is cancelled.
            concurrent.futures.CancelledError: `cancel` was called.
        """
        try:
            return self._result.result(timeout_s)
        except TimeoutError:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Cancel the coroutine, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the coroutine has ended
            self._loop.call_soon_threadsafe(self._task.cancel)

    def _run(self) -> None:
        try:
            self._result.set_result(self._loop.run_until_complete(self._task))
        except asyncio.CancelledError:
            self._result.cancel()
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._result.set_exception(error)
        finally:
            # Threads that resolve names may hang; `close` does not wait for them.
            self._loop.close()
