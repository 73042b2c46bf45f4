"""Load what a configuration names: `package.module:factory`, or a name that an installed package registered.

A package registers names as entry points of its pyproject.toml:

    [project.entry-points."llmzero_ray.proposers"]
    careful = "my_package.proposers:make_proposer"

after which `agents.proposer: careful` is the same as `agents.proposer: my_package.proposers:make_proposer`.
Not here: what each factory is called with (where it is called).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from llmzero_ray.errors import ConfigError
from llmzero_ray.text import nearest, one_line

GROUPS = {
    "engine.backend": "llmzero_ray.engines",
    "agents.backend": "llmzero_ray.agents",
    "agents.proposer": "llmzero_ray.proposers",
    "search.method": "llmzero_ray.methods",
    "reward": "llmzero_ray.rewards",
}
"""Field -> group of entry points whose names it takes."""


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


def registered(name: str, *, field: str, own: Iterable[str] = ()) -> EntryPoint:
    """The entry point of that name; nothing is imported.

    Raises:
        ConfigError: no installed package registers it.
    """
    found = {point.name: point for point in entry_points(group=GROUPS[field])}
    if name in found:
        return found[name]
    known = [*own, *sorted(found)]
    near = nearest(name, known)
    forms = [*known, *(() if field == "reward" else ("package.module:factory",))]
    raise ConfigError(
        f"{field} is {name!r}; must be {', '.join(forms)}, or a name that an "
        f"installed package registers as an entry point of {GROUPS[field]}."
        + (f" Did you mean {near!r}?" if near else "")
    )
