"""Ranges of hyper-parameters, grids and fixed schedules, in files and in configurations.

The files that ship are in llmzero_ray/config/shipped; a field takes their names, a path, or the content
itself. What a configuration names is read once: the journal holds the content. Not here: what is made of them
(llmzero_ray/methods).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter, model_validator

from llmzero_ray.config.strategy_file import of_verl, parse_strategy
from llmzero_ray.config.yaml_text import AS_TUPLE, StrictModel, expanded, read_yaml, validated
from llmzero_ray.errors import ConfigError
from llmzero_ray.utils.text import nearest

SHIPPED = Path(__file__).parent / "shipped"
Value = bool | int | float | str
_Float = BeforeValidator(lambda value: float(value) if type(value) is int else value)


class ParameterRange(StrictModel):
    """Range of one hyper-parameter: low to high, or a list."""

    low: Annotated[float | None, _Float] = None
    high: Annotated[float | None, _Float] = None
    log: bool = False
    """Whether the range is uniform in the logarithm."""
    choices: Annotated[tuple[Value, ...], AS_TUPLE] = ()
    of_default: bool = False
    """Whether the values are factors of the root's value."""

    @model_validator(mode="after")
    def _has_values(self) -> ParameterRange:
        bounded = self.low is not None and self.high is not None
        if bounded == bool(self.choices) or (self.low is None) != (self.high is None):
            raise ValueError("needs either low and high, or choices: [a, b].")
        if (
            self.low is not None
            and self.high is not None
            and (self.low > self.high or (self.log and self.low <= 0))
        ):
            raise ValueError(f"low is {self.low:g} and high {self.high:g}; must rise, and with log low > 0.")
        return self


class SchedulePhase(StrictModel):
    """One phase of a schedule."""

    steps: int = Field(ge=1)
    """Training steps. In a search each phase gets its share of the budget."""
    changes: dict[str, Value | None | Annotated[tuple[float, ...], AS_TUPLE]] = Field(default_factory=dict)
    """Hyper-parameter -> value from this phase on."""


class Schedule(StrictModel):
    """A fixed sequence of phases."""

    source: str = ""
    """Origin of the schedule."""
    lora_rank: int | None = None
    """LoRA rank of the search that found it, which this one must have too. If null, any."""
    base_model: str | None = None
    """Base model of the search that found it. The schedule may be used with another one; a note then says
    so."""
    relative_to: dict[str, float] = Field(default_factory=dict)
    """Hyper-parameter -> its value in the recipe that the schedule was derived from. A phase's value is taken
    as a factor of the root's own value. Hyper-parameters that are not named are set as they are."""
    phases: Annotated[tuple[SchedulePhase, ...], AS_TUPLE] = Field(min_length=1)

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of each phase in all steps."""
        total = sum(phase.steps for phase in self.phases)
        return tuple(phase.steps / total for phase in self.phases)


def read_shipped(folder: str, value: Any) -> Any:
    """Content of the shipped file or path that `value` names. Any other value is returned unchanged.

    Raises:
        ValueError: there is no such file, or it cannot be read.
    """
    if not isinstance(value, str):
        return value
    known = {path.stem: path for path in sorted((SHIPPED / folder).glob("*.yaml"))}
    path = known.get(value) or expanded(value)
    if not path.is_file():
        near = nearest(value, list(known))
        hint = f" Did you mean {near}?" if near else ""
        raise ValueError(f"{value!r} is not a file; shipped are {', '.join(known)}.{hint}")
    try:
        return read_yaml(path)
    except ConfigError as error:
        raise ValueError(str(error)) from error


def _schedule(value: Any) -> Any:
    data = read_shipped("schedules", value)
    return _from_strategy(data) if isinstance(data, Mapping) and "format" in data else data


def _from_strategy(data: Mapping[str, Any]) -> dict[str, Any]:
    """Schedule from the strategy.yaml of a search: the changes of each phase, up to its cut."""
    strategy = of_verl(parse_strategy(data, "strategy.yaml"), "strategy.yaml")
    phases = [
        {"steps": phase.cut_step, "changes": {change.key: change.new for change in phase.changes}}
        for phase in strategy.phases
    ]
    return {
        "source": f"search {strategy.search.name}",
        "lora_rank": strategy.lora_rank,
        "base_model": strategy.base_model,
        "phases": phases,
    }


def shipped(kind: Any, name: str) -> Any:
    """Shipped file as `Ranges`, `Grid` or `NamedSchedule`."""
    return TypeAdapter(kind).validate_python(name)


def read_schedule(name: str) -> Schedule:
    """A shipped schedule, or one in a file.

    Raises:
        ValueError: there is none, or it is not a schedule.
    """
    return validated(Schedule, _schedule(name), name)


Ranges = Annotated[dict[str, ParameterRange], BeforeValidator(lambda value: read_shipped("ranges", value))]
Grid = Annotated[
    dict[str, Annotated[tuple[Annotated[float, _Float], ...], AS_TUPLE]],
    BeforeValidator(lambda value: read_shipped("grids", value)),
]
"""Hyper-parameter -> factors of the root's value. Every combination is one cell; the last key varies
fastest."""
NamedSchedule = Annotated[Schedule, BeforeValidator(_schedule)]
