"""A server of the Messages API on loopback whose behaviour a test writes down, one reply per request.

It reads requests as documented (model, system, messages, tools, tool_choice, thinking), refuses what the API
refuses, counts tokens, simulates the prompt cache, and records everything. `script` is a list of replies (the
last one repeats) or a function of the request. Not here: streaming, which the project does not use.
"""

from __future__ import annotations

import email.utils
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

KEY = "sk-ant-test-5up3rs3cr3t-0123456789"
MODELS = ("claude-sonnet-5-5", "claude-sonnet-4-6", "claude-opus-5-5", "claude-haiku-4-5-20251001")
MIN_CACHED_TOKENS = 32
"""Shorter prefixes are not cached (the API's own limit is some hundred tokens)."""


@dataclass(frozen=True)
class Request:
    """One request as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Any
    """Parsed JSON; None for GET."""
    at: float
    """time.monotonic()."""

    @property
    def tool(self) -> str:
        """Name of the first tool offered, or of the one whose input is the format of the answer."""
        if "tools" in self.body:
            return str(self.body["tools"][0]["name"])
        return str(re.findall(r"the input of the tool (\w+),", self.system)[-1])

    @property
    def system(self) -> str:
        """The whole system prompt."""
        return "\n".join(block["text"] for block in self.body.get("system", []))

    @property
    def text(self) -> str:
        """All text of the user's turns, results of tools included."""
        blocks = [
            block for turn in self.body["messages"] if turn["role"] == "user" for block in turn["content"]
        ]
        return "\n".join(
            block["content"] if block["type"] == "tool_result" else block["text"]
            for block in blocks
            if block["type"] in ("text", "tool_result")
        )

    @property
    def n_images(self) -> int:
        """Pictures in the first of the user's turns."""
        return sum(block["type"] == "image" for block in self.body["messages"][0]["content"])


# --- replies: what a script holds -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A message. `input` (or a function of the request) fills the tool's input; `content` replaces all
    blocks, `body` the whole response."""

    input: Any = field(default_factory=dict)
    tool: str | None = None
    """Name of the tool called; None: the one that was offered."""
    content: Sequence[Mapping[str, Any]] | None = None
    stop_reason: str = "tool_use"
    stop_details: Mapping[str, Any] | None = None
    output_tokens: int = 40
    body: bytes | None = None
    truncated: bool = False
    """Close the connection in the middle of the body that was announced."""
    delay_s: float = 0.0
    drip_s: float = 0.0
    """Pause after each byte."""
    encoding: str | None = None
    """Content-encoding that `body` is said to have."""


@dataclass(frozen=True, kw_only=True)
class Fail:
    """An error in the documented shape."""

    status: int
    type: str = "api_error"
    message: str = "Something failed"
    retry_after: str | Callable[[], str] | None = None
    retry_after_ms: str | None = None
    """Milliseconds; SDKs prefer this header."""
    location: str | None = None
    """Of a redirect."""
    body: bytes | None = None
    """Replaces the documented shape."""


@dataclass(frozen=True)
class Hang:
    """Accept and never answer."""


@dataclass(frozen=True)
class Reset:
    """Break the connection without an answer."""


Reply: TypeAlias = Answer | Fail | Hang | Reset
Script: TypeAlias = Sequence[Reply] | Callable[[Request], Reply]


def rate_limited(retry_after: str | None = None) -> Fail:
    """429, with seconds or a date to wait for."""
    return Fail(status=429, type="rate_limit_error", message="Too many requests", retry_after=retry_after)


def overloaded(retry_after: str | None = None) -> Fail:
    """529, with seconds to wait for."""
    return Fail(status=529, type="overloaded_error", message="Overloaded", retry_after=retry_after)


def http_date(in_s: float) -> str:
    """An HTTP date so many seconds from now (whole seconds)."""
    return email.utils.formatdate(time.time() + in_s, usegmt=True)


# --- the server -----------------------------------------------------------------------------------------


class MessagesServer:
    """The server as a context manager; `base_url` is where it listens."""

    def __init__(
        self,
        script: Script = (Answer(),),
        *,
        key: str | None = KEY,
        models: Sequence[str] = MODELS,
        models_endpoint: bool = True,
        takes_images: bool = True,
        thinks_always: Sequence[str] = (),
    ) -> None:
        """`key` None: none is asked for. `thinks_always`: models that refuse a forced tool by themselves.

        By default the models endpoint states images alone; `offers` makes it state more.
        """
        self.script: Script = script
        self.key, self.models = key, tuple(models)
        self.models_endpoint, self.takes_images = models_endpoint, takes_images
        self.thinks_always = tuple(thinks_always)
        self.offered: dict[str, dict[str, Any]] = {}
        """Model -> fields of its description by the models endpoint."""
        self.models_failure: Fail | None = None
        """Failure of the models endpoint."""
        self.refused: dict[str, str] = {}
        """Field of a request (dotted) -> message with which the server refuses it, whatever it states."""
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        self._cached: set[str] = set()
        self._n_scripted = 0
        self.closing = threading.Event()
        self._http = _Server(("127.0.0.1", 0), self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def base_url(self) -> str:
        """Address without a path."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def messages(self) -> list[Request]:
        """The recorded `POST /v1/messages`."""
        with self._lock:
            return [request for request in self.requests if request.path == "/v1/messages"]

    def handler(self) -> type[Handler]:
        """Class that reads requests; a server of another protocol has its own."""
        return Handler

    def __enter__(self) -> MessagesServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()

    def offers(
        self,
        model: str,
        *,
        thinking: Sequence[str] = (),
        effort: Sequence[str] = (),
        structured_outputs: bool = False,
        max_tokens: int = 64_000,
    ) -> None:
        """State these capabilities of a model in the documented shape, and refuse all others."""

        def levels(names: Sequence[str], chosen: Sequence[str]) -> dict[str, Any]:
            return {name: {"supported": name in chosen} for name in names}

        types = levels(("adaptive", "between_tools", "disabled", "enabled"), thinking)
        self.offered[model] = {
            "max_tokens": max_tokens,
            "capabilities": {
                "thinking": {"supported": bool({"adaptive", "enabled"} & set(thinking)), "types": types},
                "effort": {
                    "supported": bool(effort),
                    **levels(("low", "medium", "high", "xhigh", "max"), effort),
                },
                "structured_outputs": {"supported": structured_outputs},
            },
        }

    def play(self, script: Script) -> None:
        """Go on with another script, from its beginning."""
        with self._lock:
            self.script, self._n_scripted = script, 0

    def reply_to(self, request: Request) -> Reply:
        """Record a request and find its reply: what the API would refuse first, then the script."""
        with self._lock:
            self.requests.append(request)
        refused = self._refusal(request)
        if refused is not None:
            return refused
        if callable(self.script):
            return self.script(request)
        with self._lock:
            place = min(self._n_scripted, len(self.script) - 1)
            self._n_scripted += 1
        return self.script[place]

    def usage(self, body: Mapping[str, Any], output_tokens: int) -> dict[str, int]:
        """Token counts: four bytes a token, an image 1,000; a marked prefix seen before is read from the
        cache, one not seen before is written to it."""
        prefix, rest = _split(body)
        cacheable = _tokens(prefix) if prefix is not None and _tokens(prefix) >= MIN_CACHED_TOKENS else 0
        with self._lock:
            hit = cacheable > 0 and prefix in self._cached
            if cacheable and prefix is not None:
                self._cached.add(prefix)
        images = sum(block["type"] == "image" for block in body["messages"][0]["content"])
        return {
            "input_tokens": _tokens(rest) + 1000 * images + (0 if cacheable else _tokens(prefix or "")),
            "cache_creation_input_tokens": 0 if hit else cacheable,
            "cache_read_input_tokens": cacheable if hit else 0,
            "output_tokens": output_tokens,
        }

    def _refusal(self, request: Request) -> Fail | None:
        """What the API answers before any model is asked."""
        headers = request.headers
        # SDKs send the key in either header, depending on their version.
        given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if self.key is not None and given != self.key:
            return Fail(status=401, type="authentication_error", message=f"invalid x-api-key {given}")
        if "anthropic-version" not in headers:
            return _invalid("anthropic-version: header is required")
        if request.path != "/v1/messages":
            return None
        body = request.body
        missing = [name for name in ("model", "max_tokens", "messages") if name not in body]
        if missing:
            return _invalid(f"{missing[0]}: Field required")
        if body["model"] not in self.models:
            return Fail(status=404, type="not_found_error", message=f"model: {body['model']}")
        thinking = body.get("thinking", {}).get("type")
        thinks = thinking in ("enabled", "adaptive") or body["model"] in self.thinks_always
        if thinks and body.get("tool_choice", {}).get("type") in ("tool", "any"):
            return _invalid("Thinking may not be enabled when tool_choice forces tool use.")
        if thinks and body.get("temperature", 1) != 1:
            return _invalid("`temperature` may only be set to 1 when thinking is enabled.")
        if thinking == "enabled" and body["thinking"]["budget_tokens"] >= body["max_tokens"]:
            return _invalid("`max_tokens` must be greater than `thinking.budget_tokens`.")
        if (lacking := self._lacking(body)) is not None:
            return _invalid(lacking)
        if request.n_images and not self.takes_images:
            return _invalid("This model does not support image inputs.")
        return None

    def _lacking(self, body: Mapping[str, Any]) -> str | None:
        """What a request asks of a model that does not offer it."""
        for path, message in self.refused.items():
            held: Any = body
            for part in path.split("."):
                held = held.get(part) if isinstance(held, dict) else None
            if held is not None:
                return message
        offered = self.offered.get(body["model"])
        if offered is None:
            return None
        can, output = offered["capabilities"], body.get("output_config", {})
        thinking, effort = body.get("thinking", {}).get("type"), output.get("effort")
        strict = "format" in output or any(tool.get("strict") for tool in body.get("tools", []))
        if thinking is not None and not can["thinking"]["types"][thinking]["supported"]:
            return f"thinking.type: {thinking!r} is not supported by this model"
        if effort is not None and not can["effort"][effort]["supported"]:
            return f"output_config.effort: {effort!r} is not supported by this model"
        if strict and not can["structured_outputs"]["supported"]:
            return "structured outputs are not supported by this model"
        if body["max_tokens"] > offered["max_tokens"]:
            return f"max_tokens: {body['max_tokens']} > {offered['max_tokens']}"
        return None


def _invalid(message: str) -> Fail:
    return Fail(status=400, type="invalid_request_error", message=message)


def _tokens(text: str) -> int:
    return len(text.encode()) // 4


def _split(body: Mapping[str, Any]) -> tuple[str | None, str]:
    """The prompt up to its last cache mark (None: no mark) and what follows. Tools stand before the system
    prompt; images are left out."""
    blocks = [*body.get("tools", []), *body.get("system", [])]
    marked = [place for place, block in enumerate(blocks) if block.get("cache_control")]
    end = marked[-1] + 1 if marked else 0
    user = [block.get("text", "") for block in body["messages"][0]["content"]]
    rest = json.dumps(blocks[end:]) + "".join(user)
    return (json.dumps([body["model"], blocks[:end]]) if marked else None), rest


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], messages: MessagesServer) -> None:
        self.messages = messages
        super().__init__(address, messages.handler())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self._handle(body)

    def do_GET(self) -> None:
        self._handle(None)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Quiet."""

    def _handle(self, body: Any) -> None:
        owner = self.server.messages
        headers = {name.lower(): value for name, value in self.headers.items()}
        path = self.path.partition("?")[0]
        request = Request(self.command, path, headers, body, time.monotonic())
        try:
            if path == "/v1/messages" and body is not None:
                self._carry_out(request, owner.reply_to(request))
            elif path.startswith("/v1/models/") and owner.models_endpoint:
                self._model(request, path.rpartition("/")[2])
            else:
                with owner._lock:
                    owner.requests.append(request)
                self._send(404, {"detail": "Not Found"})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _model(self, request: Request, name: str) -> None:
        owner = self.server.messages
        with owner._lock:
            owner.requests.append(request)
        refused = owner.models_failure or owner._refusal(request)
        if refused is not None:
            self._fail(refused)
        elif name not in owner.models:
            self._fail(Fail(status=404, type="not_found_error", message=f"model: {name}"))
        else:
            offered = owner.offered.get(name, {})
            capabilities = {
                **offered.get("capabilities", {}),
                "image_input": {"supported": owner.takes_images},
            }
            self._send(
                200,
                {
                    "type": "model",
                    "id": name,
                    "display_name": name,
                    "created_at": "2026-01-01T00:00:00Z",
                    "lifecycle": "active",
                    **offered,
                    "capabilities": capabilities,
                },
            )

    def _carry_out(self, request: Request, reply: Reply) -> None:
        owner = self.server.messages
        match reply:
            case Hang():
                owner.closing.wait()
                self.close_connection = True
            case Reset():
                # A linger time of zero makes the close a reset instead of an orderly end.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True
            case Fail():
                self._fail(reply)
            case Answer():
                owner.closing.wait(reply.delay_s)
                self._answer(request, reply)

    def _answer(self, request: Request, reply: Answer) -> None:
        owner = self.server.messages
        given = reply.input(request) if callable(reply.input) else reply.input
        content = reply.content
        if content is None and "tools" in request.body:
            tool = reply.tool or request.tool
            content = [{"type": "tool_use", "id": "toolu_01", "name": tool, "input": given}]
        elif content is None and "format" in request.body.get("output_config", {}):
            content = [{"type": "text", "text": json.dumps(given)}]
        message = {
            "id": "msg_01",
            "type": "message",
            "role": "assistant",
            "model": request.body["model"],
            "content": [{"type": "text", "text": "ok"}] if content is None else list(content),
            "stop_reason": reply.stop_reason,
            "stop_sequence": None,
            "stop_details": reply.stop_details,
            "usage": owner.usage(request.body, reply.output_tokens),
        }
        raw = json.dumps(message).encode() if reply.body is None else reply.body
        self._head(200, len(raw), {"content-encoding": reply.encoding})
        if reply.truncated:
            self.wfile.write(raw[: len(raw) // 2])
            self.close_connection = True
        elif reply.drip_s:
            for byte in raw:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                if owner.closing.wait(reply.drip_s):
                    self.close_connection = True
                    return
        else:
            self.wfile.write(raw)

    def _fail(self, reply: Fail) -> None:
        error = {"type": reply.type, "message": reply.message}
        shape = {"type": "error", "error": error, "request_id": "req_test"}
        raw = json.dumps(shape).encode() if reply.body is None else reply.body
        wait = reply.retry_after() if callable(reply.retry_after) else reply.retry_after
        more = {"retry-after": wait, "retry-after-ms": reply.retry_after_ms, "location": reply.location}
        self._head(reply.status, len(raw), more)
        self.wfile.write(raw)

    def _send(self, status: int, data: Any) -> None:
        raw = json.dumps(data).encode()
        self._head(status, len(raw), {})
        self.wfile.write(raw)

    def _head(self, status: int, length: int, more: Mapping[str, str | None]) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(length))
        self.send_header("request-id", "req_test")
        for name, value in more.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
