"""Parses commands that start VeRL's trainer: their overrides, and the configurations that they name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.errors import ConfigError

TRAINER = "verl.trainer.main_ppo"
_CONFIGS = frozenset({"ppo_trainer", "ppo_megatron_trainer", "_generated_ppo_trainer"})
"""Names of VeRL's own configurations."""


@dataclass(frozen=True)
class TrainerCommand:
    """One command that starts a trainer."""

    module: str
    overrides: Mapping[str, str]
    options: Mapping[str, str]
    """Hydra's options: `path` (config-path) and `name` (config-name) -> value."""
    others: tuple[str, ...]


_OPTIONS = {
    "--config-path": "path", "-cp": "path", "--config-dir": "path", "-cd": "path", "--config-name": "name",
    "-cn": "name",
}  # fmt: skip
_KEY = re.compile(r"(\+\+|\+|~)?([A-Za-z_][\w.@/-]*)")


def commands_of(starts: Iterable[Sequence[str]]) -> list[TrainerCommand]:
    """Commands that start VeRL's trainer. If there are none, those that start another trainer with VeRL's
    keys."""
    commands = [command for words in starts if (command := _command(words)) is not None]
    return [each for each in commands if each.module.endswith(("main_ppo", "main_ppo.py"))] or commands


def _command(words: Sequence[str]) -> TrainerCommand | None:
    start, module = None, ""
    for place, word in enumerate(words):
        before = words[place - 1] if place else ""
        if (before in ("-m", "--module") and re.fullmatch(r"[\w.]+", word)) or re.fullmatch(
            r"[^=\s]*\.py", word
        ):
            start, module = place, word
            if word.endswith(("main_ppo", "main_ppo.py")):
                break
    name = module.rpartition("/")[2].rpartition(".main")[2]
    if start is None or re.search(r"(^|[._])(generation|gen|eval|sft|merger)", name):
        return None
    overrides, options, others = dict[str, str](), dict[str, str](), list[str]()
    rest = iter(words[start + 1 :])
    for word in rest:
        name, equals, value = word.partition("=")
        if name in _OPTIONS:
            options[_OPTIONS[name]] = value if equals else next(rest, "")
        elif equals and (key := _KEY.fullmatch(name)) and key[1] != "~":
            overrides.pop(key[2], None)
            overrides[key[2]] = value
        elif word.strip():
            others.append(word)
    known = any(
        key.startswith(("actor_rollout_ref.", "data.", "trainer.", "algorithm.")) for key in overrides
    )
    if not known and not module.endswith(("main_ppo", "main_ppo.py")):
        return None
    return TrainerCommand(module.rpartition("/")[2], overrides, options, tuple(others))


@dataclass(frozen=True)
class OwnConfiguration:
    """Settings of a configuration file that a command names, other than VeRL's own."""

    settings: Mapping[str, str]
    """VeRL's key -> the value as text."""
    remark: str = ""
    read: bool = True
    """Whether everything that the trainer would read could be read."""
    megatron: str = ""
    """Option that selects VeRL's Megatron configuration. Empty if there is none."""


def own_configuration(command: TrainerCommand, folder: Path) -> OwnConfiguration:
    """Settings of the file that `--config-name` names, if it is in or below the script's `folder`."""
    name = Path(command.options.get("name", "")).name.removesuffix(".yaml")
    asked = command.options.get("path", "").removeprefix("file://")
    places = [Path(asked), folder / asked, folder / Path(asked).name, folder / "config", folder]
    found = (each / f"{name}.yaml" for each in places if (each / f"{name}.yaml").is_file())
    place = next(found, None) if name and (asked or name not in _CONFIGS) else None
    if place is None and (not name or name in _CONFIGS):
        return OwnConfiguration({}, megatron=f"--config-name={name}" if "megatron" in name else "")
    unread = f"the settings of {name}.yaml (--config-name) are not read"
    if place is None:
        return OwnConfiguration({}, f"{unread}: the file is not next to the script", read=False)
    try:
        settings = dict(_settings(place, set()))
    except ConfigError as error:
        return OwnConfiguration({}, f"{unread}: {error}", read=False)
    return OwnConfiguration(
        settings, f"the settings of {place.name} were read as if they stood before the overrides"
    )


def _settings(place: Path, read: set[Path]) -> Iterator[tuple[str, str]]:
    """(key, value as text) of each setting of a hydra configuration, those of its own `defaults` first."""
    data = dict(read_yaml(place))
    read.add(place)
    for entry in data.pop("defaults", None) or []:
        beside = place.parent / f"{entry}.yaml"
        if isinstance(entry, str) and entry not in _CONFIGS and beside.is_file() and beside not in read:
            yield from _settings(beside, read)
    data.pop("hydra", None)
    yield from _leaves(data, "")


def _leaves(data: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield f"{prefix}{key}", "[" + ",".join(map(_shown, value)) + "]"
        else:
            yield f"{prefix}{key}", _shown(value)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
