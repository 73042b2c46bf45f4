"""Search methods other than the tree search, and commands that compare and report them: an extension.

Your own search method is a subclass of `PlannedSearch` that defines `next_run` (docs/extend.md). The core
imports nothing from this package: pyproject.toml registers its methods and commands as entry points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmzero_ray.methods.planned_search import PlannedSearch
    from llmzero_ray.methods.run_plan import RunPlan

__all__ = ["PlannedSearch", "RunPlan"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # imported late, because listing the commands does not need it
        from llmzero_ray.methods import planned_search

        return getattr(planned_search, name)
    raise AttributeError(f"module 'llmzero_ray.methods' has no attribute {name!r}")
