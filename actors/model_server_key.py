"""Middleware for vLLM's HTTP server that requires the key on every path.

vLLM's own option `--api-key` leaves many paths open, including some that generate text. vLLM loads this
module by name, in a process that imports nothing else of this project.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, Final, TypeAlias

SERVER_KEY_FILE_ENV: Final = "LLMZERO_SERVER_KEY_FILE"
"""Environment variable of the server that names the file with the key."""

_Message: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[_Message]]
_Send: TypeAlias = Callable[[_Message], Awaitable[None]]


class RequireKey:
    """ASGI middleware: a request without the key (`authorization: Bearer` or `x-api-key`) gets a 401."""

    def __init__(self, app: Callable[[_Message, _Receive, _Send], Awaitable[None]]) -> None:
        self._app = app
        self._key = Path(os.environ[SERVER_KEY_FILE_ENV]).read_bytes().strip()

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Pass on requests that have the key, and the server's lifespan messages. Refuse all others."""
        if scope["type"] == "lifespan" or self._has_key(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            body = b'{"error": {"message": "the key of this server is missing or wrong"}}'
            await send({"type": "http.response.body", "body": body})

    def _has_key(self, scope: _Message) -> bool:
        given = {name.lower(): value for name, value in scope["headers"]}
        scheme, _, token = given.get(b"authorization", b"").partition(b" ")
        offered = (token.strip() if scheme.lower() == b"bearer" else b"", given.get(b"x-api-key", b""))
        return any(hmac.compare_digest(one, self._key) for one in offered)
