"""The scripted server in the protocols of other providers: Bedrock, Vertex AI, Foundry and OpenAI.

Each request must have its provider's path, form and credentials. It is then read as one of the Messages API,
so that the scripts of `MessagesServer` work for all; `raw` has what arrived.
"""

from __future__ import annotations

import json
import re
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

from tests.agents.llm.messages_server import KEY, Answer, Fail, Handler, MessagesServer, Request

TOKEN = "google-test-token-123"
STOPS = {"tool_use": "tool_calls", "end_turn": "stop", "max_tokens": "length", "refusal": "content_filter"}
PATHS = {
    "bedrock": r"/model/(?P<model>[^/]+)/invoke",
    "vertex": r"/v1/projects/my-project/locations/europe-west1/publishers/anthropic/models/"
    r"(?P<model>[^/]+):rawPredict",
    "foundry": r"/anthropic/v1/messages",
    "openai": r"/v1/chat/completions",
}


class ProviderServer(MessagesServer):
    """A `MessagesServer` that speaks the protocol of `provider`."""

    def __init__(self, provider: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.provider = provider
        self.raw: list[Request] = []
        """Requests as they arrived."""
        self.usage_fields: Mapping[str, Any] | None = {}
        """Fields that replace those of a reported usage; None: no usage is reported."""

    @property
    def url(self) -> str:
        """What `agents.base_url` must be."""
        paths = {"openai": "/v1", "vertex": "/v1", "foundry": "/anthropic", "bedrock": ""}
        return self.base_url + paths[self.provider]

    def handler(self) -> type[Handler]:
        return _ProviderHandler

    def is_allowed(self, request: Request) -> bool:
        """Whether the request carries the provider's credentials."""
        given = request.headers.get("authorization", "")
        return {
            "bedrock": given.startswith("AWS4-HMAC-SHA256 Credential=AKIATEST/") and "/bedrock/" in given,
            "vertex": given == f"Bearer {TOKEN}",
            "foundry": request.headers.get("x-api-key") == KEY == request.headers.get("api-key"),
            "openai": given == f"Bearer {KEY}",
        }[self.provider]


class _ProviderHandler(Handler):
    def _handle(self, body: Any) -> None:
        owner = self.server.messages
        assert isinstance(owner, ProviderServer)
        headers = {name.lower(): value for name, value in self.headers.items()}
        raw = Request(self.command, self.path.partition("?")[0], headers, body, time.monotonic())
        owner.raw.append(raw)
        found = re.fullmatch(PATHS[owner.provider], raw.path)
        if not owner.is_allowed(raw):
            self._send(401, {"error": {"message": "no credentials of this provider"}})
        elif body is None and owner.provider == "openai" and owner.models_endpoint:
            name = raw.path.rpartition("/")[2]
            known = name in owner.models
            self._send(
                200 if known else 404, {"id": name, "object": "model"} if known else _error("no such model")
            )
        elif found is None or body is None:
            self._send(404, _error("Not Found"))
        elif owner.provider in ("bedrock", "vertex") and ("anthropic_version" not in body or "model" in body):
            self._send(400, _error("anthropic_version: Field required"))
        else:
            body = _message_request(body) if owner.provider == "openai" else dict(body)
            if "model" in found.groupdict():
                body["model"] = urllib.parse.unquote(found["model"])
            headers |= {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
            request = Request("POST", "/v1/messages", headers, body, raw.at)
            self._carry_out(request, owner.reply_to(request))

    def _answer(self, request: Request, reply: Answer) -> None:
        owner = self.server.messages
        assert isinstance(owner, ProviderServer)
        if owner.provider != "openai" or reply.body is not None or reply.truncated:
            return super()._answer(request, reply)
        given = reply.input(request) if callable(reply.input) else reply.input
        said: dict[str, Any] = {"role": "assistant", "content": None}
        stop = reply.stop_reason
        if reply.content is not None:
            said["content"] = "".join(block["text"] for block in reply.content)
        elif "tools" in request.body:
            arguments = given if isinstance(given, str) else json.dumps(given)
            function = {"name": reply.tool or request.tool, "arguments": arguments}
            said["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
        else:
            said["content"], stop = json.dumps(given), "end_turn"
        counted = owner.usage(request.body, reply.output_tokens)
        usage = {"prompt_tokens": counted["input_tokens"], "completion_tokens": reply.output_tokens}
        completion = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": request.body["model"],
            "choices": [{"index": 0, "message": said, "finish_reason": STOPS[stop]}],
            "usage": None if owner.usage_fields is None else {**usage, **owner.usage_fields},
        }
        self._send(200, completion)
        return None

    def _fail(self, reply: Fail) -> None:
        if self.server.messages.provider != "openai" or reply.body is not None:  # type: ignore[attr-defined]
            return super()._fail(reply)
        raw = json.dumps(_error(reply.message)).encode()
        after = reply.retry_after() if callable(reply.retry_after) else reply.retry_after
        self._head(reply.status, len(raw), {"retry-after": after})
        self.wfile.write(raw)
        return None


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


def _message_request(chat: Mapping[str, Any]) -> dict[str, Any]:
    """A chat completion as a request of the Messages API, as OpenAI's reference describes both."""
    system = [turn["content"] for turn in chat["messages"] if turn["role"] == "system"]
    body: dict[str, Any] = {
        "model": chat["model"],
        "max_tokens": chat.get("max_completion_tokens", chat.get("max_tokens")),
        "system": [{"type": "text", "text": text} for text in system],
        "messages": [_turn(turn) for turn in chat["messages"] if turn["role"] != "system"],
    }
    if "tools" in chat:
        body["tools"] = [
            {
                "name": tool["function"]["name"],
                "input_schema": tool["function"]["parameters"],
                **({"strict": True} if tool["function"].get("strict") else {}),
            }
            for tool in chat["tools"]
        ]
        choice = chat["tool_choice"]
        forced = isinstance(choice, dict)
        body["tool_choice"] = {"type": "tool" if forced else {"required": "any"}.get(choice, choice)}
    if "response_format" in chat:
        body["output_config"] = {"format": chat["response_format"]["json_schema"]}
    return body


def _turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    content = turn["content"]
    if turn["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": turn["tool_call_id"], "content": content}
        return {"role": "user", "content": [result]}
    if turn["role"] == "assistant":
        calls = [
            {"type": "tool_use", "id": call["id"], "name": call["function"]["name"]}
            | {"input": json.loads(call["function"]["arguments"])}
            for call in turn.get("tool_calls", ())
        ]
        return {"role": "assistant", "content": [{"type": "text", "text": content}] * bool(content) + calls}
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    blocks = [
        part if part["type"] == "text" else {"type": "image", "source": part["image_url"]["url"]}
        for part in parts
    ]
    return {"role": "user", "content": blocks}
