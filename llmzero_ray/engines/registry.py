"""Creates an engine by name from the configuration. Heavy libraries are imported only when one is created."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmzero_ray.engines.base import Engine, Slot
from llmzero_ray.utils.plugins import make

if TYPE_CHECKING:
    from llmzero_ray.config import SearchConfig
    from llmzero_ray.prepared import PreparedTask


def make_engine(config: SearchConfig, task: PreparedTask, slot: Slot, log_dir: str) -> Engine:
    """Engine that `engine.backend` names: `verl`, or a plug-in's.

    `log_dir` is the directory for the engine's own log.

    Raises:
        ConfigError: there is no engine of that name, or it cannot be made.
    """
    backend = config.engine.backend
    if backend == "verl":
        from llmzero_ray.engines.verl.factory import make_verl_engine

        return make_verl_engine(config, task, slot, log_dir)
    engine: Engine = make(backend, config, task, slot, field="engine.backend")
    return engine
