"""Settings of a language model's client. They do not contain the key, so they are safe to print, pickle and
journal."""

from __future__ import annotations

import ipaddress
import urllib.parse
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator, model_validator

from llmzero_ray.config.search_config import Effort, Provider, Thinking
from llmzero_ray.config.yaml_text import StrictModel
from llmzero_ray.utils.api_key import KEY_ENV, KEY_ENVS, KEY_FILE_ENV

PUBLIC_URL = "https://api.anthropic.com"

_SERVERS: Mapping[Provider, str] = {
    "anthropic": PUBLIC_URL,
    "openai": "https://api.openai.com/v1",
    "bedrock": "Amazon Bedrock",
    "vertex": "Google Vertex AI",
    "foundry": "Microsoft Foundry",
}
"""Provider -> its public server, or its name where the SDK finds the address."""

HOURLY = frozenset({"early_stopper", "skill_agent"})
"""Agents that are called again about every quarter of an hour, so that the server keeps their prompts for an
hour. Every other agent of a search is called too rarely for any mark."""
MIN_THINKING_BUDGET = 1024
"""Smallest `budget_tokens` that the API accepts."""


class LlmSettings(StrictModel):
    """One model and how it is called. The accepted values of thinking, effort and temperature depend on the
    model. If it rejects one, its own message is reported."""

    model: str
    """Id of the model, as its server names it."""
    provider: Provider = "anthropic"
    """Provider of the server, which decides its protocol: OpenAI's chat completions, or the Messages API."""
    base_url: str | None = None
    """Another server of the provider's protocol, such as vLLM inside the cluster. If None, the provider's
    own is used."""
    key_file: str | None = None
    """File with the key of the server at `base_url`. If None, see `takes_environment_key`."""
    temperature: float | None = None
    """Sampling temperature. If None, it is not sent and the model's default applies. It is never sent with
    thinking."""
    thinking: Thinking | None = None
    """The API's thinking type. If None, it is not sent and the model's default applies; with a
    `thinking_budget`, None means `enabled`."""
    thinking_budget: int | None = Field(None, ge=MIN_THINKING_BUDGET)
    """Tokens for thinking on top of an answer's own. With `enabled` this is the API's `budget_tokens`. With
    `adaptive` it only raises the limit, since the model decides by `effort`."""
    thinks_by_default: bool = False
    """Whether a model that can do both thinks before it answers, where `thinking` is None."""
    thinking_tokens: int = Field(0, ge=0)
    """Tokens for thinking on top of an answer's own if the model thinks and `thinking_budget` is None."""
    max_output: int | None = Field(None, ge=1)
    """Maximum tokens of any answer of the model, thinking included. If None, it is not known."""
    cache: Literal["5m", "1h"] | None = "5m"
    """Time for which the server keeps the stable part of a prompt for the next call. If None, it is not asked
    to: a mark costs more than it saves where the next call comes later."""
    effort: Effort | None = None
    """Effort that the model spends on an answer. If None, it is not sent and the model's default
    applies."""
    deadline_s: float = Field(120.0, gt=0)
    """Deadline of one call in wall-clock seconds, retries included."""
    check_deadline_s: float = Field(20.0, gt=0)
    """Deadline of the check at start-up, in seconds."""
    key_env: str = KEY_ENV
    """Environment variable that holds the key."""
    key_file_env: str = KEY_FILE_ENV
    """Environment variable that names a file with the key, read if `key_env` is not set."""

    @field_validator("model")
    @classmethod
    def _named(cls, model: str) -> str:
        if not model.strip():
            raise ValueError("agents.model is empty; give a model's id, such as claude-sonnet-5-5.")
        return model

    @field_validator("base_url")
    @classmethod
    def _reachable(cls, url: str | None) -> str | None:
        if url is not None:
            _check_url(url)
        return url

    @model_validator(mode="after")
    def _consistent(self) -> LlmSettings:
        if self.thinking == "enabled" and self.thinking_budget is None:
            raise ValueError(
                "agents.thinking is `enabled`, which needs agents.thinking_budget (tokens, >= "
                f"{MIN_THINKING_BUDGET}); newer models take `adaptive` instead."
            )
        return self

    @property
    def thinking_type(self) -> Thinking | None:
        """The API's thinking type in effect, or None if nothing is sent."""
        if self.thinking is None and self.thinking_budget is not None:
            return "enabled"
        return self.thinking

    @property
    def thinks(self) -> bool:
        """Whether thinking is enabled, so that no tool can be forced and no temperature set."""
        return self.thinking_type in ("enabled", "adaptive")

    @property
    def url(self) -> str:
        """URL of requests, or the provider's name where its SDK finds the address. `ANTHROPIC_BASE_URL` is
        ignored: only the settings count."""
        return _SERVERS[self.provider] if self.base_url is None else self.base_url

    @property
    def lists_models(self) -> bool:
        """Whether the provider has a models endpoint."""
        return self.provider in ("anthropic", "openai")

    @property
    def takes_environment_key(self) -> bool:
        """Whether requests carry the key that the environment gives: to the public server and to servers on
        this machine. Any other server gets the key of `key_file` or none, because the environment's key was
        not meant for it."""
        if self.key_file is not None or self.provider not in KEY_ENVS:
            return False
        return _origin(self.url) == _origin(_SERVERS[self.provider]) or self.is_on_this_machine

    @property
    def is_on_this_machine(self) -> bool:
        """Whether the server is on loopback, so that the environment's proxy must not be used: it would see
        the key."""
        return _is_loopback(urllib.parse.urlsplit(self.url))

    def output_tokens(self, max_tokens: int) -> int:
        """`max_tokens` of the request for an answer of `max_tokens`, since thinking counts too. Before the
        model's capabilities are known it is an upper bound."""
        thinking = 0 if self.thinking in ("disabled", "between_tools") else self.thinking_tokens
        if self.thinks and self.thinking_budget is not None:
            thinking = self.thinking_budget
        return min(max_tokens + thinking, self.max_output or max_tokens + thinking)


def _check_url(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "agents.base_url holds a user name or password; it is written into the journal. Remove it and "
            "give a key through ANTHROPIC_API_KEY or ANTHROPIC_API_KEY_FILE."
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"agents.base_url is {url!r}; must be an address such as http://10.0.0.5:8000, without /v1."
        )


def is_same_server(url: str, other: str) -> bool:
    """Whether two addresses have the same scheme, host and port."""
    return _origin(url) == _origin(other)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _is_loopback(parts: urllib.parse.SplitResult) -> bool:
    if parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
