"""Human knowledge about metrics and hyper-parameters, read from prompts/*.yaml at first use.

The files are found in a checkout (prompts/ next to the package) and in a wheel (`llmzero_ray.prompts`). A
user's directory replaces files one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import StringConstraints

from llmzero_ray.config.search_config import Priors
from llmzero_ray.config.yaml_text import AS_TUPLE, StrictModel, validated
from llmzero_ray.errors import ConfigError, HyperparameterError
from llmzero_ray.hyperparameters import canonical
from llmzero_ray.hyperparameters.verl_keys import ENTROPY_COEFF, USE_KL_IN_REWARD, USE_KL_LOSS
from llmzero_ray.records import Hyperparameters
from llmzero_ray.utils.text import collapse_whitespace, nearest

METRICS, HYPERPARAMETERS = "metrics.yaml", "hyperparameters.yaml"
APPENDIX_F = "appendix_f.yaml"

Level: TypeAlias = Literal["primary", "diagnostic", "background"]
When: TypeAlias = Literal["step", "validation", "save", "kl_loss", "kl_reward", "entropy"]


_Stripped: TypeAlias = Annotated[str, StringConstraints(strip_whitespace=True)]


class MetricNote(StrictModel):
    """Note on one metric."""

    name: str
    label: _Stripped
    """A few words for plots and tables."""
    description: _Stripped
    healthy: _Stripped
    """Its usual course in good training, from experience."""
    confusion: _Stripped
    """Common misreading."""
    level: Level = "diagnostic"
    """Whether the metric decides, explains, or is only context."""
    when: When = "step"
    """Steps, and the setting, at which it is logged."""
    also: Annotated[tuple[str, ...], AS_TUPLE] = ()
    """Further metrics that the note covers."""

    @property
    def names(self) -> tuple[str, ...]:
        """All metrics that the note covers."""
        return (self.name, *self.also)


@dataclass(frozen=True, kw_only=True)
class Appendix:
    """Notes that the paper gives its agents, by metric and by VeRL key."""

    metrics: Mapping[str, str]
    hyperparameters: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """All notes together, as prompts quote them."""

    metrics: Mapping[str, MetricNote]
    hyperparameters: Mapping[str, str]
    appendix: Appendix

    def with_priors(self, priors: Priors) -> Knowledge:
        """The notes, with experience from `priors` only."""
        if priors == "paper":
            return self
        bare = {
            name: note.model_copy(
                update={
                    "description": self.appendix.metrics.get(name, note.description),
                    "healthy": "",
                    "confusion": "",
                }
            )
            for name, note in self.metrics.items()
        }
        return dataclasses.replace(self, metrics=bare, hyperparameters=self.appendix.hyperparameters)


# --- reading ------------------------------------------------------------------------------------------------


@cache
def metric_notes() -> Mapping[str, MetricNote]:
    """VeRL's metric name -> packaged note.

    Raises:
        ConfigError: metrics.yaml is missing or malformed.
    """
    return parse_metrics(prompt_file(METRICS).read_text(encoding="utf-8"))


def parse_metrics(text: str, source: str = f"prompts/{METRICS}") -> Mapping[str, MetricNote]:
    """Notes in the text of a metrics.yaml. Messages begin with `source`.

    Raises:
        ConfigError: broken YAML, a missing or unknown field, or two notes on one metric.
    """
    notes = {name: _note(name, body, source) for name, body in _mapping(text, source).items()}
    covered: dict[str, str] = {}
    for note in notes.values():
        for name in note.names:
            if name in covered:
                raise ConfigError(
                    f"{source}: {name} is covered by {covered[name]} and by {note.name}; keep one."
                )
            covered[name] = note.name
    return notes


def _note(name: str, body: Any, source: str) -> MetricNote:
    if not isinstance(body, dict):
        raise ConfigError(f"{source}: {name} holds {type(body).__name__}; it must map fields to texts.")
    return validated(MetricNote, {"name": name, **body}, f"{source}: {name}")


def parse_hyperparameters(text: str, source: str = f"prompts/{HYPERPARAMETERS}") -> Mapping[str, str]:
    """Notes in the text of a hyperparameters.yaml, by VeRL's keys.

    Raises:
        ConfigError: broken YAML, or a key that VeRL does not have.
    """
    return _by_key(_mapping(text, source), source)


def _by_key(found: Mapping[str, Any], source: str) -> dict[str, str]:
    notes: dict[str, str] = {}
    for name, note in found.items():
        try:
            notes[canonical(name)] = collapse_whitespace(str(note))
        except HyperparameterError as error:
            raise ConfigError(f"{source}: {error}") from error
    return notes


def parse_appendix(text: str, source: str = f"prompts/{APPENDIX_F}") -> Appendix:
    """The two tables in the text of an appendix_f.yaml.

    Raises:
        ConfigError: broken YAML, an unknown table, or a key that VeRL does not have.
    """
    tables = _mapping(text, source)
    if set(tables) != {"metrics", "hyperparameters"} or not all(isinstance(t, dict) for t in tables.values()):
        raise ConfigError(f"{source} holds {', '.join(tables)}; it must map metrics and hyperparameters.")
    notes = {str(name): collapse_whitespace(str(note)) for name, note in tables["metrics"].items()}
    return Appendix(metrics=notes, hyperparameters=_by_key(tables["hyperparameters"], source))


def _mapping(text: str, source: str) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{source} holds {type(data).__name__}; it must map names to notes.")
    return {str(name): body for name, body in data.items()}


# --- asking -------------------------------------------------------------------------------------------------


def note_of(name: str, notes: Mapping[str, MetricNote] | None = None) -> MetricNote | None:
    """Note that covers a metric, or None. Validation metrics of all data sources share two notes."""
    notes = metric_notes() if notes is None else notes
    if name in notes:
        return notes[name]
    family = name.partition("/")[0]
    if family in ("val-core", "val-aux"):
        return notes.get(family)
    return next((note for note in notes.values() if name in note.also), None)


def metric_label(name: str) -> str:
    """Label of a metric, or its name if no note covers it. Validation metrics share one note."""
    known = metric_notes().get("val-core" if name.startswith("val-core") else name)
    return known.label if known is not None else name


def expected_metrics(hyperparameters: Hyperparameters) -> frozenset[str]:
    """Metrics with a note that VeRL logs at every training step of a phase with this configuration."""
    on = {
        "step": True,
        "kl_loss": hyperparameters.get(USE_KL_LOSS) is True,
        "kl_reward": hyperparameters.get(USE_KL_IN_REWARD) is True,
        "entropy": bool(hyperparameters.get(ENTROPY_COEFF)),
    }
    return frozenset(n for note in metric_notes().values() if on.get(note.when) for n in note.names)


# --- files --------------------------------------------------------------------------------------------------


def prompt_file(file: str, directory: str | None = None) -> Traversable:
    """The file in `directory` if it exists, otherwise the packaged one (wheel first, then checkout).

    Raises:
        ConfigError: `directory` does not exist, or the installation lacks the file.
    """
    if directory is not None:
        own = prompt_directory(directory) / file
        if own.is_file():
            return own
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


def prompt_directory(directory: str) -> Path:
    """A user's directory of prompts.

    Raises:
        ConfigError: it does not exist or is not a directory.
    """
    path = Path(directory).expanduser()
    if not path.is_dir():
        what = "is not a directory" if path.exists() else "does not exist"
        raise ConfigError(
            f"the prompt directory {directory} {what}; name a directory with the files to replace, or leave "
            "it out to use the packaged prompts."
        )
    return path


def check_names(directory: str, allowed: tuple[str, ...]) -> None:
    """Check that a user's directory has only files that are read. Hidden files are ignored.

    Raises:
        ConfigError: nothing reads a file of that name; the message suggests the nearest valid name.
    """
    for name in _visible(prompt_directory(directory)):
        if name not in allowed:
            near = nearest(name, allowed)
            hint = f"did you mean {near}?" if near else "remove it."
            raise ConfigError(
                f"{directory}/{name} replaces no prompt: {hint} Names that are read: {', '.join(allowed)}."
            )


def _visible(directory: Path) -> Iterator[str]:
    skipped = ("__init__.py", "__pycache__", "README.md")
    yield from sorted(
        p.name for p in directory.iterdir() if not p.name.startswith(".") and p.name not in skipped
    )
