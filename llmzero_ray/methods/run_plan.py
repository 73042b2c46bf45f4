"""The run that a method wants next: where it starts, what it changes, how long it is. A plain value.

The journal stores it as the `plan` of a decision. Not here: planning (planned_search.py and the methods),
turning a plan into a proposal (plan_proposer.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from llmzero_ray.records import HyperparameterValue

Start: TypeAlias = Literal["base", "last", "best"]
"""The base model, or the last or the best adapter of the run `on`."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """One planned run."""

    on: int | None = field(default=None, compare=False)
    """Run whose adapter it starts from, or None for the base model."""
    start: Start = "base"
    changes: Mapping[str, HyperparameterValue] = field(default_factory=dict)
    """Hyper-parameter -> new value. Others keep their values from the run's start."""
    units: float = 1.0
    """Length in standard phases (`phase.n_steps` steps). It is cut to the remaining budget."""
    why: str = ""
    """Reason for the report, without a full stop."""
    source: str = "own"
    """Source of further values. `draw`: random values from `search.ranges`. Methods define other names."""
    number: int = 0
    """Number of the draw, cell, suggestion or phase of a schedule, from 0. In a population, the member. -1 if
    the user requested the run."""

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values, without `on`, which the decision already has."""
        own = {"recipe": self.source, "start": self.start, "units": self.units, "number": self.number}
        return {**own, "why": self.why, **({"changes": dict(self.changes)} if self.changes else {})}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunPlan:
        """Inverse of `to_dict`. Journals call `source` `recipe`."""
        return cls(**{"source" if key == "recipe" else key: value for key, value in data.items()})
