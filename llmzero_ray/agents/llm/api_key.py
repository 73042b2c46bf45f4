"""Reads the API key in the process and at the time of a call. The key is never stored or printed."""

from __future__ import annotations

import os
from pathlib import Path

from llmzero_ray.agents.llm.errors import LlmCallError
from llmzero_ray.agents.llm.settings import LlmSettings

_OPTIONAL = ("bedrock", "vertex")
"""Providers whose SDK finds credentials of another kind."""
KEYLESS = "no-key-needed"
"""Placeholder token for your own server without a key, because the SDK requires one."""

_MAX_KEY_BYTES = 4096


def read_key(settings: LlmSettings) -> str | None:
    """API key for the server of `settings`. None if no key is configured and the server may not need one:
    your own, or one whose SDK finds other credentials.

    Raises:
        LlmCallError: kind `no_key`: a public server has no key, or the key or its file is unusable.
    """
    if settings.key_file is not None:
        return _checked(_read(settings.key_file, "agents.key_file"), "the file that agents.key_file names")
    if not settings.takes_environment_key:
        return None  # your own server, or credentials of another kind
    from_env = os.environ.get(settings.key_env, "").strip()
    if from_env:
        return _checked(from_env, settings.key_env)
    file = os.environ.get(settings.key_file_env, "").strip()
    if file:
        return _checked(_read(file, settings.key_file_env), f"the file that {settings.key_file_env} names")
    if settings.base_url is not None or settings.provider in _OPTIONAL:
        return None
    raise LlmCallError(
        f"No API key: neither {settings.key_env} nor {settings.key_file_env} is set in the process that "
        f"calls {settings.model}. Set one of them there, give agents.base_url for a server of your own, or "
        "choose agents.backend: expert.",
        kind="no_key",
    )


def is_missing(settings: LlmSettings) -> bool:
    """Whether a key is needed but none is configured, so that the server cannot be called."""
    if settings.provider in _OPTIONAL:
        return False
    named = (settings.key_file, os.environ.get(settings.key_env), os.environ.get(settings.key_file_env))
    return settings.base_url is None and not any((name or "").strip() for name in named)


def _read(file: str, name: str) -> str:
    try:
        with Path(file).open("rb") as opened:
            text = opened.read(_MAX_KEY_BYTES + 1).decode("ascii", errors="replace").strip()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise LlmCallError(
            f"{name} names {file!r}, which cannot be read ({reason}).", kind="no_key"
        ) from error
    if not text:
        raise LlmCallError(f"{name} names {file!r}, which is empty; it must hold the key.", kind="no_key")
    return text


def _checked(key: str, source: str) -> str:
    # A header takes only printable ASCII. The HTTP library's own error would quote the key.
    if len(key) > _MAX_KEY_BYTES or not all("!" <= letter <= "~" for letter in key):
        raise LlmCallError(
            f"The API key in {source} is too long, or holds spaces, line breaks or other characters that no "
            "key has. Copy the key alone, on one line.",
            kind="no_key",
        )
    return key
