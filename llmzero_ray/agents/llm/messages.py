"""Calls to a language model and its responses: frozen values, independent of any SDK."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens by kind, as billed. `input` excludes tokens read from or written to the prompt cache."""

    input: int = 0
    output: int = 0
    """Tokens of answer and thinking together."""
    cache_read: int = 0
    cache_creation: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_creation=self.cache_creation + other.cache_creation,
        )

    @property
    def all_input(self) -> int:
        """All tokens of the prompt, cached or not."""
        return self.input + self.cache_read + self.cache_creation


@dataclass(frozen=True, kw_only=True)
class TextBlock:
    """Text of the user's turn."""

    text: str


@dataclass(frozen=True, kw_only=True)
class ImageBlock:
    """A picture of the user's turn."""

    png: bytes = field(repr=False)
    """The PNG file."""


@dataclass(frozen=True, kw_only=True)
class RefusedAnswer:
    """Rejected answer of the model with the reason: two more turns of the conversation."""

    content: tuple[Mapping[str, Any], ...]
    """The blocks of the answer as the server sent them, thinking included: `LlmResponse.content`."""
    reason: str
    """Reason for the rejection, as text for the model."""

    @property
    def tool_use_id(self) -> str | None:
        """Id of the tool call that the reason answers. None if the answer is text."""
        return next((str(block["id"]) for block in self.content if block["type"] == "tool_use"), None)


@dataclass(frozen=True, kw_only=True)
class ToolExchange:
    """Tool call of the model and its result: two more turns of a conversation."""

    content: tuple[Mapping[str, Any], ...]
    """The blocks of the answer as the server sent them, thinking included: `LlmResponse.content`."""
    result: str
    """Result of the tool."""
    is_error: bool = False
    then: str = ""
    """User text that follows the result in the same turn."""

    @property
    def tool_use(self) -> Mapping[str, Any]:
        """Tool call that the result answers."""
        return next(block for block in self.content if block["type"] == "tool_use")


@dataclass(frozen=True, kw_only=True)
class Tool:
    """Tool that the model must call. Its input, an object that fits the JSON Schema `schema`, is the
    response. A model with structured outputs writes the object as text instead."""

    name: str
    description: str
    schema: Mapping[str, Any]
    strict: bool = False
    """Whether the server enforces the schema during generation. The API then accepts only a subset of JSON
    Schema: every object needs `additionalProperties: false`, and numeric bounds are not supported."""


@dataclass(frozen=True, kw_only=True)
class LlmCall:
    """One call: the agent, its node, the prompt, and the tool that the model must call."""

    agent: str
    node: int
    system: str
    """System prompt. The agent's next call repeats it, so it can be cached."""
    content: tuple[TextBlock | ImageBlock, ...]
    tool: Tool
    max_tokens: int
    """Token limit of the response itself. Thinking has its own (`LlmSettings.thinking_budget`)."""
    deadline_s: float | None = None
    """Timeout of the whole call in seconds. If None, the one of the settings applies."""
    refused: tuple[RefusedAnswer, ...] = ()
    """Earlier answers to the same content, oldest first."""
    others: tuple[Tool, ...] = ()
    """Further tools. The model must call `tool` or one of these."""
    exchanges: tuple[ToolExchange, ...] = ()
    """The conversation after the content, oldest first."""


@dataclass(frozen=True, kw_only=True)
class LlmResponse:
    """A model's response through the tool, with tokens, latency and attempts."""

    input: Mapping[str, Any]
    """Tool input: an object that is not yet checked against the schema."""
    stop_reason: str
    usage: Usage
    latency_s: float
    """Seconds from the call to the response, including retries and waits."""
    n_attempts: int
    """HTTP requests sent; 1 means no retry."""
    model: str
    """The model that answered, as the server names it."""
    request_id: str | None
    """The server's id of the last request, for support inquiries."""
    content: tuple[Mapping[str, Any], ...] = ()
    """Blocks of the answer in the form that the API accepts again, up to the tool call."""
    tool: str = ""
    """Name of the called tool, if several were offered."""
