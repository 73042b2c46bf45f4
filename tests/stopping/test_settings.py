"""Settings of the stop loop: bounds and names."""

from __future__ import annotations

import math
from typing import Any

import pytest

from llmzero_ray.config import StopperSettings
from llmzero_ray.config.yaml_text import validated
from llmzero_ray.errors import ConfigError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("interval_steps", 0),
        ("interval_steps", 2.5),
        ("min_steps", 0),
        ("min_steps", True),
        ("stop_below", -0.1),
        ("stop_below", 1.1),
        ("stop_below", math.nan),
        ("stop_below", "0.1"),
        ("enabled", 1),
        ("collapse", None),
    ],
)
def test_a_value_outside_its_bound_is_refused_with_name_and_default(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"stopper: {field} is .*must be "):
        validated(StopperSettings, {field: value}, "stopper")


def test_values_at_their_bounds_are_accepted() -> None:
    found = StopperSettings(interval_steps=1, min_steps=1, stop_below=1.0)
    assert found.stop_below == 1.0


def test_settings_are_read_from_a_mapping_and_a_misspelt_name_is_answered() -> None:
    assert validated(StopperSettings, {"min_steps": 4}, "stopper") == StopperSettings(min_steps=4)
    with pytest.raises(ConfigError, match=r"unknown key .*did you mean 'interval_steps'"):
        validated(StopperSettings, {"interval_step": 4}, "stopper")
    with pytest.raises(ConfigError, match="Known keys: enabled"):
        validated(StopperSettings, {"zzz": 4}, "stopper")
