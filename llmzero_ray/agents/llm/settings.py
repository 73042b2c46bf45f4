"""How a language model is reached and asked: settings without the key, safe to print, pickle and journal."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass
from typing import Literal, TypeAlias

from llmzero_ray.errors import ConfigError

PUBLIC_URL = "https://api.anthropic.com"

Thinking: TypeAlias = Literal["enabled", "adaptive", "between_tools", "disabled"]
Effort: TypeAlias = Literal["low", "medium", "high", "xhigh", "max"]

_MIN_THINKING_BUDGET = 1024


@dataclass(frozen=True, kw_only=True)
class LlmSettings:
    """One model and the manner of asking it. Which values of thinking, effort and temperature are accepted
    depends on the model; what it refuses comes back as its own message."""

    model: str
    base_url: str | None = None
    """Another server of the Messages API, such as vLLM inside the cluster; None: Anthropic's."""
    max_tokens: int = 2048
    """Room for an answer where the caller has no opinion."""
    temperature: float | None = None
    """None: not sent, the model's default. Left out with thinking."""
    thinking: Thinking | None = None
    """The API's thinking type. None: not sent, the model's default; with a `thinking_budget` the same as
    `enabled`."""
    thinking_budget: int | None = None
    """Tokens for thinking on top of an answer's own. With `enabled` the API's `budget_tokens`; with
    `adaptive` only room, since the model decides by `effort`."""
    effort: Effort | None = None
    """How much work goes into an answer; None: not sent, the model's default."""
    deadline_s: float = 120.0
    """Seconds of wall clock for one call with everything it needs."""
    check_deadline_s: float = 20.0
    """The same for the check at start-up."""
    backoff_s: float = 1.0
    """Wait before the first retry, at most; doubled from retry to retry."""
    backoff_max_s: float = 30.0
    """Longest wait between two tries that the server has not asked for."""
    seed: int | None = None
    """Seed of the jitter; None: different in every process."""
    key_env: str = "ANTHROPIC_API_KEY"
    """Environment variable that holds the key."""
    key_file_env: str = "ANTHROPIC_API_KEY_FILE"
    """Environment variable that names a file with the key; read when `key_env` is not set."""

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise ConfigError("agents.model is empty; give a model's id, such as claude-sonnet-5-5.")
        if self.base_url is not None:
            _check_url(self.base_url)
        for name in ("deadline_s", "check_deadline_s", "backoff_s", "backoff_max_s"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ConfigError(f"agents.{name} is {value} (seconds); must be a number > 0.")
        if self.max_tokens < 1:
            raise ConfigError(f"agents.max_tokens is {self.max_tokens}; must be >= 1.")
        if self.thinking_budget is not None and self.thinking_budget < _MIN_THINKING_BUDGET:
            raise ConfigError(
                f"agents.thinking_budget is {self.thinking_budget} (tokens); the API takes "
                f">= {_MIN_THINKING_BUDGET}. Leave it out to ask without a budget."
            )
        if self.thinking == "enabled" and self.thinking_budget is None:
            raise ConfigError(
                "agents.thinking is `enabled`, which needs agents.thinking_budget (tokens, >= "
                f"{_MIN_THINKING_BUDGET}); newer models take `adaptive` instead."
            )

    @property
    def thinking_type(self) -> Thinking | None:
        """The API's thinking type in effect; None: nothing is sent."""
        if self.thinking is None and self.thinking_budget is not None:
            return "enabled"
        return self.thinking

    @property
    def thinks(self) -> bool:
        """Thinking was asked for, so that no tool can be forced and no temperature set."""
        return self.thinking_type in ("enabled", "adaptive")

    @property
    def url(self) -> str:
        """Where requests go. `ANTHROPIC_BASE_URL` is not read: the settings alone decide."""
        return PUBLIC_URL if self.base_url is None else self.base_url

    def output_tokens(self, max_tokens: int) -> int:
        """The request's `max_tokens` for an answer of `max_tokens`: thinking counts against it too."""
        room = self.thinking_budget if self.thinks and self.thinking_budget is not None else 0
        return max_tokens + room


def _check_url(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            "agents.base_url holds a user name or password; it is written into the journal. Remove it and "
            "give a key through ANTHROPIC_API_KEY or ANTHROPIC_API_KEY_FILE."
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"agents.base_url is {url!r}; must be an address such as http://10.0.0.5:8000, without /v1."
        )
