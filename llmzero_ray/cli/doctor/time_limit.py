"""A call with a timeout, for work that may hang on a storage or a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(limit_s: float, work: Callable[[], T]) -> T:
    """Call `work` in a separate thread and return its result. The thread is abandoned after the timeout.

    Raises:
        TimeoutError: it has not ended within `limit_s` seconds.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again below, by the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="doctor", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]
