"""Search for a multi-stage RL post-training strategy as a tree of GRPO phases.

    import llmzero_ray

    search = llmzero_ray.run("search.yaml", budget={"runs": 8}).wait()
    search.nodes().to_pandas()

Importing this package is cheap: Ray, torch and VeRL are imported only when needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from llmzero_ray.version import __version__

if TYPE_CHECKING:
    from llmzero_ray.api import RunningSearch, Search, open, prepare, retrain, run  # noqa: A004
    from llmzero_ray.coordinator.follow import RunStatus

__all__ = ["RunStatus", "RunningSearch", "Search", "__version__", "open", "prepare", "retrain", "run"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("llmzero_ray.api"), name)
    raise AttributeError(f"module 'llmzero_ray' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
