"""Tells a dead process of VeRL from a failing one, from inside the host: actors that Ray counts as dead, and
vLLM engines that answer no more.

VeRL itself reports a dead vLLM server as a batch without trajectories, or waits for it. Not here: what
follows from it (host.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import ray

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
_SETTLE_S = 3.0
_ANSWER_S = 5.0


class ActorWatch:
    """The actors that this Ray job has now; from then on each of them has to live."""

    def __init__(self, servers: Callable[[], list[Any]]) -> None:
        """`servers` gives handles of the vLLM servers, which have a method `check_engine`."""
        self._servers = servers
        self._expected = {actor: info["ActorClassName"] for actor, info in _actors("ALIVE").items()}

    def start(self, lost: Callable[[str], None]) -> None:
        """Look twice a second on a thread of its own; `lost` is called once, with what died."""
        threading.Thread(target=self._look, args=(lost,), name="actor-watch", daemon=True).start()

    def dead(self) -> str | None:
        """The actors that are gone, in words; None: none."""
        alive = _actors("ALIVE")
        gone = sorted({name for actor, name in self._expected.items() if actor not in alive})
        return f"{', '.join(gone)} died" if gone else None

    def cause_of(self) -> str | None:
        """After an exception of VeRL's: the dead process behind it, if there is one. Ray needs a moment to
        notice a death, so this may take some seconds."""
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline:
            if found := self.dead():
                return found
            time.sleep(0.2)
        return self._dead_engine()

    def _dead_engine(self) -> str | None:
        for server in self._servers():
            try:
                problem = ray.get(server.check_engine.remote(), timeout=_ANSWER_S)
            except ray.exceptions.GetTimeoutError:
                continue  # busy is not dead
            except ray.exceptions.RayError as error:
                return f"a vLLM server is gone ({type(error).__name__})"
            if problem is not None:
                return f"vLLM's engine died: {problem}"
        return None

    def _look(self, lost: Callable[[str], None]) -> None:
        while True:
            time.sleep(_LOOK_S)
            try:
                found = self.dead()
            except Exception:  # the head is away for a moment, or for good: Ray itself ends the driver then
                logger.warning("the actors of this job cannot be listed", exc_info=True)
                continue
            if found is not None:
                lost(found)
                return


def _actors(state_name: str) -> dict[str, dict[str, Any]]:
    from ray._private.state import state

    job = ray.get_runtime_context().get_job_id()
    found: dict[str, dict[str, Any]] = state.actor_table(None, ray.JobID(bytes.fromhex(job)), state_name)
    return found
