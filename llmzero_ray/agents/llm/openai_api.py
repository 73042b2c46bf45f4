"""Translates requests and responses between the Messages API and OpenAI's chat completions.

All other code (records, recorded answers, retries with a reason, the budget) knows only the Messages API.
Pure. Not here: sending (client.py), reading a response (messages_api.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from llmzero_ray.agents.llm.errors import LlmCallError, excerpt, reason_of

_STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}


def chat_request(body: Mapping[str, Any], *, newest_limit: bool = True) -> dict[str, Any]:
    """Chat-completion request for a request of the Messages API. Thinking and cache marks are left out,
    because servers of this protocol decide about both. `newest_limit` as in `Capabilities`."""
    system = "\n\n".join(block["text"] for block in body.get("system", ()))
    chat: dict[str, Any] = {
        "model": body["model"],
        "messages": [{"role": "system", "content": system}] if system else [],
        "max_completion_tokens" if newest_limit else "max_tokens": body["max_tokens"],
    }
    for turn in body["messages"]:
        chat["messages"] += _turn(turn)
    if "tools" in body:
        choice = body["tool_choice"]
        chat["tools"] = [_tool(tool) for tool in body["tools"]]
        chat["tool_choice"] = {
            "tool": {"type": "function", "function": {"name": choice.get("name")}},
            "any": "required",
            "auto": "auto",
        }[choice["type"]]
        chat["parallel_tool_calls"] = False
    output = body.get("output_config", {})
    if "format" in output:
        form = {"name": "answer", "schema": output["format"]["schema"], "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": form}
    if "effort" in output:
        chat["reasoning_effort"] = output["effort"]
    if "temperature" in body:
        chat["temperature"] = body["temperature"]
    return chat


def message_of(content: bytes) -> bytes:
    """Messages API response for a chat completion.

    Raises:
        LlmCallError: kind server if the body is an error although the server reported success; kind malformed
            if it is not a chat completion.
    """
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    found = found if isinstance(found, dict) else {}
    if found.get("error"):
        raise LlmCallError(
            f"The server failed: {excerpt(reason_of(content) or found['error'])}.", kind="server"
        )
    choices = found.get("choices")
    if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
        raise LlmCallError(
            f"The server's answer is not a chat completion ({len(content)} bytes). Does agents.base_url lead "
            "to a server that answers whole, not as a stream?",
            kind="malformed",
        )
    said = choices[0].get("message")
    said = said if isinstance(said, dict) else {}
    stop = _STOP_REASONS.get(str(choices[0].get("finish_reason")), "end_turn")
    message = {
        "type": "message",
        "model": found.get("model"),
        "content": list(_blocks(said)),
        "stop_reason": "refusal" if said.get("refusal") else stop,
        "usage": _usage(found.get("usage")),
    }
    return json.dumps(message).encode()


def _turn(turn: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    blocks = turn["content"]
    if turn["role"] == "assistant":
        text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
        calls = [_call(block) for block in blocks if block["type"] == "tool_use"]
        yield {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}
        return
    for block in blocks:
        if block["type"] == "tool_result":
            yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": block["content"]}
    parts = [_part(block) for block in blocks if block["type"] != "tool_result"]
    if parts:
        alone = len(parts) == 1 and parts[0]["type"] == "text"
        yield {"role": "user", "content": parts[0]["text"] if alone else parts}


def _part(block: Mapping[str, Any]) -> dict[str, Any]:
    if block["type"] == "text":
        return {"type": "text", "text": block["text"]}
    source = block["source"]
    return {"type": "image_url", "image_url": {"url": f"data:{source['media_type']};base64,{source['data']}"}}


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": block["name"], "arguments": json.dumps(block["input"])}
    return {"id": block["id"], "type": "function", "function": function}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {
        "name": tool["name"],
        "description": tool["description"],
        "parameters": tool["input_schema"],
        **({"strict": True} if tool.get("strict") else {}),
    }
    return {"type": "function", "function": function}


def _blocks(said: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if said.get("content"):
        yield {"type": "text", "text": said["content"]}
    for number, call in enumerate(said.get("tool_calls") or ()):
        function = call.get("function") or {}
        try:
            given = json.loads(function.get("arguments") or "")
        except (TypeError, ValueError):
            given = function.get("arguments")  # if it is not an object, the reader rejects it with the reason
        name, id_ = function.get("name"), call.get("id") or f"call_{number}"
        yield {"type": "tool_use", "id": id_, "name": name, "input": given}


def _usage(counts: Any) -> dict[str, Any] | None:
    if not isinstance(counts, dict):
        return None
    prompt, cached = (
        counts.get("prompt_tokens"),
        (counts.get("prompt_tokens_details") or {}).get("cached_tokens"),
    )
    if isinstance(prompt, int) and isinstance(cached, int):
        prompt -= cached
    return {
        "input_tokens": prompt,
        "output_tokens": counts.get("completion_tokens"),
        "cache_read_input_tokens": cached,
    }
