"""Find and end actors by name; both block on Ray.

Not here: the names (names.py).
"""

from __future__ import annotations

import logging
import time
from typing import Any

from .names import NAMESPACE

logger = logging.getLogger("llmzero_ray.actors.actor_handles")
_LOOK_S = 0.05
_NAME_S = 10.0
"""Longest wait for the name of an actor that was killed to be free again."""


def find_actor(name: str) -> Any:
    """The actor of that name.

    Raises:
        ValueError: there is none.
    """
    import ray

    return ray.get_actor(name, namespace=NAMESPACE)


def is_there(name: str) -> bool:
    """Whether there is an actor of that name."""
    try:
        find_actor(name)
    except ValueError:
        return False
    return True


def end_actor(name: str, only: Any = None) -> bool:
    """Kill the actor of that name and wait until the name is free; whether there was one.

    With `only` another actor that has the name by now is left alone.
    """
    import ray

    found, deadline = False, time.monotonic() + _NAME_S
    while time.monotonic() < deadline:
        try:
            actor = find_actor(name)
        except ValueError:
            return found
        if only is not None and actor != only:
            return found
        found = True
        ray.kill(actor)
        time.sleep(_LOOK_S)
    logger.warning("the name %s is still taken %.0f s after its actor was killed", name, _NAME_S)
    return found
