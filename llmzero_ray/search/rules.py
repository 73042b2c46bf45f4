"""The numbers that the search rules depend on, with their bounds.

One frozen record, shared by a search, its replay and `explain --set`. Defaults are the paper's (App. B.6).
Not here: budgets, runner counts and everything else that a search needs besides deciding.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias, get_args

from llmzero_ray.errors import ConfigError

QAggregate: TypeAlias = Literal["f_of_mean", "mean_of_f"]
"""`f_of_mean`: shape the mean normalised score · `mean_of_f`: average the shaped scores."""


@dataclass(frozen=True, kw_only=True)
class SearchRules:
    """Parameters of selection, expansion and value.

    Raises:
        ConfigError: a value has the wrong type or lies outside its bounds.
    """

    C: float = 1.414
    """Weight of exploration, unitless, >= 0. The paper prints 1.414, which is not sqrt 2."""
    T: float = 0.3
    """Temperature of the exponential shaping of normalised scores, > 0; large values make it linear."""
    w_f: float = 0.5
    """Penalty per failed run's share of visits, >= 0."""
    w_e: float = 0.3
    """Penalty per early-stopped run's share of visits, >= 0."""
    o_f: int = 2
    """Failures of a subtree that cost nothing, >= 0."""
    max_evolve_children: int = 2
    """Children that a node with any status but failed may have, exempt ones not counted, >= 1."""
    max_debug_children: int = 3
    """Debug children that a failed node may have, >= 0; 0 switches debugging off."""
    max_debug_depth: int = 5
    """A failed node this deep in a chain of debug runs gets no further debug child, >= 0."""
    rho_min: float = 0.2
    """Smallest share of from-scratch runs among all but the debug runs, in [0, 1]; 0 never forces one."""
    q_aggregate: QAggregate = "f_of_mean"
    """Whether scores are averaged before or after they are shaped."""
    multi_stage: bool = True
    """False: no checkpoint is ever offered, so that every node starts from the base model."""

    def __post_init__(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            _check_number(name, getattr(self, name), low, high, whole=name in _WHOLE)
        if self.T == 0:
            raise ConfigError(
                "search rule T is 0; must be > 0. A small value such as 0.01 rewards only the best scores."
            )
        if self.q_aggregate not in get_args(QAggregate):
            allowed = " or ".join(get_args(QAggregate))
            raise ConfigError(f"search rule q_aggregate is {self.q_aggregate!r}; must be {allowed}.")
        if not isinstance(self.multi_stage, bool):
            raise ConfigError(f"search rule multi_stage is {self.multi_stage!r}; must be true or false.")

    def to_dict(self) -> dict[str, Any]:
        """Every rule by name, JSON values only."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SearchRules:
        """The rules with these values, defaults for the others.

        Raises:
            ConfigError: a name is unknown (the nearest one is given), or a value is not allowed.
        """
        for name in values:
            _check_name(name)
        return cls(**values)

    def with_settings(self, settings: Iterable[str]) -> SearchRules:
        """These rules with `key=value` strings applied in order; the last one of a repeated key counts.

        Raises:
            ConfigError: a string has no `=`, its key is unknown (the nearest one is given), or its value is
            not allowed.
        """
        changed: dict[str, Any] = {}
        for setting in settings:
            name, equals, text = setting.partition("=")
            if not equals:
                raise ConfigError(f"setting {setting!r} has no '='; write key=value, such as C=1.0.")
            _check_name(name.strip())
            changed[name.strip()] = _read_value(name.strip(), text.strip())
        return dataclasses.replace(self, **changed)


_BOUNDS: dict[str, tuple[float, float]] = {
    "C": (0, math.inf),
    "T": (0, math.inf),
    "w_f": (0, math.inf),
    "w_e": (0, math.inf),
    "o_f": (0, math.inf),
    "max_evolve_children": (1, math.inf),
    "max_debug_children": (0, math.inf),
    "max_debug_depth": (0, math.inf),
    "rho_min": (0, 1),
}
_WHOLE = frozenset({"o_f", "max_evolve_children", "max_debug_children", "max_debug_depth"})
_NAMES = tuple(field.name for field in dataclasses.fields(SearchRules))


def _check_number(name: str, value: object, low: float, high: float, *, whole: bool) -> None:
    kind = "a whole number" if whole else "a finite number"
    allowed = f"{kind} >= {low:g}" if high == math.inf else f"{kind} in [{low:g}, {high:g}]"
    types = (int,) if whole else (int, float)
    if (
        isinstance(value, bool)
        or not isinstance(value, types)
        or not math.isfinite(value)
        or not low <= value <= high
    ):
        raise ConfigError(f"search rule {name} is {value!r}; must be {allowed}.")


def _check_name(name: str) -> None:
    if name in _NAMES:
        return
    near = get_close_matches(name, _NAMES, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "."
    raise ConfigError(f"search rule {name!r} is unknown{hint} Known rules: {', '.join(_NAMES)}.")


def _read_value(name: str, text: str) -> Any:
    """The value written in `text`; text that is no number is kept, and refused by the record's own check."""
    if name == "q_aggregate":
        return text
    if name == "multi_stage":
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
