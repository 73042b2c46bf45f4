"""A limit for the bodies of responses, so that no server can fill the memory of this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2

from llmzero_ray.agents.llm.errors import LlmCallError

_MAX_BYTES, _MAX_COMPRESSED_BYTES = 16 * 1024**2, 256 * 1024
"""A response is a few kilobytes. Compressed bodies are not requested; one may grow a thousandfold."""


async def limit_body(response: httpx2.Response) -> None:
    """Response hook of an HTTP client: a longer body raises while it is read.

    Raises:
        LlmCallError: from the reading, kind malformed.
    """
    plain = response.headers.get("content-encoding", "identity") == "identity"
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _LimitedStream(response.stream, _MAX_BYTES if plain else _MAX_COMPRESSED_BYTES)


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, limit: int) -> None:
        self._stream, self._limit = stream, limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        n_bytes = 0
        async for chunk in self._stream:
            n_bytes += len(chunk)
            if n_bytes > self._limit:
                raise LlmCallError(
                    f"The server's answer is longer than {self._limit} bytes. Does agents.base_url lead to a "
                    "server of the Messages API?",
                    kind="malformed",
                )
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
