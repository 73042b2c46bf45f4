"""Load callables that a configuration names as `package.module:factory`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from llmzero_ray.errors import ConfigError


def load_factory(name: str, *, field: str) -> Callable[..., Any]:
    """The callable that a configuration field names.

    Raises:
        ConfigError: it is not importable or not callable.
    """
    module, _, attribute = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{field} is {name!r}, which cannot be loaded: {error}") from error
    if not callable(factory):
        raise ConfigError(f"{field} is {name!r}, which is a {type(factory).__name__}; must be callable")
    found: Callable[..., Any] = factory
    return found
