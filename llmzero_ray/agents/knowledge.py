"""Human knowledge about metrics and hyper-parameters, read from prompts/*.yaml when first asked for.

Works from a checkout (prompts/ beside the package) and from a wheel (`llmzero_ray.prompts`). Not here:
thresholds and rules (diagnosis.py, treatments.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from llmzero_ray.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class MetricNote:
    """What people should know of one metric."""

    name: str
    label: str
    """A few words for plots and tables."""
    description: str
    healthy: str
    """How it looks when training goes well: experience."""
    confusion: str
    """What it is mistaken for."""


@cache
def metric_notes() -> Mapping[str, MetricNote]:
    """VeRL's metric name -> note.

    Raises:
        ConfigError: prompts/metrics.yaml is missing or malformed.
    """
    data = _load("metrics.yaml")
    try:
        return {
            name: MetricNote(name=name, **{k: str(v) for k, v in note.items()}) for name, note in data.items()
        }
    except (TypeError, AttributeError) as error:
        raise ConfigError(
            f"prompts/metrics.yaml: every metric needs label, description, healthy, confusion: {error}"
        ) from error


@cache
def hyperparameter_notes() -> Mapping[str, str]:
    """VeRL's key -> what it does to training.

    Raises:
        ConfigError: prompts/hyperparameters.yaml is missing or malformed.
    """
    return {key: str(text) for key, text in _load("hyperparameters.yaml").items()}


def metric_label(name: str) -> str:
    """A few words for a metric; its own name where nothing is noted. Validation metrics share one note."""
    known = metric_notes().get("val-core" if name.startswith("val-core") else name)
    return known.label if known is not None else name


def _load(file: str) -> dict[str, Any]:
    import yaml

    data = yaml.safe_load(_prompt(file).read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise ConfigError(f"prompts/{file} holds {type(data).__name__}; it must map names to notes.")
    return data


def _prompt(file: str) -> Traversable:
    """The file in the wheel's `llmzero_ray.prompts`, else in the checkout's prompts/."""
    try:
        packaged = resources.files("llmzero_ray.prompts") / file
        if packaged.is_file():
            return packaged
    except ModuleNotFoundError:
        pass
    beside = Path(__file__).resolve().parents[2] / "prompts" / file
    if not beside.is_file():
        raise ConfigError(
            f"prompts/{file} was not found, neither in the package nor at {beside}; reinstall llmzero-ray."
        )
    return beside
