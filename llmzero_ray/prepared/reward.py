"""Loads a reward function: from a module, from a file, or of a prepared task.

Shipped rewards are imported. All others are untrusted code: every call of their function runs in a sandbox,
unless the manifest sets `in_place` for a module.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.manifest import RewardEntry, read_manifest
from llmzero_ray.prepared.sandbox import CallOutcome, Sandbox
from llmzero_ray.prepared.shipped_rewards import KINDS, is_shipped
from llmzero_ray.utils.text import nearest

RewardFunction: TypeAlias = Callable[..., Any]
"""`compute_score(data_source, solution_str, ground_truth, extra_info, **options)`."""
ALLOW_IN_MANIFEST = "write allow_unsandboxed: true into `reward` of task.yaml or of manifest.json"
_DEFAULT_NAME = "compute_score"


@dataclass(frozen=True, kw_only=True)
class LoadedReward:
    """A reward of a manifest, ready to be called."""

    path: Path
    """Absolute path of its file."""
    name: str
    score: Callable[[Sequence[Mapping[str, Any]]], list[CallOutcome]]
    """One outcome per set of keyword arguments, in order; raises nothing that the function raises."""
    asynchronous: bool

    def __str__(self) -> str:
        return f"reward {self.name} of {self.path}"


@contextlib.contextmanager
def open_reward(entry: RewardEntry, directory: Path) -> Iterator[LoadedReward]:
    """The reward of a manifest: one that ships in this process, others in a sandbox that ends with the
    context.

    A relative path of a file starts at `directory`.

    Raises:
        TaskError: it cannot be imported, holds no such function, or does not ship, and there is no sandbox
            here and `allow_unsandboxed` is not set.
    """
    if runs_in_place(entry):
        yield _of_module(str(entry.module), entry.name)
        return
    path = (directory / str(entry.path)).resolve() if entry.module is None else file_of(entry.module)
    with _sandbox_of(entry, path) as sandbox:
        yield LoadedReward(path=path, name=entry.name, score=sandbox.score, asynchronous=sandbox.asynchronous)


def runs_in_place(entry: RewardEntry) -> bool:
    """Whether a reward is imported where it is used."""
    return entry.module is not None and (entry.in_place or is_shipped(entry.module))


def top_of(module: str) -> Path:
    """What the sandbox must show of a module: the directory of its package, or its own file; nothing is
    imported.

    Raises:
        TaskError: it is not there, or is no Python file.
    """
    first, dot, _ = module.partition(".")
    spec = PathFinder.find_spec(first)
    if spec is None and first not in sys.builtin_module_names:
        raise TaskError(f"reward {module} cannot be imported: ModuleNotFoundError: No module named {first!r}")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if places:
        return Path(places[0]).resolve()
    if spec is None or dot or spec.origin is None or not spec.origin.endswith(".py"):
        raise TaskError(f"reward {module} is not a file that VeRL's workers could load; put it into a module")
    return Path(spec.origin).resolve()


def file_of(module: str) -> Path:
    """The file of a module; nothing is imported.

    Raises:
        TaskError: it is not there, or is no Python file.
    """
    top = top_of(module)
    within = top.joinpath(*module.split(".")[1:])
    return top if top.is_file() else within / "__init__.py" if within.is_dir() else within.with_suffix(".py")


def _sandbox_of(entry: RewardEntry, path: Path) -> Sandbox:
    return Sandbox(
        path if entry.module is None else top_of(entry.module),
        entry.name,
        module=entry.module,
        allow_unsandboxed=entry.allow_unsandboxed,
        how_to_allow=ALLOW_IN_MANIFEST,
    )


def _of_module(named: str, name: str) -> LoadedReward:
    module, function = _imported(named, name)
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


def _imported(named: str, name: str) -> tuple[ModuleType, RewardFunction]:
    """A module and its function of that name."""
    try:
        module = importlib.import_module(named)
    except Exception as error:  # a user's module may raise anything
        raise TaskError(f"reward {named} cannot be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        held = ", ".join(name for name, value in vars(module).items() if inspect.isfunction(value))
        raise TaskError(f"reward {named} has no function {name!r}; it has: {held or 'none'}")
    return module, function


@lru_cache(maxsize=64)
def load_module(module: str, name: str = _DEFAULT_NAME) -> RewardFunction:
    """The reward function of an importable module, itself.

    Raises:
        TaskError: it cannot be imported, holds no such function, or the function is asynchronous.
    """
    _, function = _imported(module, name)
    if inspect.iscoroutinefunction(function):
        raise TaskError(f"reward {module}:{name} is asynchronous; only plain functions can be tried here")
    return function


def load_file(
    named: str, *, allow_unsandboxed: bool = False, how_to_allow: str = ALLOW_IN_MANIFEST
) -> RewardFunction:
    """Reward function of `FILE.py` or `FILE.py:function`, to be called with keywords from this thread.

    A call raises TaskError if the function raises, or takes too much time or memory. Values that are neither
    number, text nor None are returned as `ForeignValue`. `how_to_allow` is the advice for a user without a
    sandbox.

    Raises:
        TaskError: no such file, it does not compile or raises, it holds no such function, or there is no
            sandbox here and `allow_unsandboxed` is not set.
    """
    place, colon, name = named.rpartition(":")
    path, function = (Path(place), name) if colon and place.endswith(".py") else (Path(named), _DEFAULT_NAME)
    if not path.is_file() or path.suffix != ".py":
        near = nearest(named, KINDS)
        hint = f" Did you mean {near!r}?" if near else ""
        raise TaskError(
            f"reward {named} is neither a known kind ({', '.join(KINDS)}) nor a Python file FILE.py or "
            f"FILE.py:function.{hint}"
        )
    sandbox = Sandbox(path, function, allow_unsandboxed=allow_unsandboxed, how_to_allow=how_to_allow)
    return _plain_function(sandbox, str(path), function)


def _plain_function(sandbox: Sandbox, place: str, name: str) -> RewardFunction:
    if sandbox.asynchronous:
        sandbox.close()
        raise TaskError(f"reward {place}:{name} is asynchronous; only plain functions can be tried here")
    return _SandboxedFunction(sandbox)


def load_task_reward(directory: Path) -> RewardFunction:
    """Reward function in the manifest of a prepared task. See `load_file` for how to call one from a file.

    Raises:
        TaskError: there is no manifest, or its reward cannot be loaded.
    """
    entry = read_manifest(directory).reward
    if entry.module is None:
        named = f"{(directory / str(entry.path)).resolve()}:{entry.name}"
        return load_file(named, allow_unsandboxed=entry.allow_unsandboxed)
    if runs_in_place(entry):
        return load_module(entry.module, entry.name)
    return _plain_function(_sandbox_of(entry, file_of(entry.module)), entry.module, entry.name)


class _SandboxedFunction:
    """A function that runs in a sandbox; the sandbox ends with it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        weakref.finalize(self, sandbox.close)

    def __call__(self, **arguments: Any) -> Any:
        [outcome] = self._sandbox.score([arguments])
        if outcome.problem:
            raise TaskError(f"the reward {outcome.problem}; correct the reward")
        return outcome.result
