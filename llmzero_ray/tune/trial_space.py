"""Space of hyper-parameters, with its values in the form that trials get.

Categories may be any plain values. In the space each has a text name, which proposals use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmzero_ray.hyperparameters import Space
from llmzero_ray.records import Hyperparameters, HyperparameterValue


@dataclass(frozen=True, kw_only=True)
class TrialSpace:
    """A space, its root configuration, and the categories behind its names."""

    space: Space
    root: dict[str, HyperparameterValue]
    categories: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Key -> name -> value for a trial."""

    def named(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Changes in which categories are replaced by their names in the space."""
        return {key: self._name(key, value) for key, value in changes.items()}

    def _name(self, key: str, value: Any) -> Any:
        known = self.categories.get(self.space.names.get(key, key), {})
        if isinstance(value, str) and value in known:
            return value
        same = [name for name, each in known.items() if type(each) is type(value) and each == value]
        return same[0] if same else value

    def trial_config(self, configuration: Hyperparameters) -> dict[str, Any]:
        """Configuration for a trial."""
        return {
            key: self.categories[key][str(value)] if key in self.categories else value
            for key, value in configuration.items()
        }


def category_name(value: Any) -> str:
    """Name of a category in the space."""
    # "None" would be read as null.
    return "no value" if value is None else str(value)
