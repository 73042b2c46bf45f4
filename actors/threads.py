"""Thread pools for blocking calls, one per purpose.

asyncio's default pool has few threads (CPUs + 4, at most 32). Many slots lost at once, or many adapter
checks, would fill it and delay the journal. Work that must never wait therefore has a pool of its own.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """Pool of at most `most` threads, which start on demand. `purpose` is the prefix of their names."""

    def __init__(self, purpose: str, most: int = 1) -> None:
        self._pool = ThreadPoolExecutor(most, thread_name_prefix=purpose)

    async def run(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Result of a blocking call. With one thread, calls run in order."""
        call = functools.partial(function, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)
