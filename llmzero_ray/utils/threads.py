"""Calls that may never return, for example because a storage or a cluster hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Call `work` in a daemon thread. Returns a future: its `result(limit_s)` raises TimeoutError after the
    limit and leaves the thread running."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is taken
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer
