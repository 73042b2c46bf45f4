"""Capabilities of a model: those that the models endpoint states, minus what the server has refused.

Model names are never interpreted. If a server states nothing, requests force the tool and leave thinking out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmzero_ray.agents.llm.settings import MIN_THINKING_BUDGET, LlmSettings
from llmzero_ray.config.search_config import Thinking

_QUIET: tuple[Thinking, ...] = ("disabled", "between_tools")
"""Thinking types that turn thinking off before an answer, in order of preference."""

_FORM = ("structured output", "schema")
"""Words in error messages of servers that refuse structured output."""


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Features that a model accepts. A field is None if its server does not say."""

    thinking: frozenset[str] | None = None
    """Thinking types. Empty if the model does not think."""
    effort: frozenset[str] | None = None
    """Levels of effort. Empty if the model has none."""
    structured_outputs: bool | None = None
    images: bool | None = None
    max_tokens: int | None = None
    """Largest `max_tokens` of a request."""
    forced_tool: bool = True
    """Whether a tool may be required by name. No endpoint states it; it is learned from a refusal."""
    tools: bool = True
    """Whether tools may be offered. Learned from a refusal; the answer is then requested by a format."""
    newest_limit: bool = True
    """Whether an OpenAI-style server accepts `max_completion_tokens`; an old one knows only `max_tokens`."""
    unstated_thinking: bool = True
    """Whether the token limit may include thinking if the server does not say whether the model thinks.
    Learned from a refusal."""
    cache_ttl: bool = True
    """Whether a cache mark may have a time to live. No endpoint states it; it is learned from a refusal."""

    def applied_to(self, settings: LlmSettings) -> LlmSettings:
        """The settings of a request: defaults for what the user left open, without what the model lacks."""
        types, effort = self.thinking, settings.effort
        if self.effort is not None and effort not in self.effort:
            effort = None
        tokens = settings.thinking_budget or settings.thinking_tokens
        if self.max_tokens is not None:
            tokens = min(tokens, self.max_tokens // 2)
        thinking = settings.thinking
        if thinking is None and settings.thinking_budget is not None:
            thinking = "adaptive" if types and "enabled" not in types and "adaptive" in types else "enabled"
        elif thinking is None:
            thinking = _default_thinking(types or frozenset(), settings.thinks_by_default)
        if thinking == "enabled" and tokens < MIN_THINKING_BUDGET:
            thinking = None
        thinks = thinking in ("enabled", "adaptive")
        return settings.model_copy(
            update={
                "thinking": thinking,
                "thinking_budget": (tokens or None) if thinks else None,
                "thinking_tokens": tokens if self.adds_thinking_tokens(settings) else 0,
                "effort": effort,
                "max_output": self.max_tokens,
                "cache": settings.cache if self.cache_ttl or settings.cache is None else "5m",
            }
        )

    def adds_thinking_tokens(self, settings: LlmSettings) -> bool:
        """Whether the token limit includes thinking although the request does not ask for any. Most models
        think, and only Anthropic's endpoint says whether they do."""
        return self.unstated_thinking and self.thinking is None and settings.provider != "anthropic"

    def limited_to(self, max_tokens: int | None) -> Capabilities:
        """The same with answers of at most `max_tokens`, thinking included, unless that is None."""
        if max_tokens is None:
            return self
        return replace(self, max_tokens=min(max_tokens, self.max_tokens or max_tokens))

    def without_refused(
        self, settings: LlmSettings, body: Mapping[str, Any], reason: str
    ) -> Capabilities | None:
        """Capabilities after the server has refused the request `body` for `reason`. None if `reason` names
        nothing that can be left out."""
        reason, tools = reason.lower(), body.get("tools", ())
        speaks_openai = settings.provider == "openai"
        forced = body.get("tool_choice", {}).get("type") in ("tool", "any")
        if forced and "tool_choice" in reason:
            return replace(self, forced_tool=False)
        formatted = "format" in body.get("output_config", {})
        if formatted and any(word in reason for word in ("output_config", "format", *_FORM)):
            # Without tools, no other form of the answer is left.
            return replace(self, structured_outputs=None) if self.tools else None
        if settings.cache == "1h" and self.cache_ttl and ("cache_control" in reason or "ttl" in reason):
            return replace(self, cache_ttl=False)
        if speaks_openai and self.newest_limit and "max_completion_tokens" in reason:
            return replace(self, newest_limit=False)
        if self.adds_thinking_tokens(settings) and any(
            word in reason for word in ("max_tokens", "context length")
        ):
            return replace(self, unstated_thinking=False)
        strict = any(tool.get("strict") for tool in tools)
        if strict and any(word in reason for word in ("strict", "tool", *_FORM)):
            return replace(self, structured_outputs=False)
        if self.thinking and settings.thinking_type is None and "thinking" in reason:
            return replace(self, thinking=None)
        if tools and self.tools and "tool" in reason:
            return replace(self, tools=False)
        if speaks_openai and self.images is None and "image" in reason:
            return replace(self, images=False)
        return None


def stated_capabilities(body: bytes) -> Capabilities | None:
    """Capabilities in the body of `GET /v1/models/{id}`; None if another endpoint answered. A field of the
    wrong shape counts as not stated."""
    model = model_object(body)
    if model is None:
        return None
    stated = _mapping(model.get("capabilities"))
    most = model.get("max_tokens")
    return Capabilities(
        thinking=_supported_names(stated.get("thinking"), "types"),
        effort=_supported_names(stated.get("effort")),
        structured_outputs=_is_supported(stated.get("structured_outputs")),
        images=_is_supported(stated.get("image_input")),
        max_tokens=most if isinstance(most, int) and not isinstance(most, bool) and most > 0 else None,
    )


def model_object(body: bytes) -> Mapping[str, Any] | None:
    """The object that describes a model, or None if the body is something else."""
    try:
        model = json.loads(body)
    except ValueError:
        return None
    return model if isinstance(model, dict) and model.get("type") == "model" else None


def _default_thinking(types: frozenset[str], thinks: bool) -> Thinking | None:
    """Thinking type for an agent that should (`thinks`) or should not think. If a model's thinking cannot be
    turned off, it is adaptive."""
    order: tuple[Thinking, ...] = ("adaptive", "enabled") if thinks else (*_QUIET, "adaptive")
    return next((one for one in order if one in types), None)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_supported(value: Any) -> bool | None:
    supported = _mapping(value).get("supported")
    return supported if isinstance(supported, bool) else None


def _supported_names(value: Any, inner: str = "") -> frozenset[str] | None:
    """Names of the supported parts of a capability. None if it is not stated."""
    supported = _is_supported(value)
    if supported is None:
        return None
    parts = _mapping(value.get(inner)) if inner else value
    return frozenset(name for name, part in parts.items() if supported and _is_supported(part))
