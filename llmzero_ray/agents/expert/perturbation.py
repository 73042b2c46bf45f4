"""Hyper-parameters that proposers without a diagnosis change, each with its scale and step size.

Not here: bounds and couplings (`Space`, apply_moves.py).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from llmzero_ray.agents.expert.apply_moves import ProposalBase, moved_towards, valid
from llmzero_ray.hyperparameters import VERL_SPACE
from llmzero_ray.hyperparameters.verl_keys import (
    CLIP_HIGH,
    KL_LOSS_COEF,
    LR,
    MAX_RESPONSE,
    ROLLOUT_N,
    TEMPERATURE,
    TRAIN_BATCH,
    WARMUP_RATIO,
)
from llmzero_ray.records import Change, Hyperparameters, HyperparameterValue
from llmzero_ray.utils.text import is_number


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """One hyper-parameter, on the scale of its steps."""

    key: str
    step: float
    """Step size: in the logarithm of the value if `log`, otherwise in the value."""
    log: bool = True

    def coordinate(self, value: HyperparameterValue) -> float | None:
        """Coordinate of a value on this scale. None if it is not a number, or 0 on a logarithmic scale."""
        if not is_number(value) or (self.log and value <= 0):
            return None
        return math.log(value) if self.log else float(value)

    def value(self, coordinate: float) -> float:
        """Value at a coordinate."""
        return math.exp(coordinate) if self.log else coordinate


DIMENSIONS: tuple[Dimension, ...] = (
    Dimension(key=LR, step=math.log(2.0)),
    Dimension(key=TEMPERATURE, step=0.15, log=False),
    Dimension(key=KL_LOSS_COEF, step=math.log(2.0)),
    Dimension(key=ROLLOUT_N, step=math.log(1.5)),
    Dimension(key=TRAIN_BATCH, step=math.log(1.5)),
    Dimension(key=WARMUP_RATIO, step=0.3, log=False),
    Dimension(key=CLIP_HIGH, step=0.05, log=False),
    Dimension(key=MAX_RESPONSE, step=math.log(1.33)),
)


def live_dimensions(base: Hyperparameters) -> tuple[Dimension, ...]:
    """Dimensions with an effect in this configuration and a current value to move from."""
    inert = VERL_SPACE.inert(base)
    return tuple(
        dimension
        for dimension in DIMENSIONS
        if dimension.key not in inert and dimension.coordinate(base.get(dimension.key)) is not None
    )


def moved_value(base: ProposalBase, dimension: Dimension, distance: float) -> HyperparameterValue:
    """Bounded and rounded value at this distance from the base's value, or None if it equals that value."""
    old = base.hyperparameters.get(dimension.key)
    place = dimension.coordinate(old)
    if place is None or not isinstance(old, int | float):
        return None
    return moved_towards(base, dimension.key, old, dimension.value(place + distance))


def changes_of(
    base: ProposalBase, wanted: dict[str, tuple[HyperparameterValue, str]]
) -> tuple[tuple[Change, ...], dict[str, HyperparameterValue]] | None:
    """(changes with their reasons, configuration) for the wanted values, or None if none of them is valid.

    A value that breaks a coupling is left out.
    """
    changes: list[Change] = []
    for key, (new, reason) in wanted.items():
        change = Change(key=key, old=base.hyperparameters.get(key), new=new, reason=reason)
        if change.old != new and valid(base, [*changes, change]) is not None:
            changes.append(change)
    full = valid(base, changes)
    return (tuple(changes), full) if changes and full is not None else None


def perturbed(base: ProposalBase, rng: random.Random) -> dict[str, HyperparameterValue]:
    """One to three hyper-parameters moved by half to two step sizes, up or down."""
    for _ in range(100):
        dimensions = live_dimensions(base.hyperparameters)
        chosen = rng.sample(dimensions, min(len(dimensions), rng.randint(1, 3)))
        moved = {
            dimension.key: moved_value(
                base, dimension, rng.choice((-1, 1)) * rng.uniform(0.5, 2) * dimension.step
            )
            for dimension in chosen
        }
        made = changes_of(base, {key: (new, "by chance") for key, new in moved.items() if new is not None})
        if made is not None:
            return {change.key: change.new for change in made[0]}
    return {}
