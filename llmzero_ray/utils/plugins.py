"""Load objects that a configuration names: `package.module:factory`, or a name that an installed package
registers.

A package registers names as entry points of its pyproject.toml:

    [project.entry-points."llmzero_ray.proposers"]
    careful = "my_package.proposers:make_proposer"

Then `agents.proposer: careful` means the same as `agents.proposer: my_package.proposers:make_proposer`.
"""

from __future__ import annotations

import contextlib
import importlib
import tomllib
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

from llmzero_ray.errors import ConfigError, LlmzeroError
from llmzero_ray.utils.text import nearest, one_line

GROUPS = {
    "engine.backend": "llmzero_ray.engines",
    "agents.backend": "llmzero_ray.agents",
    "agents.proposer": "llmzero_ray.proposers",
    "search.method": "llmzero_ray.methods",
    "task.family": "llmzero_ray.families",
    "tracking.backends": "llmzero_ray.trackers",
    "stopper.rules": "llmzero_ray.stop_rules",
    "reward": "llmzero_ray.rewards",
}
"""Field -> group of entry points whose names it takes."""
_OWN_GROUPS = ("llmzero_ray.tasks", "llmzero_ray.pages")
"""Groups in which the core finds parts of this project (`extension`)."""
_NAMES_ALONE = ("reward", "task.family")
"""Fields that take no `package.module:factory`."""
_MEMBERS = {
    "engine.backend": ("run", "stop", "stage", "evaluate", "close"),
    "agents.backend": ("propose", "analyze", "judge"),
    "agents.proposer": ("propose",),
    "search.method": ("nodes", "ask", "explain", "create", "clone", "offered_checkpoint_nodes", "tell"),
    "task.family": ("name", "version", "licence", "warm_start", "problems", "demonstration"),
    "tracking.backends": ("check", "finish"),
    "stopper.rules": ("check",),
}
"""Field -> members that an object of its factory must have."""
BUILT_IN = {
    "llmzero_ray.engines": ("verl",),
    "llmzero_ray.agents": ("expert", "claude", "recorded"),
    "llmzero_ray.proposers": ("backend", "strategy"),
    "llmzero_ray.methods": ("llmzero",),
    "llmzero_ray.stop_rules": ("non_finite", "collapse", "unmoved"),
    "llmzero_ray.rewards": ("exact_match", "mcq", "math", "regex", "python"),
}
"""Group -> names that work without an entry point. No package may register them."""
_PROJECT = "llmzero-ray"


def import_problem(package: str) -> str:
    """Reason why an optional package cannot be used, such as `is not installed`. Empty if it can be used."""
    try:
        importlib.import_module(package)
    except Exception as error:  # noqa: BLE001 - a broken package raises anything
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            return "is not installed"
        return f"cannot be imported ({one_line(f'{type(error).__name__}: {error}', 200)})"
    return ""


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Package -> version, for the packages that are installed."""
    found = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def load_factory(name: str, *, field: str) -> Callable[..., Any]:
    """Load the callable that a configuration field names.

    Raises:
        ConfigError: nothing is registered under that name, or it is not importable or not callable.
    """
    as_it_stands = ":" in name and field not in _NAMES_ALONE
    named = name if as_it_stands else registered(name, field=field).value
    factory = load(named, f"{field} is {name!r}")
    if not callable(factory):
        raise ConfigError(f"{field} is {name!r}, which is a {type(factory).__name__}; must be callable")
    found: Callable[..., Any] = factory
    return found


def make(name: str, *arguments: Any, field: str) -> Any:
    """The object that the factory of a configuration field gives for these arguments.

    Raises:
        ConfigError: the factory cannot be loaded or raises, or its object lacks a member.
        LlmzeroError: the factory raises this one.
    """
    factory, what = load_factory(name, field=field), f"{field} is {name!r}"
    made = call(factory, *arguments, what=f"{what}, which cannot be made")
    needed = _MEMBERS[field]
    if lacking := [member for member in needed if not hasattr(made, member)]:
        raise ConfigError(
            f"{what}, whose factory gives a value of type {type(made).__name__} without "
            f"{', '.join(lacking)}; must have {', '.join(needed)}. Repair its package, or take another name."
        )
    return made


def call(function: Callable[..., Any], *arguments: Any, what: str) -> Any:
    """Result of a function of another package. `what` begins the error message if it raises.

    Raises:
        ConfigError: it raises.
        LlmzeroError: it raises this one.
    """
    try:
        return function(*arguments)
    except LlmzeroError:
        raise
    except (Exception, SystemExit) as error:
        reason = one_line(f"{type(error).__name__}: {error}", 300)
        raise ConfigError(f"{what}: {reason}. Repair its package, or take another name.") from error


def extension(group: str, name: str) -> Any:
    """Load an object that an extension of this project registers for the core, such as the maker of tasks.

    Raises:
        ConfigError: it is not installed, or cannot be imported.
    """
    point = points(group).get(name)
    if point is None:
        raise ConfigError(
            f"{name!r} of {group} is not installed: a part of {_PROJECT} is missing here. Install {_PROJECT} "
            "again."
        )
    return load(point.value, f"{name!r} is an entry point of {group}")


def load(value: str, what: str) -> Any:
    """Load the object `package.module:name`. `what` is the beginning of the error message.

    Raises:
        ConfigError: it cannot be imported.
    """
    module, attribute = _parts(value, what)
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
        reason = one_line(f"{kind}{error}", 300)
        raise ConfigError(
            f"{what}, which cannot be loaded: {reason}. Install or repair its package, or correct the name."
        ) from error


def _parts(value: str, what: str) -> tuple[str, str]:
    """Module and object of `package.module:name`; `what` as in `load`."""
    module, _, attribute = value.partition(":")
    if not module or not attribute:
        raise ConfigError(
            f"{what}, which stands for {value!r}; must be package.module:name. Repair its package, or "
            "correct the name."
        )
    return module, attribute


def registered(name: str, *, field: str) -> EntryPoint:
    """The entry point of that name. Nothing is imported.

    Raises:
        ConfigError: no installed package registers it, two do, or it stands for no `package.module:name`.
    """
    group = GROUPS[field]
    if name in own_points(group):
        return own_points(group)[name]
    found = points(group)
    if name in found:
        _parts(found[name].value, f"{field} is {name!r}")
        return found[name]
    ours = own_points(group)
    built_in = () if field == "stopper.rules" else BUILT_IN.get(group, ())  # shipped rules go unnamed
    known = [*built_in, *ours, *sorted(set(found) - set(ours))]
    near = nearest(name, known)
    forms = [*known, *(() if field in _NAMES_ALONE else ("package.module:factory",))]
    raise ConfigError(
        f"{field} is {name!r}; must be {', '.join(forms)}, or a name that an "
        f"installed package registers as an entry point of {group}."
        + (f" Did you mean {near!r}?" if near else "")
    )


def points(group: str) -> dict[str, EntryPoint]:
    """Entry points of a group by name, this project's own first.

    Raises:
        ConfigError: two packages register the same name, or one registers a name that is built in.
    """
    found = dict(own_points(group))
    for point in entry_points(group=group):
        owner = _owner(point)
        if owner == _PROJECT:
            continue
        if point.name in found or point.name in BUILT_IN.get(group, ()):
            other = _owner(found[point.name]) if point.name in found else ""
            raise ConfigError(
                f"{owner or point.value} registers {point.name!r} as an entry point of {group}, and "
                f"{other or _PROJECT} has that name, too. Uninstall one of them, or register another name."
            )
        found[point.name] = point
    return found


@cache
def own_points(group: str) -> dict[str, EntryPoint]:
    """This project's own entry points of a group by name.

    In a checkout, they are read from its pyproject.toml, because the installed ones may be outdated.
    """
    if _of_checkout():
        own = _of_checkout().get(group, {})
        return {name: EntryPoint(name, value, group) for name, value in own.items()}
    return {point.name: point for point in entry_points(group=group) if _owner(point) == _PROJECT}


def check_names() -> None:
    """Check that no two packages register the same name.

    Raises:
        ConfigError: two do, or one registers a name that is built in.
    """
    for group in (*GROUPS.values(), *_OWN_GROUPS):
        points(group)


def _owner(point: EntryPoint) -> str:
    return "" if point.dist is None else point.dist.name.lower().replace("_", "-")


@cache
def _of_checkout() -> dict[str, dict[str, str]]:
    """Entry-point groups of this project's pyproject.toml in a checkout. Empty in a wheel."""
    path = Path(__file__).resolve().parents[2] / "pyproject.toml"
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return {}
    return dict(project.get("entry-points", {})) if project.get("name") == _PROJECT else {}
