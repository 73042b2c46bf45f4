"""Get hold of a reward function: of a module, a file, or a prepared task.

Modules are imported; files are code that nobody has vouched for, and every call of their function runs in a
sandbox. Not here: trying rewards on rows (../reward_check.py, ../gate.py), how VeRL gets them (vetted.py).
"""

from __future__ import annotations

import importlib
import inspect
import weakref
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.manifest import read_manifest
from llmzero_ray.tasks.sandbox import Sandbox

RewardFunction: TypeAlias = Callable[..., Any]
"""`compute_score(data_source, solution_str, ground_truth, extra_info, **options)`."""
ALLOW_IN_MANIFEST = "write allow_unsandboxed: true into `reward` of task.yaml or of manifest.json"
_DEFAULT_NAME = "compute_score"


@lru_cache(maxsize=64)
def load_module(module: str, name: str = _DEFAULT_NAME) -> RewardFunction:
    """The reward function of an importable module.

    Raises:
        TaskError: it cannot be imported, or holds no such function.
    """
    try:
        return _function(importlib.import_module(module), name, module)
    except TaskError:
        raise
    except Exception as error:  # a user's module may raise anything
        raise TaskError(f"reward {module} cannot be imported: {type(error).__name__}: {error}") from error


def load_file(
    named: str, *, allow_unsandboxed: bool = False, how_to_allow: str = ALLOW_IN_MANIFEST
) -> RewardFunction:
    """The reward function of `FILE.py` or `FILE.py:function`, to be called by keywords from this thread.

    A call raises TaskError when the function does, or takes too much time or memory; values that are neither
    number, text nor None come back as `Foreign`. `how_to_allow` says what a user does who has no sandbox.

    Raises:
        TaskError: no such file, it does not compile or raises, it holds no such function, or there is no
            sandbox here and `allow_unsandboxed` is not set.
    """
    place, colon, name = named.rpartition(":")
    path, function = (Path(place), name) if colon and place.endswith(".py") else (Path(named), _DEFAULT_NAME)
    if not path.is_file() or path.suffix != ".py":
        raise TaskError(
            f"reward {named} is neither a known kind nor a Python file FILE.py or FILE.py:function"
        )
    sandbox = Sandbox(path, function, allow_unsandboxed=allow_unsandboxed, how_to_allow=how_to_allow)
    if sandbox.asynchronous:
        sandbox.close()
        raise TaskError(f"reward {path}:{function} is asynchronous; only plain functions can be tried here")
    return _Confined(sandbox)


def load_task_reward(directory: Path) -> RewardFunction:
    """The reward function that the manifest of a prepared task names; `load_file` says how one of a file can
    be called.

    Raises:
        TaskError: there is no manifest, or its reward cannot be loaded.
    """
    entry = read_manifest(directory).reward
    if entry.module is not None:
        return load_module(entry.module, entry.name)
    named = f"{(directory / str(entry.path)).resolve()}:{entry.name}"
    return load_file(named, allow_unsandboxed=entry.allow_unsandboxed)


class _Confined:
    """A function that runs in a sandbox; the sandbox ends with it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        weakref.finalize(self, sandbox.close)

    def __call__(self, **row: Any) -> Any:
        [outcome] = self._sandbox.score([row])
        if outcome.problem:
            raise TaskError(f"the reward {outcome.problem}; correct the reward")
        return outcome.result


def _function(module: ModuleType, name: str, where: str) -> RewardFunction:
    function = getattr(module, name, None)
    if not callable(function):
        raise TaskError(f"reward {where} has no function {name!r}; name one that it has")
    if inspect.iscoroutinefunction(function):
        raise TaskError(f"reward {where}:{name} is asynchronous; only plain functions can be tried here")
    found: RewardFunction = function
    return found
