"""From a call to the body of a Messages API request.

Stable parts come first, so that the prompt cache can serve them: tool, cacheable system blocks, the rest of
the system prompt, the user's turn. Pure. Not here: sending it (client.py).
"""

from __future__ import annotations

import base64
from typing import Any

from llmzero_ray.agents.llm.call import ImageBlock, LlmCall, TextBlock
from llmzero_ray.agents.llm.settings import LlmSettings

_EPHEMERAL = {"type": "ephemeral"}


def request_body(call: LlmCall, settings: LlmSettings, *, force_tool: bool = True) -> dict[str, Any]:
    """Keyword arguments of `messages.create`, in plain JSON values.

    `force_tool` asks for the tool by name; with thinking the API allows only `auto`, whatever `force_tool`
    says.
    """
    tool: dict[str, Any] = {
        "name": call.tool.name,
        "description": call.tool.description,
        "input_schema": dict(call.tool.schema),
    }
    if call.tool.strict:
        tool["strict"] = True
    system: list[dict[str, Any]] = [{"type": "text", "text": block.text} for block in call.system]
    n_cacheable = sum(block.cacheable for block in call.system)
    # One mark covers everything before it, and tools stand before the system prompt.
    if n_cacheable:
        system[n_cacheable - 1]["cache_control"] = _EPHEMERAL
    else:
        tool["cache_control"] = _EPHEMERAL
    forced = force_tool and not settings.thinks
    choice: dict[str, Any] = {"type": "tool", "name": call.tool.name} if forced else {"type": "auto"}
    body: dict[str, Any] = {
        "model": settings.model,
        "max_tokens": settings.output_tokens(call.max_tokens),
        "tools": [tool],
        "tool_choice": {**choice, "disable_parallel_tool_use": True},
        "messages": [{"role": "user", "content": [_block(block) for block in call.content]}],
    }
    if system:
        body["system"] = system
    if settings.temperature is not None and not settings.thinks:
        body["temperature"] = settings.temperature
    if settings.thinking_type == "enabled":
        body["thinking"] = {"type": "enabled", "budget_tokens": settings.thinking_budget}
    elif settings.thinking_type is not None:
        body["thinking"] = {"type": settings.thinking_type}
    if settings.effort is not None:
        body["output_config"] = {"effort": settings.effort}
    return body


def probe_body(settings: LlmSettings, image: bytes | None) -> dict[str, Any]:
    """The smallest message there is: one token asked, with a picture if given."""
    content: list[dict[str, Any]] = [] if image is None else [_block(ImageBlock(png=image))]
    content.append(_block(TextBlock(text="ok")))
    return {
        "model": settings.model,
        "max_tokens": 1,
        "messages": [{"role": "user", "content": content}],
    }


def _block(block: TextBlock | ImageBlock) -> dict[str, Any]:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    data = base64.b64encode(block.png).decode("ascii")
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
