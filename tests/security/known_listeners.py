"""All sockets on which the processes of a search, or of a served model, on a private head may be spoken to.

SECURITY.md says who may; a socket that is not listed here fails the tests of whole searches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .processes import Seen, bound_sockets

LOOPBACK = re.compile(r"tcp (127\.0\.0\.1|::1)")
SESSION = re.compile(r"/.*/session_[^/]+/sockets/(raylet|plasma_store)(\.\d+)?")
"""Ray's own sockets, in the directory of its session."""
PRIVATE = re.compile(r"/.*/llmzero(-\d+)?/(slot|vllm)-[0-9a-f]{12}/.+")
"""Files in a directory of mode 0700 that goes away with its slot or its served model."""

KNOWN: dict[str, tuple[re.Pattern[str], ...]] = {
    # part of a process's title: where it may be spoken to; the first that fits counts
    "gcs/gcs_server": (LOOPBACK,),
    "raylet/raylet": (LOOPBACK, SESSION),
    "ray/dashboard/agent.py": (LOOPBACK,),
    "ray/dashboard/dashboard.py": (LOOPBACK,),
    "ray/_private/runtime_env/agent/main.py": (LOOPBACK,),
    "ray/autoscaler/_private/monitor.py": (LOOPBACK,),
    "ray/_private/log_monitor.py": (),
    "llmzero_ray.engines.verl.driver": (LOOPBACK, PRIVATE),
    "ray::": (LOOPBACK, PRIVATE),
    "VLLM::": (LOOPBACK, PRIVATE),
    "ray/_private/workers/default_worker.py": (LOOPBACK,),
    "jobs.search": (LOOPBACK,),
    "jobs.serve": (LOOPBACK,),
    "vllm.entrypoints.cli.main serve": (LOOPBACK, PRIVATE),
}


def unknown_listeners(processes: Iterable[Seen]) -> set[tuple[str, str]]:
    """(title, socket) of everything on which these processes can be spoken to and that `KNOWN` does not
    have; those that have gone meanwhile have none."""
    return {
        (one.title, at)
        for one in processes
        for at in bound_sockets(one.pid)
        if not any(place.fullmatch(at) for place in _places(one.title))
    }


def _places(title: str) -> tuple[re.Pattern[str], ...]:
    return next((places for part, places in KNOWN.items() if part in title), ())
