"""What a method that plans its runs wants of one: which recipe, from where, how long. A plain value.

It travels in the decision's `seen`, so that the journal holds it, and reaches whoever makes the proposal. Not
here: who plans (planned_search.py and the methods), values of hyper-parameters (agents/methods).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Recipe: TypeAlias = Literal["default", "draw", "cell", "suggest", "unchanged", "perturb", "explore", "phase"]
"""`default`: the root's · `draw`: drawn from the ranges · `cell`: of the grid · `suggest`: by a sampler that
sees earlier scores · `unchanged`: as where it starts · `perturb`: one to three hyper-parameters moved ·
`explore`: as population based training does · `phase`: of the schedule."""
Start: TypeAlias = Literal["base", "last", "best"]
"""The base model, or the last or the best adapter of the node that the run is created on."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """One planned run."""

    recipe: Recipe
    start: Start = "base"
    units: float = 1.0
    """Length, in usual phases (`phase.n_steps`)."""
    number: int = 0
    """Of the draw, the grid's cell, the suggestion or the schedule's phase, from 0; of a population's run its
    member. -1: a person asked for the run."""
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunPlan:
        """The plan that `to_dict` wrote."""
        return cls(**data)
