"""Settings of the stop loop: every field once, with default, bound and unit.

A value module: `config.py` embeds `StopperSettings` in search.yaml. Not here: the rules themselves (rules.py)
or the order in which they are asked (policy.py).
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmzero_ray.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class StopperSettings:
    """How a running phase is watched.

    Raises:
        ConfigError: a field lies outside its bound.
    """

    enabled: bool = True
    """False: nobody watches; phases end by their step count, caps and users only."""
    interval_s: float = 900.0
    """Seconds of training between two questions to the early-stopper agent (> 0)."""
    interval_steps: int | None = None
    """Steps between two questions (>= 1), for short phases; null: `interval_s` decides."""
    min_steps: int = 10
    """Steps before which the agent is not asked (>= 1); the paper judges nothing before step 10."""
    nonfinite_steps: int = 1
    """Consecutive steps with a non-finite loss, gradient or reward that end a phase (>= 1). 1: the first
    one."""
    collapse: bool = True
    """Whether the collapse detector (KL spike, then a fall of the reward) may end a phase."""
    collapse_window: int = 3
    """Steps averaged for "now" in the collapse detector (>= 2): one bad batch is not a collapse."""
    kl_spike_factor: float = 3.0
    """How many times its earlier median a KL must reach to count as a spike (> 1)."""
    reward_drop: float = 0.6
    """Share of its best level that the mean reward must have lost after the spike (0 < share <= 1)."""
    dead_run: bool = False
    """Whether ten steps in which every group has zero advantage (or the gradient or rate is 0) may end a
    phase. This and the next three annotate questions to the agent in any case."""
    entropy_collapse: bool = False
    """Whether entropy at a third of its first level, without any gain in reward, may end a phase."""
    kl_runaway: bool = False
    """Whether a KL at ten times its earlier level that still climbs, without any gain, may end a phase."""
    truncation_flood: bool = False
    """Whether a third of the responses at the cap, without any gain, may end a phase."""
    bank_stop: bool = False
    """Whether the curve bank may end a phase without asking the agent, where its evidence is overwhelming."""

    def __post_init__(self) -> None:
        for name, low in (
            ("interval_steps", 1),
            ("min_steps", 1),
            ("nonfinite_steps", 1),
            ("collapse_window", 2),
        ):
            if name != "interval_steps" or self.interval_steps is not None:
                _check_int(name, getattr(self, name), low)
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise _refuse(name, getattr(self, name), "true or false")
        _check_float("interval_s", self.interval_s, 0.0, math.inf)
        _check_float("kl_spike_factor", self.kl_spike_factor, 1.0, math.inf)
        _check_float("reward_drop", self.reward_drop, 0.0, 1.0)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StopperSettings:
        """The settings with these values, defaults for the others.

        Raises:
            ConfigError: a name is unknown (the nearest one is given), or a value is not allowed.
        """
        for name in values:
            if name not in _DEFAULTS:
                near = difflib.get_close_matches(str(name), _DEFAULTS, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_DEFAULTS)}."
                raise ConfigError(f"stopper.{name} is not a setting; {hint}")
        return cls(**values)


def _check_int(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise _refuse(name, value, f"a whole number >= {low}")


def _check_float(name: str, value: object, above: float, high: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not above < value <= high:  # type: ignore[arg-type,operator]
        limit = "" if high == math.inf else f" and <= {high:g}"
        raise _refuse(name, value, f"a number > {above:g}{limit}")


def _refuse(name: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(
        f"stopper.{name} is {value!r}; must be {allowed} (default {_DEFAULTS[name]!r}). "
        "Set stopper.enabled to false to switch stopping off."
    )


_DEFAULTS = {field.name: field.default for field in dataclasses.fields(StopperSettings)}
_SWITCHES = tuple(name for name, default in _DEFAULTS.items() if isinstance(default, bool))
