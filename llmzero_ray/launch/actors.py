"""Access to this library's actors: the package `actors` in a checkout, `llmzero_ray.actors` in a wheel.

All code above the actors uses them through this module: `actors.app.start_on(...)` imports the module `app`
of that package when the line runs. A process uses only one of the two names, because the same class under two
names would be two classes.

The name used is the one under which Python finds the actors' folder that belongs to this `llmzero_ray`.
Another project's package `actors`, or the actors of another installation of this library, is never used.
Ray's workers import actors by the same name as the process that starts them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from llmzero_ray.errors import LlmzeroError

if TYPE_CHECKING:
    from actors import agent_services as agent_services
    from actors import app as app
    from actors import control_requests as control_requests
    from actors import head as head
    from actors import model_server as model_server
    from actors import names as names
    from actors import placement as placement
    from actors import runner_pool as runner_pool
else:

    def __getattr__(name: str) -> ModuleType:
        if name.startswith("__"):
            raise AttributeError(name)
        return importlib.import_module(f"{package_name()}.{name}")


_LIBRARY = Path(__file__).resolve().parent.parent
_NAMES = ("actors", "llmzero_ray.actors")


@cache
def package_name() -> str:
    """Name under which the actors of this library are imported.

    In an editable installation, both names may lead to the folder. A name that is already imported is
    preferred.

    Raises:
        LlmzeroError: no name leads to the folder, usually because another package `actors` comes first.
    """
    inside, beside = _LIBRARY / "actors", _LIBRARY.parent / "actors"
    own = inside if (inside / "__init__.py").is_file() else beside
    for name in sorted(_NAMES, key=lambda name: name not in sys.modules):
        if _folder_of(name) == own:
            return name
    found = _folder_of("actors")
    instead = "is not found" if found is None else f"is {found}"
    raise LlmzeroError(
        f"the actors of {_LIBRARY} are in {own}, and the package `actors` {instead}. Start Python in "
        f"{_LIBRARY.parent}, put that directory first in PYTHONPATH, or install llmzero-ray."
    )


def _folder_of(name: str) -> Path | None:
    """Folder in which Python finds a package. None if there is none, or it has no __init__.py."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin).resolve().parent
