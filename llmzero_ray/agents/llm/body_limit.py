"""Size limit for response bodies, so that no server can fill the memory of this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2

from llmzero_ray.agents.llm.errors import LlmCallError
from llmzero_ray.utils.text import one_line

_MAX_BYTES = 16 * 1024**2
"""Maximum bytes of a body. A usual response has a few kilobytes."""
_MAX_COMPRESSED = {"identity": _MAX_BYTES, "gzip": 64 * 1024, "deflate": 64 * 1024}
"""Content-encoding -> maximum bytes of a body on the wire. Requests ask for no compression. Gzip and deflate
can expand a thousandfold; other encodings, and bodies compressed twice, are rejected."""


async def limit_body(response: httpx2.Response) -> None:
    """Response hook of an HTTP client that limits the size of bodies.

    Raises:
        LlmCallError: kind malformed, while a body that is too long is read.
    """
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _LimitedStream(response.stream, _MAX_COMPRESSED.get(encoding, 0), encoding)


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, limit: int, encoding: str) -> None:
        self._stream, self._limit = stream, limit
        self._what = "" if encoding == "identity" else f" with content-encoding {one_line(encoding, 40)}"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        n_bytes = 0
        async for chunk in self._stream:
            n_bytes += len(chunk)
            if n_bytes > self._limit:
                raise LlmCallError(
                    f"The server's answer{self._what} is longer than {self._limit} bytes. Does "
                    "agents.base_url lead to a server of the Messages API?",
                    kind="malformed",
                )
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
