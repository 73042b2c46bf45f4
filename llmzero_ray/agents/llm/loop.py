"""An event loop in a thread of its own, so that no caller's loop ever waits for a language model.

Started at the first use, a daemon, never pickled. A caller gets its result or its time-out even when the loop
itself is stuck.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines elsewhere. Safe to use from any thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine; the future's `cancel` cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._running())

    def close(self) -> None:
        """End the thread once what it is doing yields; a later `submit` starts a new one."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and self._pid == os.getpid():
            loop.call_soon_threadsafe(loop.stop)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            # A forked child has the object but not the thread.
            if self._loop is None or self._pid != os.getpid():
                loop = asyncio.new_event_loop()
                threading.Thread(target=_serve, args=(loop,), name=self._name, daemon=True).start()
                self._loop, self._pid = loop, os.getpid()
            return self._loop

    def __reduce__(self) -> tuple[type[LoopThread], tuple[str]]:
        return LoopThread, (self._name,)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """The thread's body: runs the loop until it is stopped, then ends what is left on it."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    finally:
        loop.close()
