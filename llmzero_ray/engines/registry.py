"""From the configuration to an engine, by name; heavy imports happen only when one is made."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from llmzero_ray.engines.base import Engine, Slot
from llmzero_ray.errors import ConfigError

if TYPE_CHECKING:
    from llmzero_ray.config import SearchConfig
    from llmzero_ray.tasks import PreparedTask

Factory = Callable[["SearchConfig", "PreparedTask", Slot], Engine]


def make_engine(config: SearchConfig, task: PreparedTask, slot: Slot, log_dir: str) -> Engine:
    """The engine that `engine.backend` names: `verl`, or `package.module:factory` of a plug-in.

    `log_dir` receives the engine's own log.

    Raises:
        ConfigError: the name leads nowhere.
    """
    backend = config.engine.backend
    if backend == "verl":
        from llmzero_ray.engines.verl.factory import make_verl_engine

        return make_verl_engine(config, task, slot, str(Path(log_dir)))
    return load_factory(backend)(config, task, slot)


def load_factory(backend: str) -> Factory:
    """The factory behind `package.module:name`.

    Raises:
        ConfigError: malformed, not importable, or not callable.
    """
    module_name, _, name = backend.partition(":")
    if not name:
        raise ConfigError(f"engine.backend is {backend!r}; must be verl or package.module:factory")
    try:
        factory = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"engine.backend is {backend!r}, which cannot be loaded: {error}") from error
    if not callable(factory):
        raise ConfigError(
            f"engine.backend is {backend!r}, which is a {type(factory).__name__}; must be callable"
        )
    found: Factory = factory
    return found
