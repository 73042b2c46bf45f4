"""Pass the API key of the agents' model to the processes that call the model, and to no others.

One environment variable may contain the key itself, another the path of a file with it. A private Ray head
and everything on it inherit the command's environment, so both variables are removed while Ray starts. The
coordinator and the stopper, which call the model, get the path of a file instead. The key itself is never an
argument of an actor or part of a runtime environment.

Not here: reading the key for a call (agents/llm/api_key.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from llmzero_ray.utils.private_files import PrivateEntry, private_file

KEY_ENV = "ANTHROPIC_API_KEY"
KEY_FILE_ENV = "ANTHROPIC_API_KEY_FILE"
KEY_ENVS = {
    "anthropic": KEY_ENV,
    "bedrock": "AWS_BEARER_TOKEN_BEDROCK",
    "foundry": "ANTHROPIC_FOUNDRY_API_KEY",
    "openai": "OPENAI_API_KEY",
}
"""Provider -> variable with its key. The variable with the suffix `_FILE` names a file with the key. Other
providers have no key of their own."""
CUSTOM_HEADERS_ENV = "ANTHROPIC_CUSTOM_HEADERS"
"""Headers that Anthropic's SDK adds to every request of a process."""
KEY_VARIABLES = (
    *(name for key in KEY_ENVS.values() for name in (key, f"{key}_FILE")),
    "ANTHROPIC_AUTH_TOKEN",
)
"""Variables that must not reach other processes. The last one is read only by Anthropic's SDK."""
SECRET_VARIABLES = (*KEY_VARIABLES, CUSTOM_HEADERS_ENV)
"""Variables with keys or the user's headers, which only processes that call the model need."""

NOTIFY_URLS = "LLMZERO_NOTIFY_URLS"
"""Variable with the addresses of the services that get alerts, in Apprise's notation, including keys."""
TRACKER_KEYS = (
    "WANDB_API_KEY",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_PASSWORD",
    "SWANLAB_API_KEY",
    "CLEARML_API_SECRET_KEY",
    "HF_TOKEN",
    "OPTUNA_STORAGE",
    NOTIFY_URLS,
)
"""Variables with keys of experiment trackers, which only the processes that send to them need. `HF_TOKEN` is
trackio's; the address in `OPTUNA_STORAGE` may contain a password."""

_written: list[PrivateEntry] = []


def without_key(environment: Mapping[str, str]) -> dict[str, str]:
    """A copy of an environment without the key, the name of its file, and the user's headers."""
    return {name: value for name, value in environment.items() if name not in SECRET_VARIABLES}


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """A copy of an environment for a process that calls no server: like `without_key`, and without the keys
    of trackers and Ray's token."""
    hidden = {"RAY_AUTH_TOKEN", *TRACKER_KEYS}
    return {name: value for name, value in without_key(environment).items() if name not in hidden}


@contextlib.contextmanager
def key_hidden(*others: str) -> Iterator[None]:
    """Context in which this process's environment lacks the key variables and `others`, so that processes
    started in it do not inherit them. They are restored at the end."""
    held = {name: os.environ.pop(name) for name in (*KEY_VARIABLES, *others) if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(held)


def key_file(storage: str, *, private_head: bool, key_env: str = KEY_ENV) -> str | None:
    """Path of a file with the key that `key_env` gives this process, for actors that call the model. None if
    they have to find a key themselves.

    For a private head, a key in the environment is written to a file in the user's runtime directory, outside
    `storage`, and kept until `remove_key_file`. Other heads may run on another machine. A file that
    `<key_env>_FILE` names is passed on unchanged.

    Raises:
        StorageError: there is no directory for the file that only this user can access.
    """
    key, named = (os.environ.get(name, "").strip() for name in (key_env, f"{key_env}_FILE"))
    if key and private_head:
        _written.append(private_file("key", key + "\n", outside=Path(storage)))
        return str(_written[-1].path)
    return os.path.abspath(named) if named else None


def tracker_key_file(storage: str, *, private_head: bool) -> str | None:
    """Path of a file with the trackers' keys from this process's environment as a JSON object, for the
    process that sends to them. None if there are no keys, or if the head is not private and may run on
    another machine.

    Raises:
        StorageError: there is no directory for the file that only this user can access.
    """
    found = {name: os.environ[name] for name in TRACKER_KEYS if os.environ.get(name)}
    if not found or not private_head:
        return None
    _written.append(private_file("trackers", json.dumps(found), outside=Path(storage)))
    return str(_written[-1].path)


def use_key_file(path: str | None, key_env: str = KEY_ENV) -> None:
    """Make this process read the key from `path`, unless its environment already has a key or its file."""
    names = (key_env, f"{key_env}_FILE")
    if path is not None and not any(os.environ.get(name, "").strip() for name in names):
        os.environ[f"{key_env}_FILE"] = path


@contextlib.contextmanager
def key_file_in_use(path: str | None, key_env: str = KEY_ENV) -> Iterator[None]:
    """Context with the effect of `use_key_file`, for a process that is used for something else afterwards."""
    file_env = f"{key_env}_FILE"
    before = os.environ.get(file_env)
    use_key_file(path, key_env)
    try:
        yield
    finally:
        os.environ.pop(file_env, None)
        if before is not None:
            os.environ[file_env] = before


def remove_key_file() -> None:
    """Delete the files that `key_file` and `tracker_key_file` wrote. Idempotent."""
    while _written:
        _written.pop().remove()
