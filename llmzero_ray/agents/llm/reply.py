"""From the body of a Messages API response to the tool's input, or to the error it stands for.

The body is read here and not by the SDK, which builds its objects without checking types: a field of the
wrong type would surface much later as an error of another kind. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from llmzero_ray.agents.llm.call import Usage
from llmzero_ray.agents.llm.errors import LlmCallError, shown
from llmzero_ray.agents.llm.settings import LlmSettings

_Count = Annotated[int, Field(ge=0)]


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
class Reply:
    """What a usable response holds."""

    input: Mapping[str, Any]
    stop_reason: str
    usage: Usage
    model: str


def parse_reply(body: bytes, *, tool: str, max_tokens: int) -> Reply:
    """The input that the model gave to `tool`.

    Raises:
        LlmCallError: kind malformed, refusal, max_tokens, empty or no_tool_call; `usage` is what the failed
            answer cost, where the body says so.
    """
    message = _message(body)
    usage = message.usage.tokens()
    if message.stop_reason == "refusal":
        category = message.stop_details.category if message.stop_details else None
        raise LlmCallError(
            f"{shown(message.model)} refused to answer (category: {shown(category or 'not given')}).",
            kind="refusal",
            usage=usage,
        )
    if message.stop_reason in ("max_tokens", "model_context_window_exceeded"):
        raise LlmCallError(
            f"The answer was cut off after {usage.output} tokens ({message.stop_reason}; max_tokens "
            f"{max_tokens}), so that its tool input is incomplete. Raise agents.max_tokens, or agents."
            "thinking_budget where the model thinks.",
            kind="max_tokens",
            usage=usage,
        )
    if not message.content:
        raise LlmCallError("The model answered without any content.", kind="empty", usage=usage)
    calls = [block for block in message.content if block.type == "tool_use"]
    ours = next((block for block in calls if block.name == tool), None)
    if ours is None:
        instead = f"the tool {shown(calls[0].name)!r}" if calls else "no tool"
        raise LlmCallError(
            f"The model called {instead}; it had to answer through {tool!r}.",
            kind="no_tool_call",
            usage=usage,
        )
    if not isinstance(ours.input, dict):
        raise LlmCallError(
            f"The input of tool {tool!r} is {type(ours.input).__name__}; it must be an object.",
            kind="malformed",
            usage=usage,
        )
    return Reply(input=ours.input, stop_reason=message.stop_reason, usage=usage, model=shown(message.model))


def reported_usage(body: bytes) -> Usage:
    """The token counts of any response of the Messages API.

    Raises:
        LlmCallError: kind malformed: it is none.
    """
    return _message(body).usage.tokens()


def check_model(body: bytes, settings: LlmSettings, images: bool) -> bool:
    """Whether a body describes a model, as `GET /v1/models/{id}` answers; False: some other endpoint did.

    Raises:
        LlmCallError: the model is retired, or takes no images and `images` asks for them.
    """
    try:
        model = json.loads(body)
    except ValueError:
        return False
    if not isinstance(model, dict) or model.get("type") != "model":
        return False
    if model.get("lifecycle") == "retired":
        raise LlmCallError(
            f"{settings.url} has retired {settings.model}. Set agents.model to a newer one.", kind="not_found"
        )
    capability = (model.get("capabilities") or {}).get("image_input") or {}
    if images and capability.get("supported") is False:
        raise LlmCallError(
            f"{settings.model} takes no images. Set agents.visual: false, or choose a model that sees.",
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
        f"The server's answer is not a message of the Messages API: {shown(place)}: {shown(first['msg'])} "
        f"({len(body)} bytes). Does agents.base_url lead to a server that speaks it?",
        kind="malformed",
    )
