"""Rewards that were vetted when their task was prepared: VeRL's workers load them only as they were then.

A prepared task holds the reward and, beside it, a small loader that VeRL is given in its place. The loader
names the SHA-256 of the vetted file. Not here: vetting (../reward_validation).
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.files import text_digest

LOADER = "vetted_reward.py"
"""Name of the loader in a task's directory."""
_TEXT = '''"""Gives VeRL the reward function of {file}, if that file is still the one that was vetted."""

from pathlib import Path

from llmzero_ray.tasks.rewards.vetted import load_vetted

{name} = load_vetted(
    Path(__file__).with_name({file!r}),
    {name!r},
    {digest!r},
)
'''


def write_loader(reward: Path, name: str, digest: str) -> None:
    """Write the loader of a vetted reward beside it.

    Raises:
        OSError: it cannot be written.
    """
    reward.with_name(LOADER).write_text(_text(reward, name, digest), encoding="utf-8")


def check_loader(reward: Path, name: str, digest: str) -> str:
    """Path of the loader, once it and the reward are what they were when the reward was vetted.

    Raises:
        TaskError: one of the two is missing or has changed.
    """
    _vetted_bytes(reward, digest)
    loader = reward.with_name(LOADER)
    try:
        found = loader.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(
            f"{loader} cannot be read, without which VeRL does not see the vetted reward: {error}; make the "
            "task again in another directory"
        ) from error
    if found != _text(reward, name, digest):
        raise TaskError(
            f"{loader} is not the loader of the vetted reward {reward.name}:{name}; make the task again in "
            "another directory"
        )
    return str(loader)


def load_vetted(reward: Path, name: str, digest: str) -> Any:
    """The function of a reward file whose SHA-256 is `digest`; what is hashed is what is run.

    Raises:
        TaskError: the file is missing, has changed, or has no such function.
    """
    source = _vetted_bytes(reward, digest)
    module = ModuleType(f"llmzero_reward_{digest[:16]}")
    module.__file__ = str(reward)
    # Dataclasses look their module up by name, already while it is being executed.
    sys.modules[module.__name__] = module
    exec(compile(source, str(reward), "exec"), module.__dict__)
    if not callable(function := getattr(module, name, None)):
        raise TaskError(f"reward {reward} has no function {name!r}; it was prepared with one")
    return function


def _vetted_bytes(reward: Path, digest: str) -> bytes:
    try:
        source = reward.read_bytes()
    except OSError as error:
        raise TaskError(
            f"reward {reward} cannot be read: {error.strerror or error}; make the task again"
        ) from error
    found = text_digest(source)
    if found != digest:
        raise TaskError(
            f"{reward} has changed since the task was made and the reward was vetted: its sha256 is "
            f"{found[:12]}..., the manifest says {digest[:12]}...; scores would not be comparable: make the "
            "task again in another directory"
        )
    return source


def _text(reward: Path, name: str, digest: str) -> str:
    return _TEXT.format(file=reward.name, name=name, digest=digest)
