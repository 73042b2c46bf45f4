"""Bodies of the Messages API: converts a call into a request, and a response into the tool's input.

Stable parts of a request come first, so that the prompt cache can serve them: tool, system prompt, the user's
turn. Responses are parsed here because the SDK does not check types: a field of the wrong type would cause
another kind of error much later. Pure. Not here: sending (client.py), unsuccessful responses (errors.py).
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from llmzero_ray.agents.llm.capabilities import Capabilities, model_object, stated_capabilities
from llmzero_ray.agents.llm.errors import LlmCallError, excerpt
from llmzero_ray.agents.llm.messages import ImageBlock, LlmCall, TextBlock, Tool, Usage
from llmzero_ray.agents.llm.settings import LlmSettings

_MAX_TOKENS = 10**9
"""Maximum plausible number of tokens that a server reports."""
_Count = Annotated[int, Field(ge=0, le=_MAX_TOKENS)]


class _Usage(BaseModel):
    model_config = ConfigDict(strict=True)

    input_tokens: _Count
    output_tokens: _Count
    cache_read_input_tokens: _Count | None = None
    cache_creation_input_tokens: _Count | None = None

    def tokens(self) -> Usage:
        return Usage(
            input=self.input_tokens,
            output=self.output_tokens,
            cache_read=self.cache_read_input_tokens or 0,
            cache_creation=self.cache_creation_input_tokens or 0,
        )


class _Block(BaseModel):
    model_config = ConfigDict(strict=True)

    type: str
    name: str | None = None
    input: Any = None
    id: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None

    def to_send_back(self) -> dict[str, Any] | None:
        """The block as a later request sends it, or None if it is not sent.

        The server checks the signatures of thinking blocks, which must be returned unchanged.
        """
        fields = _SENT_BACK.get(self.type, ())
        values = {name: getattr(self, name) for name in fields}
        if not fields or any(value is None for value in values.values()) or self.text == "":
            return None
        return {"type": self.type, **{name: _sendable(value) for name, value in values.items()}}


def _sendable(value: Any) -> Any:
    """JSON value for a request. NaN and infinities become text, so that the model sees what is wrong."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _sendable(held) for key, held in value.items()}
    return [_sendable(held) for held in value] if isinstance(value, list) else value


_SENT_BACK: Mapping[str, tuple[str, ...]] = {
    "text": ("text",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "tool_use": ("id", "name", "input"),
}
"""Blocks of an answer that a later request repeats, with their fields."""


class _StopDetails(BaseModel):
    category: str | None = None


class _Message(BaseModel):
    model_config = ConfigDict(strict=True)

    model: str
    content: list[_Block]
    stop_reason: str
    usage: _Usage
    stop_details: _StopDetails | None = None


@dataclass(frozen=True, kw_only=True)
class ToolUse:
    """Content of a usable response."""

    tool: str
    input: Mapping[str, Any]
    stop_reason: str
    usage: Usage
    model: str
    content: tuple[Mapping[str, Any], ...]
    """Blocks to send back: those up to this tool call, or all if the answer is text."""


def request_body(call: LlmCall, settings: LlmSettings, can: Capabilities | None = None) -> dict[str, Any]:
    """Keyword arguments of `messages.create`, as plain JSON values, for a model with capabilities `can`.

    If the model has structured outputs, the schema of a single strict tool is requested as the format of the
    answer (`output_config.format`). Otherwise the tool is required by name, unless the model thinks: then the
    API allows only `auto`.
    """
    can = can or Capabilities()
    settings = can.applied_to(settings)
    if can.images is False:
        call = replace(call, content=tuple(one for one in call.content if isinstance(one, TextBlock)))
    mark = _cache_mark(settings)
    tools = [_tool(tool, strict=can.structured_outputs is not False) for tool in (call.tool, *call.others)]
    # The mark covers everything before it. Tools precede the system prompt.
    system: list[dict[str, Any]] = [{"type": "text", "text": call.system, **mark}]
    formatted = _is_formatted(call, can)
    if formatted:
        said = f"Your whole answer is the input of the tool {call.tool.name}, as one JSON object: "
        system.append({"type": "text", "text": said + call.tool.description})
    forced = can.forced_tool and not settings.thinks
    choice: dict[str, Any] = {"type": "auto"}
    if forced:
        choice = {"type": "any"} if call.others else {"type": "tool", "name": call.tool.name}
    body: dict[str, Any] = {
        "model": settings.model,
        "max_tokens": settings.output_tokens(call.max_tokens),
        "system": system,
        "messages": _turns(call, mark),
    }
    output: dict[str, Any] = {} if settings.effort is None else {"effort": settings.effort}
    if formatted:
        output["format"] = {"type": "json_schema", "schema": dict(call.tool.schema)}
    else:
        body["tools"] = tools
        body["tool_choice"] = {**choice, "disable_parallel_tool_use": True}
    if output:
        body["output_config"] = output
    if settings.temperature is not None and not settings.thinks:
        body["temperature"] = settings.temperature
    if settings.thinking_type == "enabled":
        body["thinking"] = {"type": "enabled", "budget_tokens": settings.thinking_budget}
    elif settings.thinking_type is not None:
        body["thinking"] = {"type": settings.thinking_type}
    return body


def _is_formatted(call: LlmCall, can: Capabilities) -> bool:
    """Whether the answer is requested as formatted text instead of a tool call. A conversation that has tool
    calls continues with tools."""
    used = any(answer.tool_use_id is not None for answer in call.refused)
    tools_needed = bool(call.others or call.exchanges) or used
    if not can.tools and not tools_needed:
        return True
    return can.structured_outputs is True and call.tool.strict and not tools_needed


def _cache_mark(settings: LlmSettings) -> dict[str, Any]:
    """Field that marks the end of a cacheable prefix; empty if none is marked."""
    if settings.cache is None:
        return {}
    return {"cache_control": {"type": "ephemeral"} | ({"ttl": "1h"} if settings.cache == "1h" else {})}


def _tool(tool: Tool, *, strict: bool) -> dict[str, Any]:
    body: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "input_schema": dict(tool.schema),
    }
    return {**body, "strict": True} if tool.strict and strict else body


def _turns(call: LlmCall, mark: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The user's turn, each rejected answer with the reason as its tool result, then each exchange. The end
    of a conversation gets the cache `mark`, for its next call."""
    turns: list[dict[str, Any]] = [{"role": "user", "content": [_block(block) for block in call.content]}]
    for answer in call.refused:
        result: dict[str, Any] = _block(TextBlock(text=answer.reason))
        if answer.tool_use_id is not None:
            result = {
                "type": "tool_result",
                "tool_use_id": answer.tool_use_id,
                "is_error": True,
                "content": answer.reason,
            }
        turns.append({"role": "assistant", "content": [dict(block) for block in answer.content]})
        turns.append({"role": "user", "content": [result]})
    for exchange in call.exchanges:
        given: list[dict[str, Any]] = [
            {
                "type": "tool_result",
                "tool_use_id": str(exchange.tool_use["id"]),
                "is_error": exchange.is_error,
                "content": exchange.result,
            }
        ]
        given += [_block(TextBlock(text=exchange.then))] if exchange.then else []
        turns.append({"role": "assistant", "content": [dict(block) for block in exchange.content]})
        turns.append({"role": "user", "content": given})
    if call.exchanges:
        turns[-1]["content"][-1].update(mark)
    return turns


def probe_body(settings: LlmSettings, image: bytes | None) -> dict[str, Any]:
    """The smallest possible message: one output token, with an image if given."""
    content: list[dict[str, Any]] = [] if image is None else [_block(ImageBlock(png=image))]
    content.append(_block(TextBlock(text="ok")))
    return {
        "model": settings.model,
        "max_tokens": 1,
        "messages": [{"role": "user", "content": content}],
    }


def parse_message(body: bytes, *, tool: str, max_tokens: int, others: Collection[str] = ()) -> ToolUse:
    """Input that the model gave to `tool` or to one of the others. If it called no tool, the JSON object in
    its last text.

    Raises:
        LlmCallError: kind malformed, refusal, max_tokens, empty or no_tool_call; `usage` is what the failed
            answer cost, if the body says so.
    """
    message = _message(body)
    usage = message.usage.tokens()
    if message.stop_reason == "refusal":
        category = message.stop_details.category if message.stop_details else None
        raise LlmCallError(
            f"{excerpt(message.model)} refused to answer (category: {excerpt(category or 'not given')}).",
            kind="refusal",
            usage=usage,
        )
    if message.stop_reason in ("max_tokens", "model_context_window_exceeded"):
        remedy = (
            "Raise agents.thinking_budget: its tokens are added to that limit."
            if message.stop_reason == "max_tokens"
            else "Set agents.model to a model with a larger context window."
        )
        raise LlmCallError(
            f"The answer was cut off after {usage.output} tokens ({message.stop_reason}; max_tokens "
            f"{max_tokens}), so that its tool input is incomplete. {remedy}",
            kind="max_tokens",
            usage=usage,
        )
    if not message.content:
        raise LlmCallError("The model answered without any content.", kind="empty", usage=usage)
    calls = [block for block in message.content if block.type == "tool_use"]
    ours = next((block for block in calls if block.name == tool or block.name in others), None)
    if not calls and not others:
        ours = _formatted_answer(message.content, tool)
    if ours is None:
        instead = f"the tool {excerpt(calls[0].name)!r}" if calls else "no tool"
        allowed = " or ".join(repr(name) for name in (tool, *others))
        raise LlmCallError(
            f"The model called {instead}; it had to answer through {allowed}.",
            kind="no_tool_call",
            usage=usage,
        )
    if not isinstance(ours.input, dict):
        raise LlmCallError(
            f"The input of tool {ours.name!r} is {type(ours.input).__name__}; it must be an object.",
            kind="malformed",
            usage=usage,
        )
    before = message.content if ours.type == "text" else message.content[: message.content.index(ours) + 1]
    return ToolUse(
        tool=str(ours.name),
        input=ours.input,
        stop_reason=message.stop_reason,
        usage=usage,
        model=excerpt(message.model),
        content=tuple(sent for block in before if (sent := block.to_send_back()) is not None),
    )


def _formatted_answer(content: Sequence[_Block], tool: str) -> _Block | None:
    """The last text block, with its parsed JSON as `input`, or None if it is not JSON."""
    text = next((block.text for block in reversed(content) if block.type == "text"), None)
    try:
        return _Block(type="text", name=tool, text=text, input=json.loads(text or ""))
    except ValueError:
        return None


def reported_usage(body: bytes) -> Usage:
    """Token counts of any response of the Messages API.

    Raises:
        LlmCallError: kind malformed: the body is not a response.
    """
    return _message(body).usage.tokens()


def check_model(body: bytes, settings: LlmSettings, images: bool) -> bool:
    """Whether a body describes a model, as `GET /v1/models/{id}` returns it. False if another endpoint
    answered.

    Raises:
        LlmCallError: the model is retired, or lacks what the settings or `images` require.
    """
    model, can = model_object(body), stated_capabilities(body)
    if model is None or can is None:
        return False
    if model.get("lifecycle") == "retired":
        raise LlmCallError(
            f"{settings.url} has retired {settings.model}. Set agents.model to a newer one.", kind="not_found"
        )
    if images and can.images is False:
        raise LlmCallError(
            f"{settings.model} takes no images. Set agents.visual: false, or choose a model that sees.",
            kind="bad_request",
        )
    for key, asked, offered in (
        ("thinking", settings.thinking, can.thinking),
        ("effort", settings.effort, can.effort),
    ):
        if asked is not None and offered is not None and asked not in offered:
            allowed = ", ".join(sorted(map(excerpt, offered))) or "none"
            raise LlmCallError(
                f"{settings.model} takes no {key} {asked!r}; it takes: {allowed}. Change agents.{key}, or "
                "leave it out.",
                kind="bad_request",
            )
    return True


def _message(body: bytes) -> _Message:
    try:
        return _Message.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the body"
    raise LlmCallError(
        f"The server's answer is not a message of the Messages API: {excerpt(place)}: "
        f"{excerpt(first['msg'])} ({len(body)} bytes). Does agents.base_url lead to a server that speaks it?",
        kind="malformed",
    )


def _block(block: TextBlock | ImageBlock) -> dict[str, Any]:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    data = base64.b64encode(block.png).decode("ascii")
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
