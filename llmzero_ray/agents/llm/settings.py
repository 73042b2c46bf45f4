"""Settings of the client of a language model: without the key, safe to print, pickle and journal."""

from __future__ import annotations

import ipaddress
import urllib.parse
from typing import Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from llmzero_ray.config.yaml_text import StrictModel
from llmzero_ray.utils.api_key import KEY_ENV, KEY_FILE_ENV

PUBLIC_URL = "https://api.anthropic.com"

Thinking: TypeAlias = Literal["enabled", "adaptive", "between_tools", "disabled"]
Effort: TypeAlias = Literal["low", "medium", "high", "xhigh", "max"]

_MIN_THINKING_BUDGET = 1024


class LlmSettings(StrictModel):
    """One model and the manner of asking it. Which values of thinking, effort and temperature are accepted
    depends on the model; what it refuses comes back as its own message."""

    model: str
    """Id of the model, as its server names it."""
    base_url: str | None = None
    """Another server of the Messages API, such as vLLM inside the cluster; None: Anthropic's."""
    key_file: str | None = None
    """File with the key of the server at `base_url`; None: see `takes_environment_key`."""
    temperature: float | None = None
    """None: not sent, the model's default. Left out with thinking."""
    thinking: Thinking | None = None
    """The API's thinking type. None: not sent, the model's default; with a `thinking_budget` the same as
    `enabled`."""
    thinking_budget: int | None = Field(None, ge=_MIN_THINKING_BUDGET)
    """Tokens for thinking on top of an answer's own. With `enabled` the API's `budget_tokens`; with
    `adaptive` only room, since the model decides by `effort`."""
    effort: Effort | None = None
    """How much work goes into an answer; None: not sent, the model's default."""
    deadline_s: float = Field(120.0, gt=0)
    """Seconds of wall clock for one call with everything it needs."""
    check_deadline_s: float = Field(20.0, gt=0)
    """The same for the check at start-up."""
    key_env: str = KEY_ENV
    """Environment variable that holds the key."""
    key_file_env: str = KEY_FILE_ENV
    """Environment variable that names a file with the key; read when `key_env` is not set."""

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
                f"{_MIN_THINKING_BUDGET}); newer models take `adaptive` instead."
            )
        return self

    @property
    def thinking_type(self) -> Thinking | None:
        """The API's thinking type in effect; None: nothing is sent."""
        if self.thinking is None and self.thinking_budget is not None:
            return "enabled"
        return self.thinking

    @property
    def thinks(self) -> bool:
        """Whether thinking is enabled, so that no tool can be forced and no temperature set."""
        return self.thinking_type in ("enabled", "adaptive")

    @property
    def url(self) -> str:
        """Where requests go. `ANTHROPIC_BASE_URL` is not read: the settings alone decide."""
        return PUBLIC_URL if self.base_url is None else self.base_url

    @property
    def takes_environment_key(self) -> bool:
        """Whether requests carry the key that the environment gives: to the public server and to servers on
        this machine. Any other gets the key of `key_file` or none: the environment's was not meant for it."""
        if self.key_file is not None:
            return False
        return _origin(self.url) == _origin(PUBLIC_URL) or self.is_on_this_machine

    @property
    def is_on_this_machine(self) -> bool:
        """Whether the server is on loopback: a proxy of the environment is not for it, and would see the
        key."""
        return _is_loopback(urllib.parse.urlsplit(self.url))

    def is_own_server(self, url: str) -> bool:
        """Whether an address is of the server that the key is meant for: scheme, host and port of `url`."""
        return _origin(url) == _origin(self.url)

    def output_tokens(self, max_tokens: int) -> int:
        """The request's `max_tokens` for an answer of `max_tokens`: thinking counts against it too."""
        room = self.thinking_budget if self.thinks and self.thinking_budget is not None else 0
        return max_tokens + room


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
