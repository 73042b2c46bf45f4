"""Checks that VeRL's processes are alive: finds actors that Ray reports as dead, and vLLM engines that no
longer answer.

VeRL itself reports a dead vLLM server as a batch without trajectories, or waits for it forever.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import ray

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
_LOOKS_PER_CALL = 4
_GONE = ("DEAD", "RESTARTING")
"""States of a lost actor. A restarting one has lost its state."""
_SETTLE_S = 3.0
_ANSWER_S = 5.0


class ActorLiveness:
    """Watches the actors of this Ray job, all of which must stay alive."""

    def __init__(self, servers: Callable[[], list[Any]]) -> None:
        """`servers` returns handles of the vLLM servers, which have a method `check_engine`."""
        self._servers = servers
        self._expected: dict[str, str] = {}
        self.expect_all()

    def expect_all(self) -> None:
        """Also watch the actors that have started since the last call, and those that are still starting."""
        now = {actor: name for actor, (name, state) in _actors().items() if state not in _GONE}
        self._expected = {**self._expected, **now}

    def start(self, lost: Callable[[str], None]) -> None:
        """Poll twice a second on a separate thread, and query the servers every two seconds. The callback
        `lost` is called once, with a description."""
        threading.Thread(target=self._look, args=(lost,), name="actor-watch", daemon=True).start()

    def dead(self) -> str | None:
        """Description of the actors that have died, or None if all are alive."""
        now = _actors()
        gone = sorted(
            {name for actor, name in self._expected.items() if actor not in now or now[actor][1] in _GONE}
        )
        return f"{', '.join(gone)} died" if gone else None

    def cause_of(self) -> str | None:
        """Description of the dead process behind an exception of VeRL, or None. Ray notices a death with a
        delay, so this may take a few seconds."""
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
                continue  # busy, not dead
            except ray.exceptions.RayError as error:
                return f"a vLLM server is gone ({type(error).__name__})"
            if problem is not None:
                return f"vLLM's engine died: {problem}"
        return None

    def _look(self, lost: Callable[[str], None]) -> None:
        for look in itertools.count(1):
            time.sleep(_LOOK_S)
            try:
                # A server's engine core is not an actor, so Ray does not report its death, and VeRL would
                # wait for it forever.
                found = self.dead() or (self._dead_engine() if look % _LOOKS_PER_CALL == 0 else None)
            except Exception:  # the head does not answer; if it is gone for good, Ray ends this driver
                logger.warning("the actors of this job cannot be listed", exc_info=True)
                continue
            if found is not None:
                lost(found)
                return


def _actors() -> dict[str, tuple[str, str]]:
    """Actor -> its class and state, for this job."""
    from ray._private.state import state

    job = ray.JobID(bytes.fromhex(ray.get_runtime_context().get_job_id()))
    table = state.actor_table(None, job, None)
    return {actor: (info["ActorClassName"], info["State"]) for actor, info in table.items()}
