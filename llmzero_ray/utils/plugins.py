"""Load what a configuration names: `package.module:factory`, or a name that an installed package registered.

A package registers names as entry points of its pyproject.toml:

    [project.entry-points."llmzero_ray.proposers"]
    careful = "my_package.proposers:make_proposer"

after which `agents.proposer: careful` is the same as `agents.proposer: my_package.proposers:make_proposer`.
Not here: what each factory is called with (where it is called).
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from llmzero_ray.errors import ConfigError
from llmzero_ray.utils.text import nearest, one_line

GROUPS = {
    "engine.backend": "llmzero_ray.engines",
    "agents.backend": "llmzero_ray.agents",
    "agents.proposer": "llmzero_ray.proposers",
    "search.method": "llmzero_ray.methods",
    "task.family": "llmzero_ray.families",
    "tracking.backends": "llmzero_ray.trackers",
    "reward": "llmzero_ray.rewards",
}
"""Field -> group of entry points whose names it takes."""
_PROJECT = "llmzero-ray"


def import_problem(package: str) -> str:
    """Why an optional package cannot be used, such as `is not installed`; empty when it can be imported."""
    try:
        importlib.import_module(package)
    except Exception as error:  # noqa: BLE001 - a broken package raises anything
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            return "is not installed"
        return f"cannot be imported ({one_line(f'{type(error).__name__}: {error}', 200)})"
    return ""


def load_factory(name: str, *, field: str, own: Iterable[str] = ()) -> Callable[..., Any]:
    """The callable that a configuration field names; `own` are the names that the field has besides.

    Raises:
        ConfigError: nothing is registered under that name, or it is not importable or not callable.
    """
    named = name if ":" in name else registered(name, field=field, own=own).value
    module, _, attribute = named.partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{field} is {name!r}, which cannot be loaded: {error}") from error
    if not callable(factory):
        raise ConfigError(f"{field} is {name!r}, which is a {type(factory).__name__}; must be callable")
    found: Callable[..., Any] = factory
    return found


def extension(group: str, name: str) -> Any:
    """What an extension of this project registers for the core, such as the maker of tasks.

    Raises:
        ConfigError: it is not installed, or cannot be imported.
    """
    point = points(group).get(name)
    if point is None:
        raise ConfigError(
            f"{name!r} of {group} is not installed: a part of {_PROJECT} is missing here. Install {_PROJECT} "
            "again."
        )
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{name!r} of {group} ({point.value}) cannot be loaded: {error}") from error


def registered(name: str, *, field: str, own: Iterable[str] = ()) -> EntryPoint:
    """The entry point of that name; nothing is imported.

    Raises:
        ConfigError: no installed package registers it.
    """
    group = GROUPS[field]
    found = points(group)
    if name in found:
        return found[name]
    known = [*own, *sorted(found)]
    near = nearest(name, known)
    forms = [*known, *(() if field == "reward" else ("package.module:factory",))]
    raise ConfigError(
        f"{field} is {name!r}; must be {', '.join(forms)}, or a name that an "
        f"installed package registers as an entry point of {group}."
        + (f" Did you mean {near!r}?" if near else "")
    )


def points(group: str) -> dict[str, EntryPoint]:
    """Entry points of a group by name, this project's own first.

    Raises:
        ConfigError: two packages register the same name.
    """
    found = {name: EntryPoint(name, value, group) for name, value in _of_checkout().get(group, {}).items()}
    for point in entry_points(group=group):
        owner = _owner(point)
        if owner == _PROJECT and _of_checkout():
            continue  # as installed; the checkout may be newer
        if point.name in found:
            raise ConfigError(
                f"{owner or point.value} registers {point.name!r} as an entry point of {group}, and "
                f"{_owner(found[point.name]) or _PROJECT} does, too. Uninstall one of them, or name the "
                "factory as package.module:factory."
            )
        found[point.name] = point
    return found


def _owner(point: EntryPoint) -> str:
    return "" if point.dist is None else point.dist.name.lower().replace("_", "-")


@cache
def _of_checkout() -> dict[str, dict[str, str]]:
    """Groups of this project's pyproject.toml where it lies beside the package; empty in a wheel."""
    path = Path(__file__).resolve().parents[2] / "pyproject.toml"
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return {}
    return dict(project.get("entry-points", {})) if project.get("name") == _PROJECT else {}
