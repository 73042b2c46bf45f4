"""Values of hyper-parameters from ranges, grids and schedules, and from exploration in population training.

Factors of the default are relative to the root's value. Integers are rounded, floats are not. The caller
passes the random generator.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from llmzero_ray.agents.expert.apply_moves import ProposalBase
from llmzero_ray.config import SearchConfig
from llmzero_ray.config.schedule import ParameterRange, Schedule
from llmzero_ray.errors import ConfigError, HyperparameterError
from llmzero_ray.hyperparameters import VERL_SPACE, canonical, format_value, short, space_with
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
    row = VERL_SPACE.bounds(key)
    return max(1, round(value)) if row is not None and row.kind == "int" else float(value)


def check_values(config: SearchConfig, root: Hyperparameters) -> None:
    """Check that proposals may set the values in `search.ranges`, `search.grid` and `search.schedule`, which
    would otherwise be left out.

    Raises:
        ConfigError: a key is unknown, or a value is not allowed; the message says what is.
    """
    space, field = space_with(config.agents.allow), "ranges"
    try:
        for key, value in _of_ranges(config.search.ranges or {}, root):
            space.proposed(key, value)
        field = "grid"
        for name, factors in (config.search.grid or {}).items():
            for factor in factors:
                space.proposed(canonical(name), _factor_of_root(canonical(name), factor, root))
        field = "schedule"
        for key, value in _of_schedule(config.search.schedule, root):
            space.proposed(key, value)
    except HyperparameterError as error:
        raise ConfigError(f"search.{field}: {error}") from error


def _of_ranges(ranges: Mapping[str, ParameterRange], root: Hyperparameters) -> Iterator[tuple[str, object]]:
    for key, found in _by_key(ranges):
        given: Sequence[object] = found.choices or (found.low, found.high)
        for one in given:
            if found.of_default:
                yield key, _factor_of_root(key, one, root)
            else:
                yield key, typed(key, one) if is_number(one) else one


def _of_schedule(schedule: Schedule | None, root: Hyperparameters) -> Iterator[tuple[str, object]]:
    if schedule is None:
        return
    for name, value in schedule.relative_to.items():
        _factor_of_root(canonical(name), 1.0, root)
        if value == 0:
            raise HyperparameterError(
                f"relative_to: {name} is 0, of which no value is a factor; leave it out."
            )
    for number in range(len(schedule.phases)):
        yield from scheduled(schedule, root, number).items()


def _factor_of_root(key: str, factor: object, root: Hyperparameters) -> HyperparameterValue:
    """`scaled`, where both are numbers.

    Raises:
        HyperparameterError: one is not.
    """
    if not is_number(factor):
        raise HyperparameterError(
            f"{short(key)}: {factor!r} is no factor of the root's value; must be a number."
        )
    if not is_number(root.get(key)):
        usual = format_value(key, root.get(key))
        raise HyperparameterError(
            f"{short(key)} is {usual} in the root, which has no factors. Leave it out, or set it in "
            "root.overrides to a number."
        )
    return scaled(key, factor, root)


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
            if not is_number(value):
                values[key] = value
            elif key in usual:
                values[key] = scaled(key, float(value) / usual[key], root)
            else:
                values[key] = typed(key, float(value))
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
