"""Providers of language models: their SDKs and servers, and what each needs in the calling process."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Any

from llmzero_ray.agents.llm.api_key import KEYLESS
from llmzero_ray.agents.llm.errors import LlmCallError
from llmzero_ray.agents.llm.settings import LlmSettings
from llmzero_ray.errors import ConfigError

_CLASSES = {
    "anthropic": "AsyncAnthropic",
    "bedrock": "AsyncAnthropicBedrock",
    "vertex": "AsyncAnthropicVertex",
    "foundry": "AsyncAnthropicFoundry",
    "openai": "AsyncOpenAI",
}
_PACKAGES = {
    "anthropic": (("anthropic", "llmzero-ray[llm]"),),
    "bedrock": (("anthropic", "llmzero-ray[llm]"), ("boto3", "anthropic[bedrock]")),
    "vertex": (("anthropic", "llmzero-ray[llm]"), ("google.auth", "anthropic[vertex]")),
    "foundry": (("anthropic", "llmzero-ray[llm]"),),
    "openai": (("anthropic", "llmzero-ray[llm]"), ("openai", "llmzero-ray[llm]")),
}
"""Provider -> (module, what to install)."""
NEEDS = {
    "bedrock": "Set AWS_REGION in the process that calls, and give it AWS credentials: variables, a profile "
    "or a role.",
    "vertex": "Set CLOUD_ML_REGION and ANTHROPIC_VERTEX_PROJECT_ID in the process that calls, and give it "
    "Google's default credentials: gcloud auth application-default login, or a service account.",
    "foundry": "Set ANTHROPIC_FOUNDRY_RESOURCE or agents.base_url in the process that calls, and its key.",
}
"""Remedy if a client cannot be made or finds no credentials."""


def check_packages(settings: LlmSettings) -> None:
    """Raise ConfigError if the provider's package is missing."""
    for module, source in _PACKAGES[settings.provider]:
        if not _is_installed(module):
            raise ConfigError(
                f"agents.provider {settings.provider!r} needs the package {module}, which is not installed: "
                f"pip install '{source}', or choose agents.backend: expert."
            )


def sdk_module(settings: LlmSettings) -> ModuleType:
    """SDK for the provider's protocol: anthropic or openai, which name their error classes alike."""
    return importlib.import_module("openai" if settings.provider == "openai" else "anthropic")


def sdk_client(settings: LlmSettings, key: str | None, **common: Any) -> Any:
    """Client of the provider's SDK. `key` is None if the provider uses other credentials.

    Raises:
        LlmCallError: kind no_key: the process lacks what the provider needs.
    """
    own: dict[str, Any] = {}
    if settings.lists_models:
        own = {"api_key": key or KEYLESS, "base_url": settings.url}
    elif settings.provider == "foundry":  # otherwise the SDK would send the environment's key to any server
        own = {"api_key": key or KEYLESS}
    elif key is not None:
        own = {"api_key": key}
    if settings.base_url is not None:
        own["base_url"] = settings.base_url
    try:
        return getattr(sdk_module(settings), _CLASSES[settings.provider])(**own, **common)
    except Exception as error:  # noqa: BLE001 - each SDK has its own error classes
        cure = NEEDS.get(settings.provider, "")
        text = f"No client of {settings.url} can be made ({type(error).__name__}). {cure}"
        raise LlmCallError(text.rstrip(), kind="no_key") from None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # the parent package is not installed
        return False
