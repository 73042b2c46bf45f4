"""Reading a search.yaml: files, overrides, and settings that an earlier version named otherwise.

`load_config` gives a frozen `SearchConfig`, or one `ConfigError` that lists everything wrong with the file.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from llmzero_ray.config import presets
from llmzero_ray.config.search_config import SearchConfig
from llmzero_ray.config.yaml_text import (
    expanded,
    held_settings,
    local_path,
    read_yaml,
    refuse_removed,
    replace_key,
    validated,
)
from llmzero_ray.errors import ConfigError

logger = logging.getLogger(__name__)

_PROPOSERS = (
    "its proposals gained no more than those of the built-in rules. Remove the key: then `agents.backend` "
    "proposes, which is the built-in rules by default."
)
REMOVED = {
    "agents.archive": "results of earlier searches never improved a proposal. Remove the key.",
    "agents.guided_share": "it belonged to the proposer `hybrid`. Remove the key.",
    "agents.max_share": "the request states the price, and no proposal goes back for it. Remove the key.",
    "agents.prefetch": "a proposal waits for the end of the phase it continues. Remove the key.",
    "agents.priors: none": "take `paper` or `appendix_f`.",
    "agents.proposer: hybrid": _PROPOSERS,
    "agents.proposer: local": _PROPOSERS,
    "agents.race": "it belonged to the proposers `local` and `hybrid`. Remove the key.",
    "engine.carry_optimizer": "every phase begins with a new optimizer. Remove the key.",
    "search.gain_sd": "it belonged to `score_model: shrunk`. Remove the key.",
    "search.score_model": "a search chooses by the best validation score. Remove the key.",
    "slots.shared": "`llmzero compare` and Ray Tune hold the slots of their searches. Remove the key.",
    "stopper.bank_stop": "the curve bank never stopped a phase. Remove the key.",
    "stopper.collapse_window": "the collapse detector averages 3 steps. Remove the key.",
    "stopper.dead_run": "it is a fact for the early stopper, never a stop. Remove the key.",
    "stopper.entropy_collapse": "it is a fact for the early stopper, never a stop. Remove the key.",
    "stopper.kl_runaway": "it is a fact for the early stopper, never a stop. Remove the key.",
    "stopper.kl_spike_factor": "the collapse detector's KL spike is 3 times the median. Remove the key.",
    "stopper.nonfinite_steps": "the first value that is not finite ends a phase. Remove the key.",
    "stopper.reward_drop": "the collapse detector stops at 60% of the reward lost. Remove the key.",
    "stopper.truncation_flood": "it is a fact for the early stopper, never a stop. Remove the key.",
}
"""Setting, or `setting: value`, of version 0.1 or of a recorded search of benchmarks/suite that no longer
exists -> why, and what to do."""
RENAMED: dict[str, str] = {
    "agents.backend: replay": "agents.backend: recorded",
    "agents.replay_from": "agents.recorded_from",
    "search.method: replay": "search.method: schedule",
    "search.recipes": "search.n_trials",
}
"""Setting, or `setting: value`, of version 0.1 -> its name now. Version 0.2 takes both."""


_NO_NAMES: Mapping[str, str] = MappingProxyType({})


def load_config(
    path: str | os.PathLike[str], overrides: Iterable[str] = (), names: Mapping[str, str] = _NO_NAMES
) -> SearchConfig:
    """The configuration in a YAML file, or a shipped one by its name, with `dotted.key=value` overrides
    applied in order and paths made absolute.

    Relative directories count from the current directory; a `model.path` that is not a local directory is
    kept as a name. `names` gives short names of hyper-parameters and their keys (`Space.names`): an override
    of one replaces its value under any name.

    Raises:
        ConfigError: no such file, broken YAML (with its line), unknown keys (with the nearest one) or values
        out of bounds.
    """
    place = presets.path_of(local_path(os.fspath(path)))
    if place.is_symlink() and not place.exists():
        raise ConfigError(
            f"{place}: is a link to {os.readlink(place)}, which leads nowhere. Correct the link, or name the "
            "file."
        )
    if not place.exists():
        raise ConfigError(
            f"{place}: cannot be read (No such file or directory). `llmzero init` writes a search.yaml to "
            "begin with."
        )
    if place.parent == presets.folder() / "tasks":
        raise ConfigError(
            f"{place.stem} is a task, made with `llmzero prepare {place.stem}`. A search.yaml names its "
            "directory as task.dir; `llmzero init` writes one."
        )
    return resolve_config(read_yaml(place), overrides, names, source=place.name)


def resolve_config(
    data: Mapping[str, Any],
    overrides: Iterable[str] = (),
    names: Mapping[str, str] = _NO_NAMES,
    *,
    source: str = "search.yaml",
) -> SearchConfig:
    """`load_config` for the data of a file; `source` opens the messages.

    Raises:
        ConfigError: unknown keys (with the nearest one) or values out of bounds.
    """
    changed = copy.deepcopy(dict(data))
    for override in overrides:
        _apply_override(changed, override, names)
    config = parse_config(changed, source=source)
    return config.model_copy(
        update={
            "storage": _absolute(config.storage),
            "task": config.task.model_copy(update={"dir": _absolute(config.task.dir)}),
            "model": config.model.model_copy(update={"path": _absolute_if_there(config.model.path)}),
            "agents": config.agents.model_copy(
                update={
                    "key_file": None if config.agents.key_file is None else _absolute(config.agents.key_file),
                    "prompts": None if config.agents.prompts is None else _absolute(config.agents.prompts),
                    "recorded_from": (
                        None
                        if config.agents.recorded_from is None
                        else _absolute(config.agents.recorded_from)
                    ),
                }
            ),
        }
    )


def parse_config(data: Mapping[str, Any], *, source: str = "search.yaml") -> SearchConfig:
    """The configuration in plain data, such as `SearchConfig.to_json` gives; `source` opens the messages.

    Raises:
        ConfigError: everything that is wrong, one line each.
    """
    refuse_removed(data, REMOVED, source)
    return validated(SearchConfig, _with_new_names(data, source), source)


def stored_config(data: Mapping[str, Any], *, source: str) -> SearchConfig:
    """`parse_config` for a configuration that a search wrote itself. Settings in `REMOVED` are dropped; those
    in `RENAMED` are taken without a note.

    Raises:
        ConfigError: everything else that is wrong, one line each.
    """
    return validated(SearchConfig, _with_new_names(without_removed(data)), source)


def without_removed(data: Mapping[str, Any]) -> dict[str, Any]:
    """Data of a configuration, copied without its settings in `REMOVED`."""
    kept = copy.deepcopy(dict(data))
    for name in held_settings(REMOVED, kept):
        block, _, key = name.partition(": ")[0].partition(".")
        del kept[block][key]
    return kept


def _with_new_names(data: Mapping[str, Any], source: str | None = None) -> dict[str, Any]:
    """The data of a configuration with the names in `RENAMED` replaced by the new ones. `source` opens a note
    about each; None gives no notes. A setting under both names keeps both, so that the old one is refused."""
    held = held_settings(RENAMED, data)
    found = copy.deepcopy(dict(data)) if held else dict(data)
    for old in held:
        block, _, rest = RENAMED[old].partition(".")
        key, _, value = rest.partition(": ")
        if value:
            found[block][key] = value
        elif key not in found[block]:
            found[block][key] = found[block].pop(old.partition(".")[2])
        if source is not None:
            _note_new_name(old, source)
    return found


def _note_new_name(old: str, source: str) -> None:
    logger.warning(
        "%s: %s is called %s since 0.2. Rename it: 0.3 refuses the old name.", source, old, RENAMED[old]
    )


def _apply_override(data: dict[str, Any], override: str, names: Mapping[str, str]) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{override!r} is not of the form key=value; write for example budget.runs=8")
    set_key(data, key.strip(), read_yaml(text, source=key.strip()), names)


def set_key(data: dict[str, Any], key: str, value: Any, names: Mapping[str, str] = _NO_NAMES) -> None:
    """Put a value at a dotted key into the data of a configuration, such as 8 at `budget.runs`. `names` as in
    `load_config`.

    Raises:
        ConfigError: a key on the way holds a value that has no keys.
    """
    old = key if key in RENAMED else f"{key}: {value}"
    if old in RENAMED:
        _note_new_name(old, "a setting")
        key, _, new = RENAMED[old].partition(": ")
        value = new or value
    parts = key.split(".")
    # VeRL keys contain dots themselves: below an `overrides` block the rest of the path is one key.
    for i, part in enumerate(parts[:-1]):
        if part == "overrides":
            parts = [*parts[: i + 1], ".".join(parts[i + 1 :])]
            break
    if parts[:2] == ["root", "overrides"]:
        _drop_other_names(data, parts[2:], names)
    replace_key(data, parts, value)


def _drop_other_names(data: dict[str, Any], given: Collection[str], names: Mapping[str, str]) -> None:
    """Remove what `root.overrides` says of the hyper-parameters `given` under their other names."""
    root = data.get("root")
    overrides = root.get("overrides") if isinstance(root, Mapping) else None
    if isinstance(root, Mapping) and isinstance(overrides, Mapping):
        keys = {names.get(name, name) for name in given}
        kept = {k: v for k, v in overrides.items() if k in given or names.get(k, k) not in keys}
        data["root"] = {**root, "overrides": kept}


def change_settings(
    data: dict[str, Any], settings: Mapping[str, Any], names: Mapping[str, str] = _NO_NAMES
) -> None:
    """Replace fields in the data of a configuration: by dotted keys, or by blocks, whose other fields stay.
    `names` as in `load_config`.

    Raises:
        ConfigError: a key on the way holds a value that has no keys.
    """
    for key, value in _with_new_names(settings, "the settings").items():
        if key == "root" and isinstance(value, Mapping) and isinstance(value.get("overrides"), Mapping):
            _drop_other_names(data, value["overrides"], names)
        known = data.get(key)
        nested = isinstance(value, Mapping) and isinstance(known, Mapping)
        set_key(data, key, merged(known, value) if nested else value, names)


def merged(block: Any, changes: Any) -> Any:
    """A block with the changes in it; the keys of blocks inside of it may hold dots themselves."""
    if not (isinstance(block, Mapping) and isinstance(changes, Mapping)):
        return changes
    return {**block, **{key: merged(block.get(key), value) for key, value in changes.items()}}


def _absolute(path: str) -> str:
    return str(expanded(path).absolute())


def _absolute_if_there(path: str | None) -> str | None:
    return _absolute(path) if path is not None and expanded(path).exists() else path
