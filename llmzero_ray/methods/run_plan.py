"""The run that a method wants next: where it starts, what it changes, how long it is. A plain value.

The journal holds it as the `plan` of a decision. Not here: who plans (planned_search.py and the methods), the
proposal that is made of it (plan_proposer.py).
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
    """Run whose adapter it starts from; None for the base model."""
    start: Start = "base"
    changes: Mapping[str, HyperparameterValue] = field(default_factory=dict)
    """Hyper-parameter -> its new value; the others stay as they are where the run starts."""
    units: float = 1.0
    """Length, in standard phases (`phase.n_steps` steps); no more than the budget has left is trained."""
    why: str = ""
    """Reason in words, without a full stop: people read it in the report."""
    source: str = "own"
    """Source of further values. `draw`: from `search.ranges`; other names are the method's own."""
    number: int = 0
    """Number of the draw, cell, suggestion or schedule's phase, from 0; of a population's run its member.
    -1: a person asked for the run."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values only, without `on`, which the decision itself names."""
        own = {"recipe": self.source, "start": self.start, "units": self.units, "number": self.number}
        return {**own, "why": self.why, **({"changes": dict(self.changes)} if self.changes else {})}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunPlan:
        """The plan that `to_dict` wrote. Journals name `source` `recipe`."""
        return cls(**{"source" if key == "recipe" else key: value for key, value in data.items()})
