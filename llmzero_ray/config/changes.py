"""Configuration changes of a running search: the keys that may change, and differences of two
configurations."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from llmzero_ray.config import SearchConfig, parse_config
from llmzero_ray.config.loading import set_key
from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.errors import ConfigError

CHANGEABLE = (
    "budget",
    "slots.count",
    "slots.gpu_memory_gib",
    "slots.timeout_s",
    "slots.max_infra_retries",
    "checkpoints",
    "engine.stop_deadline_s",
    "engine.start_timeout_s",
    "engine.hang_min_s",
    "engine.hang_factor",
    "agents.deadline_s",
    "agents.on_cap",
    "agents.approve",
    "agents.approve_hours",
    "final.default_recipe",
    "final.test",
)
"""Keys (or whole blocks) that may be changed during a search: limits, hardware, and measurements after its
end, but nothing that its results depend on."""


def is_changeable(key: str) -> bool:
    """Whether a search may continue with another value of this dotted key."""
    block, dot, _ = key.partition(".")
    return key in CHANGEABLE or (bool(dot) and block in CHANGEABLE)


def with_changes(config: SearchConfig, changes: Mapping[str, Any]) -> SearchConfig:
    """The configuration with dotted keys replaced, checked as a whole.

    Raises:
        ConfigError: a key is unknown or may not be changed during a search, or a value is not allowed.
    """
    data = config.to_json()
    for key, value in changes.items():
        set_key(data, key, value)
    changed = parse_config(data, source="the changed configuration")
    fixed = [key for key in changes if not is_changeable(key)]
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)}: cannot be changed once a search has begun; what can: "
            f"{', '.join(CHANGEABLE)}. Start a search of another `name` for the rest."
        )
    return changed


def read_settings(settings: Iterable[str]) -> dict[str, Any]:
    """`key=value` strings as dotted keys with YAML values, for `with_changes`.

    Raises:
        ConfigError: a string is not of that form, or names a whole block.
    """
    found: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{setting!r} is not of the form key=value, such as budget.runs=24")
        value = read_yaml(text, source=key.strip())
        if isinstance(value, Mapping):
            raise ConfigError(
                f"{setting!r} replaces a whole block; set its keys one by one, such as budget.runs=24"
            )
        found[key.strip()] = value
    return found


def settings_text(changes: Mapping[str, Any]) -> str:
    """`read_settings` in reverse, as words of a command."""
    return " ".join(shlex.quote(f"{key}={json.dumps(value)}") for key, value in changes.items())


def changed_text(before: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """`budget.runs 8 → 12`, of the settings that have another value than before."""
    return ", ".join(
        f"{key} {before.get(key)} → {value}" for key, value in changes.items() if before.get(key) != value
    )


def differing_keys(old: SearchConfig, new: SearchConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (old, new) of every field that differs. `storage` is left out, because a search may be
    moved."""
    before, after = _flatten(old.to_json()), _flatten(new.to_json())
    keys = [key for key in (*before, *(k for k in after if k not in before)) if key != "storage"]
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def _flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
