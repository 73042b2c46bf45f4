"""Opens a reward, from a module or from a file.

Shipped rewards are imported. All others are untrusted code: every call of their function runs in a sandbox,
unless the manifest sets `in_place` for a module.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.manifest import RewardEntry
from llmzero_ray.prepared.sandbox import ALLOW, CallOutcome, Sandbox
from llmzero_ray.prepared.shipped_rewards import is_shipped


@dataclass(frozen=True, kw_only=True)
class LoadedReward:
    """A reward of a manifest, ready to be called."""

    path: Path
    """Absolute path of its file."""
    name: str
    score: Callable[[Sequence[Mapping[str, Any]]], list[CallOutcome]]
    """One outcome per set of keyword arguments, in order; raises nothing that the function raises."""
    asynchronous: bool = False

    def __str__(self) -> str:
        return f"reward {self.name} of {self.path}"


@contextlib.contextmanager
def open_reward(entry: RewardEntry, directory: Path, *, how_to_allow: str = ALLOW) -> Iterator[LoadedReward]:
    """Context with the reward of a manifest. Shipped and `in_place` rewards run in this process, others in a
    sandbox that is closed with the context.

    Relative paths are resolved against `directory`. `how_to_allow` is the advice for a user without a
    sandbox.

    Raises:
        TaskError: it cannot be imported, holds no such function, or does not ship, and there is no sandbox
            here and `allow_unsandboxed` is not set.
    """
    if runs_in_place(entry):
        yield _of_module(str(entry.module), entry.name)
        return
    path = (directory / str(entry.path)).resolve() if entry.module is None else file_of(entry.module)
    with sandbox_of(entry, directory, how_to_allow=how_to_allow) as sandbox:
        yield LoadedReward(path=path, name=entry.name, score=sandbox.score)


def runs_in_place(entry: RewardEntry) -> bool:
    """Whether a reward is imported into the process that uses it, instead of a sandbox."""
    return entry.module is not None and (entry.in_place or is_shipped(entry.module))


def top_of(module: str) -> Path:
    """Path that a module's sandbox must show: the directory of its package, or its own file. Nothing is
    imported.

    Raises:
        TaskError: it is not there, or is not a Python file.
    """
    first, dot, _ = module.partition(".")
    spec = PathFinder.find_spec(first)
    if spec is None and first not in sys.builtin_module_names:
        raise TaskError(
            f"reward {module} cannot be imported: there is no module {first!r}; install it or correct it"
        )
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if places:
        return Path(places[0]).resolve()
    if spec is None or dot or spec.origin is None or not spec.origin.endswith(".py"):
        raise TaskError(f"reward {module} is not a file that VeRL's workers could load; put it into a module")
    return Path(spec.origin).resolve()


def file_of(module: str) -> Path:
    """The file of a module; nothing is imported.

    Raises:
        TaskError: it is not there, or is not a Python file.
    """
    top = top_of(module)
    within = top.joinpath(*module.split(".")[1:])
    return top if top.is_file() else within / "__init__.py" if within.is_dir() else within.with_suffix(".py")


def sandbox_of(entry: RewardEntry, directory: Path, **options: Any) -> Sandbox:
    """A sandbox that has imported the reward of a file or module. The caller closes it.

    `options` are those of `Sandbox`.

    Raises:
        TaskError: it cannot be imported within the limits, is asynchronous, or there is no sandbox here.
    """
    return Sandbox(
        (directory / str(entry.path)).resolve() if entry.module is None else top_of(entry.module),
        entry.name,
        module=entry.module,
        allow_unsandboxed=entry.allow_unsandboxed,
        **options,
    )


def _of_module(named: str, name: str) -> LoadedReward:
    try:
        module = importlib.import_module(named)
    except Exception as error:  # a user's module may raise anything
        raise TaskError(f"reward {named} cannot be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        held = ", ".join(name for name, value in vars(module).items() if inspect.isfunction(value))
        raise TaskError(f"reward {named} has no function {name!r}; it has: {held or 'none'}")
    path = getattr(module, "__file__", None)
    if path is None:
        raise TaskError(f"reward {named} is not a file that VeRL's workers could load; put it into a module")

    def call(arguments: Mapping[str, Any]) -> CallOutcome:
        try:
            return CallOutcome(result=function(**arguments))
        except Exception as error:  # noqa: BLE001  a user's reward may raise anything
            return CallOutcome(result=None, problem=f"raises {type(error).__name__}: {error}")

    return LoadedReward(
        path=Path(path).resolve(),
        name=name,
        score=lambda calls: [call(arguments) for arguments in calls],
        asynchronous=inspect.iscoroutinefunction(function),
    )
