"""From a script that starts VeRL's trainer to the data of a search.yaml.

`read_script` finds the command `python -m verl.trainer.main_ppo` with its overrides; `config_of` sorts each
override to where a search has it: a hyper-parameter of the root, a field, a raw VeRL key of the engine, or
nowhere, with the reason. Not here: running anything of the script (nothing of it is run), the file that is
written (cli/init.py).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmzero_ray.config import parse_config, set_key
from llmzero_ray.config_text import read_yaml
from llmzero_ray.coordinator import root_hyperparameters
from llmzero_ray.errors import ConfigError, LlmzeroError
from llmzero_ray.hyperparameters import VERL_SPACE, VERL_VERSION
from llmzero_ray.hyperparameters.access import FROM_CONFIG
from llmzero_ray.hyperparameters.verl_keys import VERL_KEYS, is_verl_key
from llmzero_ray.text import nearest

TRAINER = "verl.trainer.main_ppo"
_ASSIGNMENT = re.compile(
    r"(?:export\s+|declare\s+(?:-\w+\s+)?|readonly\s+|local\s+)?([A-Za-z_]\w*)(\+?)=(.*)", re.S
)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:(:?[-=])([^{}]*))?\}|([A-Za-z_]\w*))")
_ARRAY_USE = re.compile(r"^\$\{([A-Za-z_]\w*)\[[@*]\]\}$")
_END = re.compile(r"^(\||\|\||&&|&|;|>|>>|<|[12]>.*|&>.*)$")

_FIELDS = {
    **{key: name for name, key in FROM_CONFIG.items()},
    "actor_rollout_ref.model.path": "model.path",
    "trainer.total_training_steps": "phase.n_steps",
    "trainer.test_freq": "phase.test_freq",
    "trainer.save_freq": "phase.save_freq",
    "trainer.nnodes": "slots.nodes",
    "trainer.n_gpus_per_node": "slots.gpus_per_node",
    "actor_rollout_ref.rollout.agent.num_workers": "engine.agent_workers",
    "reward.num_workers": "engine.reward_workers",
}
"""VeRL's key -> the field of search.yaml that says the same."""
_ELSEWHERE = {
    "data.train_files": "rows belong to the task: name its directory in task.dir",
    "data.val_files": "rows belong to the task: name its directory in task.dir",
    "trainer.total_epochs": "phases are counted in steps: phase.n_steps is rows / batch for each epoch",
    "trainer.logger": "name trackers in tracking.backends; the report needs none",
    "trainer.project_name": "it is tracking.project, where a tracker is named",
    "trainer.resume_mode": "a search decides where each phase resumes",
    "trainer.resume_from_path": "a search decides where each phase resumes",
    "data.prompt_key": "rows of a prepared task have VeRL's own columns",
    "data.reward_fn_key": "rows of a prepared task have VeRL's own columns",
}
_SAME = {
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.mode": "async",
    "actor_rollout_ref.actor.strategy": "fsdp2",
    "actor_rollout_ref.hybrid_engine": True,
    "algorithm.adv_estimator": "grpo",
    "trainer.val_before_train": True,
    "trainer.device": "cuda",
    "trainer.use_v1": True,
}
"""What every phase of a search does by itself."""


@dataclass
class Script:
    """The trainer's overrides in the order of the script, and remarks on what could not be read."""

    overrides: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


@dataclass
class Translation:
    """The data of a search.yaml, and what of the script is not in it, each with the reason."""

    data: dict[str, Any]
    taken: dict[str, str]
    """Override -> where it is now."""
    left: dict[str, str]
    """Override -> why it was not taken."""
    remarks: list[str]


def read_script(path: Path) -> Script:
    """The overrides that a script gives to VeRL's trainer; variables that the script sets are put in.

    Raises:
        ConfigError: it cannot be read, or starts no trainer.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}).") from error
    found, variables, arrays = Script(), dict[str, str](), dict[str, list[str]]()
    for line in _logical_lines(text):
        assignment = _ASSIGNMENT.fullmatch(line.strip())
        if TRAINER in line:
            _read_command(line, found, variables, arrays)
            return found
        if assignment:
            _assign(assignment, variables, arrays)
    raise ConfigError(
        f"{path}: no command `python -m {TRAINER} ...` was found in it. Give the script that starts VeRL's "
        "trainer, with its overrides written in it."
    )


def _logical_lines(text: str) -> list[str]:
    """Lines with continuations and arrays joined, and comments left out."""
    lines: list[str] = []
    waiting, is_array = "", False
    for raw in text.splitlines():
        line = re.sub(r"(^|\s)#.*$", "", raw).rstrip()
        if not line.strip() and (is_array or raw.strip()):
            continue  # a comment, or a gap in an array
        goes_on = line.endswith("\\")
        waiting = f"{waiting} {line[:-1] if goes_on else line}".strip()
        is_array = bool(re.match(r"(\w+\s+)?\w+\+?=\(", waiting)) and not waiting.endswith(")")
        if waiting and not goes_on and not is_array:
            lines.append(waiting)
            waiting = ""
    return [*lines, waiting] if waiting else lines


def _assign(found: re.Match[str], variables: dict[str, str], arrays: dict[str, list[str]]) -> None:
    name, plus, value = found.groups()
    if value.startswith("("):
        words = [_expand(word, variables) for word in _words(value.strip("()"))]
        arrays[name] = [*arrays.get(name, []), *words] if plus else words
        return
    words = _words(value)
    if len(words) <= 1:
        variables[name] = _expand(words[0] if words else "", variables)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quotation mark that is not closed
        return text.split()


def _expand(word: str, variables: Mapping[str, str]) -> str:
    """The word with the values of variables that the script sets; others stay as they are."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[4]
        default = found[3] if found[2] else None
        return variables.get(name, found[0] if default is None else default)

    for _ in range(5):  # a default may hold a variable
        expanded = _VARIABLE.sub(value, word)
        if expanded == word:
            break
        word = expanded
    return word


def _read_command(
    line: str, found: Script, variables: Mapping[str, str], arrays: Mapping[str, list[str]]
) -> None:
    words = _words(line)
    start = next(place for place, word in enumerate(words) if TRAINER in word)
    for given in words[start + 1 :]:
        if _END.match(given):
            break
        array = _ARRAY_USE.match(given)
        for word in arrays.get(array[1], [given]) if array else [given]:
            _read_override(_expand(word, variables), found)


def _read_override(word: str, found: Script) -> None:
    key, equals, value = word.partition("=")
    if word in ("$@", "${@}", "$*") or not word:
        return
    if not equals or word.startswith("-"):
        found.remarks.append(f"{word}: is no override KEY=VALUE")
    elif "$" in value and key.lstrip("+~") not in _ELSEWHERE:
        found.remarks.append(f"{word}: its variable is not set in the script")
    else:
        found.overrides[key.lstrip("+~")] = value


# --- to a search.yaml ---------------------------------------------------------------------------------------


def config_of(script: Script, base: Mapping[str, Any]) -> Translation:
    """The data of a search.yaml: `base` with what the script says.

    The data is complete enough to be read; what it names (task, model) need not be there yet.
    """
    made = Translation(dict(base), {}, {}, list(script.remarks))
    keys: dict[str, Any] = {}
    for key, text in script.overrides.items():
        try:
            keys[key] = read_yaml(text, source=key) if text else None
        except ConfigError as error:
            made.left[f"{key}={text}"] = str(error)
    for key, value in sorted(
        keys.items(), key=lambda item: not _FIELDS.get(item[0], "").startswith("slots.")
    ):
        _place(key, value, f"{key}={script.overrides[key]}", made)
    _lengths(made, keys)
    if not keys.get("actor_rollout_ref.model.lora_rank"):
        made.remarks.append(
            "the script trains all weights; a search trains a LoRA adapter (model.lora_rank "
            f"{parse_config(made.data).model.lora_rank}), which takes a learning rate about ten times as high"
        )
    return made


def _place(key: str, value: Any, given: str, made: Translation) -> None:
    """Put one override where a search has it."""
    if key in _ELSEWHERE:
        made.left[given] = _ELSEWHERE[key]
    elif _SAME.get(key, made) == value:
        made.taken[given] = "so in every search"
    elif "custom_reward_function" in key:
        made.left[given] = "the reward is the task's: name it in its manifest.json or task.yaml"
    elif key == "trainer.experiment_name":
        name = re.sub(r"[^a-z0-9_-]+", "-", str(value).lower()).strip("-_")[:63]
        _try(made, given, "name", name)
    elif key in _FIELDS:
        _try(made, given, _FIELDS[key], value)
    elif key in VERL_SPACE.by_key and VERL_SPACE.owned(key) is None:
        _try(made, given, f"root.overrides.{VERL_SPACE.short(key)}", value)
    elif (reason := VERL_SPACE.owned(key)) is not None:
        made.left[given] = reason
    elif key.startswith("critic"):
        made.left[given] = "a critic is not supported"
    elif is_verl_key(key):
        _try(made, given, f"engine.overrides.{key}", value)
    else:
        near = nearest(key, VERL_KEYS)
        hint = f"; did you mean {near}?" if near else ""
        made.left[given] = f"VeRL {VERL_VERSION} has no such key{hint}"


def _try(made: Translation, given: str, place: str, value: Any) -> None:
    """Put a value at a place of the configuration, unless a search cannot have it there."""
    data = _copied(made.data)
    try:
        set_key(data, place, value)
        if place == "phase.n_steps" and isinstance(value, int):
            set_key(data, "phase.max_steps", max(value, parse_config(made.data).phase.max_steps))
        parse_config(data)
        if place.startswith("root.overrides."):
            VERL_SPACE.normalize(data["root"]["overrides"])
    except LlmzeroError as error:
        made.left[given] = str(error).partition(": ")[2] or str(error)
    else:
        made.data, made.taken[given] = data, place


def _copied(data: Any) -> Any:
    return {key: _copied(value) for key, value in data.items()} if isinstance(data, Mapping) else data


def _lengths(made: Translation, keys: Mapping[str, Any]) -> None:
    """Room for the script's responses in the engine, and validation at the same length."""
    cap = keys.get("data.max_response_length")
    if isinstance(cap, int) and cap > 0:
        for place in ("engine.max_response_length", "eval.max_response_length"):
            set_key(made.data, place, cap)


def problem(data: Mapping[str, Any]) -> str | None:
    """Why the root of a configuration could not be trained; None: it could."""
    try:
        root_hyperparameters(parse_config(data), None)
    except LlmzeroError as error:
        return str(error)
    return None
