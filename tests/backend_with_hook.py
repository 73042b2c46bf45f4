"""The scripted engine as a backend whose loading runs what a test wants to happen at that moment.

`engine.backend: tests.backend_with_hook:make_engine`. A command loads the backend after it has looked who
is at work on the search and before it prepares the directory: then another process may take the search.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests import fakes

ON_LOADING: list[Callable[[], None]] = []
"""Called once each, in the process that loads the backend."""


def __getattr__(name: str) -> Any:
    if name != "make_engine":
        raise AttributeError(name)
    while ON_LOADING:
        ON_LOADING.pop()()
    return fakes.make_engine
