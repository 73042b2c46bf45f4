"""What language-model agents need where the coordinator is not: its money, its journal, somebody who draws.

Not here: the ledger (till.py), the agents (llmzero_ray.agents).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from llmzero_ray.agents.backend import MODEL_BACKENDS, House, make_agents
from llmzero_ray.agents.llm.call import Usage
from llmzero_ray.agents.llm.ledger import LedgerEntry, Reservation
from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import AgentError, CapReachedError
from llmzero_ray.records import Event
from llmzero_ray.stopping.curve_bank import CurveBank
from llmzero_ray.stopping.policy import StoppingPolicy
from llmzero_ray.storage import SearchStorage

from .options import NAMESPACE, coordinator_name

logger = logging.getLogger("llmzero_ray.actors.house")
_DRAW_S = 60.0
"""Longest wait for a picture; a question goes without it then."""
_AWAY_S = 60.0
"""How long an agent in another process waits for a coordinator that is being restarted."""
_POST_S = 30.0


def stopping_policy(
    config: SearchConfig, facts: Mapping[str, Any], storage: SearchStorage, n_val: int
) -> StoppingPolicy:
    """Rules, bank and agent of a search's stopper, which works in another process than the coordinator."""
    house = None
    if config.agents.backend in MODEL_BACKENDS:
        purse = RemotePurse(config.name)
        house = House(facts=facts, purse=purse, post=purse.post, keep=storage.write_call, picture=draw)
    agent = make_agents(config, n_val, house).early_stopper
    # The expert costs nothing: it is asked every time.
    bank = None if config.agents.backend == "expert" else CurveBank(n_val=n_val)
    return StoppingPolicy(config.stopper, agent, bank)


class RemotePurse:
    """The stopper's side: every cent through the coordinator's actor; picklable."""

    def __init__(self, search: str) -> None:
        self._search = search
        self._numbers: dict[int, int] = {}

    def reserve(self, agent: str, node: int, worst: Usage) -> Reservation:
        """Set money aside.

        Raises:
            CapReachedError: there is not enough left.
            AgentError: the coordinator is away: then nobody is asked.
        """
        number = self._ask("reserve", agent, node, worst, wait_s=0.0)
        reservation = Reservation(agent=agent, node=node, worst=worst, dollars=0.0)
        self._numbers[id(reservation)] = number
        return reservation

    def settle(
        self, reservation: Reservation, *, usage: Usage | None, latency_s: float, outcome: str
    ) -> LedgerEntry:
        """Book what it cost, also with a coordinator that comes back within a minute."""
        number = self._numbers.pop(id(reservation))
        spent = {"usage": usage, "latency_s": latency_s, "outcome": outcome}
        entry = self._ask("settle", number, reservation, wait_s=_AWAY_S, **spent)
        assert isinstance(entry, LedgerEntry)
        return entry

    def post(self, event: Event) -> None:
        """Have an event journalled."""
        import ray

        try:
            ray.get(self._coordinator().post.remote(event), timeout=_POST_S)
        except (ValueError, ray.exceptions.RayError) as error:
            logger.error("%s was not journalled: %s", type(event).__name__, error)

    def _ask(self, what: str, *arguments: Any, wait_s: float, **named: Any) -> Any:
        import ray

        until = time.monotonic() + wait_s
        while True:
            try:
                return ray.get(self._coordinator().pay.remote(what, *arguments, **named), timeout=_POST_S)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, CapReachedError):
                    raise error.cause from None
                raise AgentError(f"the ledger refused: {error.cause}") from None
            except (ValueError, ray.exceptions.RayError) as error:
                if time.monotonic() >= until:
                    raise AgentError(f"the coordinator is away: {type(error).__name__}") from None
                time.sleep(1.0)

    def _coordinator(self) -> Any:
        import ray

        return ray.get_actor(coordinator_name(self._search), namespace=NAMESPACE)


def draw(kind: str, request: Any, n_val: int) -> bytes:
    """A picture for an agent, drawn in a Ray task: drawing holds the interpreter's lock."""
    import ray

    from llmzero_ray.agents.llm.figures import picture

    task = ray.remote(picture).options(num_cpus=0, name=f"draw-{kind}", max_retries=1)
    png = ray.get(task.remote(kind, request, n_val), timeout=_DRAW_S)
    assert isinstance(png, bytes)
    return png
