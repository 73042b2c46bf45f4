"""Calls that may never return, such as those of a hanging storage or cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Future result of `work`, called in a daemon thread: `result(limit_s)` raises TimeoutError after the
    limit and leaves the thread behind."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is taken
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer
