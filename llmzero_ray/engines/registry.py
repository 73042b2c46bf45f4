"""From the configuration to an engine, by name; heavy imports happen only when one is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmzero_ray.engines.base import Engine, Slot
from llmzero_ray.utils.plugins import load_factory

if TYPE_CHECKING:
    from llmzero_ray.config import SearchConfig
    from llmzero_ray.prepared import PreparedTask


def make_engine(config: SearchConfig, task: PreparedTask, slot: Slot, log_dir: str) -> Engine:
    """The engine that `engine.backend` names: `verl`, or one of a plug-in.

    `log_dir` receives the engine's own log.

    Raises:
        ConfigError: the name leads nowhere.
    """
    backend = config.engine.backend
    if backend == "verl":
        from llmzero_ray.engines.verl.factory import make_verl_engine

        return make_verl_engine(config, task, slot, str(Path(log_dir)))
    engine: Engine = engine_factory(backend)(config, task, slot)
    return engine


def engine_factory(backend: str) -> Callable[..., Any]:
    """The factory of an engine that is not `verl`.

    Raises:
        ConfigError: the name leads nowhere.
    """
    return load_factory(backend, field="engine.backend")
