"""Short keys of search.yaml: `runs` for `budget.runs`, `lr` for `root.overrides.lr`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import ConfigError, HyperparameterError
from llmzero_ray.hyperparameters import VERL_SPACE
from llmzero_ray.utils.text import nearest


def with_whole_keys(settings: Sequence[str]) -> list[str]:
    """Settings `key=value` with the full keys of search.yaml.

    Raises:
        ConfigError: a key without a dot is unknown or ambiguous.
    """
    return [
        "=".join((_whole(key.strip()), *value)) for key, *value in (one.split("=", 1) for one in settings)
    ]


def _whole(key: str) -> str:
    fields = [*_fields(SearchConfig)]
    if key.partition(".")[0] in SearchConfig.model_fields:
        return key
    found = [field for field in fields if field.endswith(f".{key}")]
    try:
        name = VERL_SPACE.canonical(key)
        found += [f"root.overrides.{key}"] if not found or VERL_SPACE.owned(name) is None else []
    except HyperparameterError:
        pass
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{key} can stand for {', '.join(found)}; write the one that you mean.")
    if "." in key:
        return key
    short = {field.rpartition(".")[2]: field for field in fields} | {
        name: name for name in SearchConfig.model_fields
    }
    names = [name for name in VERL_SPACE.names if "." not in name]
    near = nearest(key, [*SearchConfig.model_fields, *short, *names])
    whole = short.get(near or "", f"root.overrides.{near}")
    hint = "" if near is None else f"; did you mean {near!r}" + (f" ({whole})?" if "." in whole else "?")
    raise ConfigError(
        f"unknown key {key!r}{hint or '.'} Keys are those of search.yaml, such as budget.runs, and names of "
        "hyper-parameters, such as lr."
    )


def _fields(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """Dotted names of all fields."""
    for name, field in model.model_fields.items():
        below = field.annotation
        if isinstance(below, type) and issubclass(below, BaseModel):
            yield from _fields(below, f"{above}{name}.")
        else:
            yield f"{above}{name}"
