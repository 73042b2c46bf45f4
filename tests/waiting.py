"""Waits of tests: for an event, with an outer limit that holds on a machine many times overloaded.

Reaching the limit says that something is wrong. How long a thing takes is not a rule here, and no test
compares seconds with what an idle machine needs.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 400.0
"""Outer limit of one wait (seconds): many times what anything that is waited for takes on an idle machine.
Real VeRL and vLLM, which start for minutes on a busy one, get more where they are waited for."""


def wait_until(
    happened: Callable[[], object],
    describe: Callable[[], object] = lambda: "",
    *,
    patience_s: float = PATIENCE_S,
    every_s: float = 0.05,
) -> None:
    """Return once `happened()` is true; it is asked every `every_s` seconds, less often if it takes long:
    what is waited for needs the processor, too.

    Raises:
        AssertionError: it was not true within `patience_s`; `describe()` says what was there instead.
    """
    deadline = time.monotonic() + patience_s
    while True:
        began = time.monotonic()
        if happened():
            return
        ended = time.monotonic()
        assert ended < deadline, f"not within {patience_s:g} s; {describe()}"
        time.sleep(max(every_s, min(4 * (ended - began), 0.5)))


def until_gone(left: Callable[[], list[Any]]) -> None:
    """Until nothing is left: the last processes and actors of a cluster need a moment to die."""
    wait_until(lambda: not left(), left, every_s=0.2)


@functools.cache
def wait_for_ray_nodes() -> None:
    """Let this process wait for a Ray node that it starts as for anything else: Ray gives a node 30 s."""
    from ray._private import services

    get_node = services.get_node

    def patient_get_node(*arguments: Any) -> Any:
        found: list[Any] = []

        def is_there() -> bool:
            with contextlib.suppress(RuntimeError):
                found.append(get_node(*arguments))
            return found != []

        wait_until(is_there)
        return found[0]

    services.get_node = patient_get_node
