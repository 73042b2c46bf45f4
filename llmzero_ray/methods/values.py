"""Values of hyper-parameters from ranges, grids and schedules, and from exploration in population training.

Factors of the default are relative to the root's value. Integers are rounded, floats are not. The caller
passes the random generator.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmzero_ray.agents.expert.apply_moves import ProposalBase
from llmzero_ray.config.schedule import ParameterRange, Schedule
from llmzero_ray.hyperparameters import BY_KEY, canonical
from llmzero_ray.records import Hyperparameters, HyperparameterValue
from llmzero_ray.records.agents import ProposalRequest
from llmzero_ray.utils.text import is_number

FACTORS = (1.2, 0.8)
"""Factors by which an explored value changes (Jaderberg et al. 2017; Ray Tune's default, in its order)."""
Values = dict[str, HyperparameterValue]


@dataclass(frozen=True, kw_only=True)
class PlannedStart:
    """Facts that are known when a planned run is proposed."""

    request: ProposalRequest
    base: ProposalBase
    """Configuration of the checkpoint that it starts from, or the root's."""
    rng: random.Random
    """Random generator of this proposal. After a rejection, the next try has another one."""

    @property
    def root(self) -> Hyperparameters:
        """The root's configuration."""
        return self.request.default


def scaled(key: str, factor: float, root: Hyperparameters) -> HyperparameterValue:
    """`factor` times the root's value. A value that is not a number is unchanged."""
    usual = root.get(key)
    if not is_number(usual):
        return usual
    return typed(key, factor * usual)


def typed(key: str, value: float) -> HyperparameterValue:
    """The number, converted to the hyper-parameter's type."""
    return max(1, round(value)) if BY_KEY[key].kind == "int" else float(value)


def drawn(ranges: Mapping[str, ParameterRange], root: Hyperparameters, rng: random.Random) -> Values:
    """Independent random value from every range."""
    return {key: draw(key, found, root, rng) for key, found in _by_key(ranges)}


def draw(key: str, found: ParameterRange, root: Hyperparameters, rng: random.Random) -> HyperparameterValue:
    """Random value from one range."""
    if found.choices:
        return rng.choice(choices(key, found, root))
    low, high = bounds(key, found, root)
    if found.log and low > 0:
        return typed(key, math.exp(rng.uniform(math.log(low), math.log(high))))
    return typed(key, rng.uniform(low, high))


def bounds(key: str, found: ParameterRange, root: Hyperparameters) -> tuple[float, float]:
    """(low, high) of a range without choices."""
    low, high = float(found.low or 0.0), float(found.high or 0.0)
    if not found.of_default:
        return low, high
    usual = root.get(key)
    scale = float(usual) if isinstance(usual, int | float) else 1.0
    return low * scale, high * scale


def choices(key: str, found: ParameterRange, root: Hyperparameters) -> Sequence[HyperparameterValue]:
    """Values of a range with choices."""
    if not found.of_default:
        return [typed(key, one) if is_number(one) else one for one in found.choices]
    return list(dict.fromkeys(scaled(key, float(one), root) for one in found.choices))


def n_cells(grid: Mapping[str, Sequence[float]]) -> int:
    """Number of cells of a grid."""
    return math.prod(len(factors) for factors in grid.values())


def grid_cell(grid: Mapping[str, Sequence[float]], root: Hyperparameters, number: int) -> Values:
    """Values of cell `number` (from 0); the last key varies fastest.

    Raises:
        ValueError: the grid does not have that many cells.
    """
    keys = [canonical(name) for name in grid]
    cells = list(itertools.product(*grid.values()))
    if number >= len(cells):
        raise ValueError(f"cell {number + 1} of a grid of {len(cells)}; set search.n_trials to {len(cells)}.")
    return {key: scaled(key, factor, root) for key, factor in zip(keys, cells[number], strict=True)}


def scheduled(schedule: Schedule, root: Hyperparameters, number: int) -> Values:
    """Values that the schedule sets up to and including phase `number` (from 0)."""
    usual = {canonical(name): value for name, value in schedule.relative_to.items()}
    values: Values = {}
    for phase in schedule.phases[: number + 1]:
        for name, value in phase.changes.items():
            key = canonical(name)
            numeric = is_number(value)
            if key in usual and numeric:
                values[key] = scaled(key, float(value) / usual[key], root)
            else:
                values[key] = typed(key, float(value)) if numeric else value
    return values


def explored(
    settings: Hyperparameters,
    ranges: Mapping[str, ParameterRange],
    root: Hyperparameters,
    rng: random.Random,
    resample: float,
) -> Values:
    """Settings of a better member, each redrawn with probability `resample` and otherwise perturbed.

    A number is multiplied by 1.2 or 0.8, a choice moves to a neighbour.
    Source: `_explore` of Ray Tune 2.60, with the same random numbers in the same order.
    """
    values: Values = {}
    for key, found in _by_key(ranges):
        old = settings.get(key)
        if found.choices:
            known = choices(key, found, root)
            if rng.random() < resample or old not in known:
                values[key] = rng.choice(known)
            else:
                place = known.index(old) + rng.choice([-1, 1])
                values[key] = known[min(max(place, 0), len(known) - 1)]
        elif rng.random() < resample:
            values[key] = draw(key, found, root, rng)
        else:
            factor = rng.choice(FACTORS)
            moved = is_number(old)
            values[key] = typed(key, float(old) * factor) if moved else old  # type: ignore[arg-type]
    return values


def _by_key(ranges: Mapping[str, ParameterRange]) -> list[tuple[str, ParameterRange]]:
    return [(canonical(name), found) for name, found in ranges.items()]
