"""Threads for blocking calls, by purpose.

asyncio's default pool has few threads (CPUs + 4, at most 32), and calls wait in it for each other: many slots
that are lost at once, or many adapters that are checked, would hold up the journal. What must go on at any
time has threads of its own. Not here: calls of agents (agent_calls.py).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """At most `most` threads of one purpose; they start when they are needed."""

    def __init__(self, purpose: str, most: int = 1) -> None:
        self._pool = ThreadPoolExecutor(most, thread_name_prefix=purpose)

    async def run(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Result of a blocking call; with one thread, calls go in the order in which they were made."""
        call = functools.partial(function, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)
