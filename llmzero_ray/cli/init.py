"""The command `init`: write a search.yaml to begin with, from a shipped one or from a script of VeRL."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from llmzero_ray import version
from llmzero_ray.cli import options
from llmzero_ray.cli.output import TerminalConsole, print_line
from llmzero_ray.config import SearchConfig, change_settings, hub_model, presets, resolve_config
from llmzero_ray.config.changes import read_settings
from llmzero_ray.config.yaml_text import read_yaml, to_yaml
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters import VERL_SPACE
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.utils.files import replace_file
from llmzero_ray.utils.text import nearest, one_line
from llmzero_ray.verl_script import Translation, config_of, problem, read_script

_DEFAULT = "local"
_OWN = {
    "name": "my-search",
    "task": {"dir": "data/my_task"},
    "model": {"path": "models/my_model", "lora_rank": 64, "lora_alpha": 64},
    "engine": {"platform": "gpu"},
}
"""Configuration that a VeRL script is merged into without --model."""


def init(
    *,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="4b, 1.7b, one_gpu, ... (default: local, a tiny model on CPUs)"),
    ] = None,
    script: Annotated[
        str | None, typer.Option("--from", metavar="RUN.SH", help="script that starts VeRL's trainer")
    ] = None,
    out: Annotated[str, typer.Option(metavar="FILE", help="the file to write; - prints it")] = "search.yaml",
    force: Annotated[bool, typer.Option("--force", help="replace the file")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="print the JSON schema of search.yaml alone")
    ] = False,
    settings: options.Settings,
) -> int:
    """Write a commented configuration, and say what to do next.

    Settings KEY=VALUE are put into it; the comments of a preset then give way to those of its blocks.

    With --from, bash runs the script in a sandbox in which no program but text tools is there: what it would
    give to `python -m verl.trainer.main_ppo` is put where a search has it, and what could not be taken is
    listed with the reason, here and at the end of the file.

    Raises:
        ConfigError: no such preset, no trainer in the script, the file exists, or a setting is invalid.
    """
    console = TerminalConsole()
    say = partial(print_line, console)
    if schema:
        print(schema_text(), end="")  # noqa: T201
        return 0
    path = Path(out)
    preset = None if script is not None and model is None else _preset(model or _DEFAULT)
    if out != "-" and path.is_dir():
        raise ConfigError(f"--out: {path} is a directory; name a file, such as {path / 'search.yaml'}.")
    if out != "-" and path.exists() and not force:
        raise ConfigError(f"{path} exists. Give --force to replace it, or another name with --out.")
    translation = None
    base = _OWN if preset is None else read_yaml(preset)
    came = Path(script).name if script is not None else f"the preset {preset.stem if preset else _DEFAULT}"
    if script is not None:
        translation = config_of(read_script(Path(script)), base)
        change_settings(translation.data, read_settings(settings), VERL_SPACE.names)
        text = _translated_text(translation, came)
    elif settings:
        root_hyperparameters(resolve_config(base, settings, VERL_SPACE.names, source=came), None)
        change_settings(base, read_settings(settings), VERL_SPACE.names)
        text = _translated_text(Translation(data=base), came)
    else:
        assert preset is not None
        text = _shipped_text(preset, out)
    if out == "-":
        print(text, end="")  # noqa: T201
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text)
    say(f"written to {path}, from {script or came}")
    if translation is not None:
        for line in _summary(translation):
            say(line)
        reason = problem(translation.data)
        if reason is not None:
            say(f"not trainable yet: {reason}")
    say("look at task.dir and model.path in it, then run:")
    first = re.findall(r"^# +llmzero ((?:model|prepare) .*?) *(?:#.*)?$", text, flags=re.MULTILINE)
    for command in (*first, f"doctor {shlex.quote(str(path))}", f"search {shlex.quote(str(path))}"):
        say(f"  llmzero {command}")
    return 0


def schema_text() -> str:
    """JSON schema of search.yaml, as stored in the package."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **SearchConfig.model_json_schema()}
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def _preset(name: str) -> Path:
    known = presets.names()
    plain = name.rpartition("/")[2].lower().replace("-", "_")  # Qwen/Qwen3-4B
    for candidate in (name, plain, f"qwen3_{plain}"):
        if candidate in known:
            return presets.path_of(candidate)
    near = nearest(plain, known)
    hint = f"; did you mean {near!r}?" if near else "."
    model = name if hub_model(name)[0] else "hf://OWNER/NAME"
    raise ConfigError(
        f"no such preset: {name!r}{hint} Presets: {', '.join(known)}; 4b is qwen3_4b. Take the nearest and "
        f"set the model: `llmzero init --model 4b model.path={model}`."
    )


def _head(source: str) -> Iterable[str]:
    yield f"# yaml-language-server: $schema={presets.SCHEMA.as_uri()}"
    yield f"# From {source}, by llmzero {version.__version__}."


def _shipped_text(preset: Path, out: str) -> str:
    text = preset.read_text(encoding="utf-8")
    if out != "-":
        text = text.replace(f"jobs/configs/{preset.name}", out)
    return "\n".join([*_head(f"the preset {preset.stem}"), text])


def _translated_text(made: Translation, source: str) -> str:
    lines = [*_head(one_line(source))]
    for block, value in made.data.items():
        lines += [*_comment(block), to_yaml({block: value}).rstrip()]
    if made.left or made.remarks:
        notes = (*(f"{given}: {reason}" for given, reason in made.left.items()), *made.remarks)
        lines += ["", f"# Not taken from {one_line(source)}:"]
        lines += [f"#   {one_line(note, None)}" for note in notes]
    return "\n".join(lines) + "\n"


def _comment(block: str) -> list[str]:
    """Comment on a block of search.yaml: the first line of its class, or of its field."""
    field = SearchConfig.model_fields[block]
    doc = field.description or getattr(field.annotation, "__doc__", None) or ""
    return [f"# {doc.strip().splitlines()[0]}"] if doc.strip() else []


def _summary(made: Translation) -> Iterable[str]:
    places: Mapping[str, Any] = made.taken
    yield f"taken: {len(places)} of {len(places) + made.n_left} overrides"
    for given, place in places.items():
        yield f"  {given} -> {place}"
    if made.left:
        yield "not taken:"
        yield from (f"  {given}: {reason}" for given, reason in made.left.items())
    yield from (f"note: {remark}" for remark in made.remarks)
