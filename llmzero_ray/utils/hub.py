"""Access to the Hugging Face Hub through `huggingface_hub`: token, client, and clear messages for failures.

The token is read where `huggingface_hub` looks for it (HF_TOKEN, or the file of `hf auth login`). It is sent
only in the header of requests, and is never part of an argument, a message or a log.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from llmzero_ray.errors import ConfigError, HubError, LlmzeroError
from llmzero_ray.utils.text import one_line

INSTALL = "pip install 'llmzero-ray[hub]'"
_CONNECT_S, _ANSWER_S = 15.0, 300.0
"""Timeouts for connecting and for an answer, in seconds. huggingface_hub itself waits forever."""


def endpoint() -> str:
    """Address of the Hub: HF_ENDPOINT, or the public one."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def hub_api(token: str | None) -> Any:
    """A `huggingface_hub.HfApi` for `endpoint()`, with timeouts.

    Raises:
        ConfigError: `huggingface_hub` is not installed.
    """
    try:
        import httpx
        import huggingface_hub
    except ImportError as error:
        raise ConfigError(f"the Hugging Face Hub needs huggingface_hub ({error}): {INSTALL}.") from error
    huggingface_hub.get_session().timeout = httpx.Timeout(_ANSWER_S, connect=_CONNECT_S)
    return huggingface_hub.HfApi(endpoint=endpoint(), token=token or False)


def find_token() -> str | None:
    """The user's token, from HF_TOKEN or from the file that `hf auth login` writes (HF_TOKEN_PATH), or None.

    Raises:
        ConfigError: `huggingface_hub` is not installed.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise ConfigError(f"the Hugging Face Hub needs huggingface_hub ({error}): {INSTALL}.") from error
    token: str | None = huggingface_hub.get_token()
    return token


def required_token() -> str:
    """The user's token.

    Raises:
        ConfigError: there is none.
    """
    token = find_token()
    if token is None:
        raise ConfigError(
            "there is no token of the Hugging Face Hub. Set HF_TOKEN, or sign in once with `hf auth login`; "
            "the token needs the right to write."
        )
    return token


@contextlib.contextmanager
def hub_errors(doing: str, token: str | None) -> Iterator[None]:
    """Context that turns errors of the Hub into a `HubError`. Its message begins with `doing` and never shows
    the token."""
    import httpx
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        yield
    except LlmzeroError:
        raise
    except OfflineModeIsEnabled:
        raise HubError(f"{doing}: HF_HUB_OFFLINE is set. Unset it, or use what is on this machine.") from None
    except HFValidationError as error:
        raise HubError(f"{doing}: {_safe(error, token)}") from None
    except HfHubHTTPError as error:
        raise HubError(f"{doing}: {_refusal(error, token)}") from None
    except (httpx.TransportError, ConnectionError) as error:
        raise HubError(
            f"{doing}: {endpoint()} cannot be reached ({type(error).__name__}: {_safe(error, token)}). "
            "Check the network, a proxy (HTTPS_PROXY) and HF_ENDPOINT, then run the same command again."
        ) from None
    except (OSError, RuntimeError, ValueError, KeyError, UnicodeError) as error:
        raise HubError(f"{doing}: {type(error).__name__}: {_safe(error, token)}") from None


def _refusal(error: Any, token: str | None) -> str:
    """Explanation of the Hub's HTTP status, with the remedy."""
    status = error.response.status_code
    said = _safe(error.server_message or "", token)
    said = f" ({said})" if said else ""
    if status == 401 and token is None:
        return f"the Hub asks for a token{said}. Set HF_TOKEN, or sign in with `hf auth login`."
    if status == 401:
        return (
            f"the Hub refuses the token{said}. It has expired, was revoked or is mistyped: make a new one at "
            f"{endpoint()}/settings/tokens."
        )
    if status == 403:
        return (
            f"the token may not do that{said}: the repository belongs to another owner, or the token lacks "
            "the right. Name a repository of your own, or use a token with that right."
        )
    if status == 404:
        return f"not found{said}. Check the id; a private or gated one needs a token with access to it."
    if status == 429:
        return f"the Hub takes no more requests now{said}. Wait, then run the same command again."
    return f"the Hub answered with status {status}{said}. Run the same command again later."


def _safe(error: object, token: str | None) -> str:
    text = str(error)
    return one_line(text.replace(token, "***") if token else text)
