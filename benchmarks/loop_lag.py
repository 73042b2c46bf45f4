"""How long an event loop stands still while agents of a language model are asked from it, in milliseconds.

    python -m benchmarks.loop_lag [--calls 5]

A loop that should tick every 2 ms asks the proposer about a large request as the coordinator does (in a
thread), against a server on this machine that answers after a second; prints the longest gap beyond the tick
without and with calls, as one JSON line. Pictures are drawn elsewhere, as in a search. Run nothing else
next to it.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import time
from collections.abc import Awaitable, Callable

from llmzero_ray.agents.backend import AgentServices, agent_facts, make_agents
from llmzero_ray.agents.llm.budget import BudgetLedger
from llmzero_ray.agents.llm.prices import Price
from llmzero_ray.coordinator import request_record
from tests.agents.llm.large_requests import proposal_request
from tests.agents.llm.messages_server import KEY, Answer, MessagesServer
from tests.builders import make_config

_TICK_S = 0.002
_ANSWER = {
    "diagnosis": {
        "state": "plateau",
        "summary": "It is flat.",
        "evidence": [],
        "inflection_points": [],
        "anomalies": [],
    },
    "changes": [{"name": "lr", "value": 3e-5, "reason": "smaller steps"}],
    "checkpoint": {"resume_from": None, "reason": "afresh"},
    "length": {"n_steps": 40, "total_epochs": 1, "arithmetic": ""},
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=5)
    n_calls = parser.parse_args().calls
    os.environ["ANTHROPIC_API_KEY"] = KEY
    with MessagesServer([Answer(input=_ANSWER, delay_s=1.0)]) as server:
        config = make_config(agents={"backend": "claude", "base_url": server.base_url, "visual": False})
        facts = agent_facts(config)
        services = AgentServices(
            facts=facts,
            budget=BudgetLedger(Price(**facts["price"])),
            post=lambda _: None,
            write_call=lambda *_: None,
            draw=lambda *_: b"",
        )
        agents = make_agents(config, 500, services)
        request = dataclasses.replace(proposal_request(), node=12)

        def answer_and_record() -> str:
            return json.dumps([agents.proposer.propose(request).rationale, request_record(request)])

        async def ask() -> None:
            for _ in range(n_calls):
                await asyncio.to_thread(answer_and_record)

        async def rest() -> None:
            await asyncio.sleep(2.0)

        asyncio.run(ask())  # imports and templates are loaded once per process
        idle, asking = asyncio.run(_longest_gap(rest)), asyncio.run(_longest_gap(ask))
    print(json.dumps({"idle_ms": idle, "asking_ms": asking, "calls": n_calls}))


async def _longest_gap(work: Callable[[], Awaitable[None]]) -> float:
    longest, over = 0.0, False

    async def tick() -> None:
        nonlocal longest
        while not over:
            before = time.perf_counter()
            await asyncio.sleep(_TICK_S)
            longest = max(longest, time.perf_counter() - before - _TICK_S)

    ticking = asyncio.create_task(tick())
    await work()
    over = True
    await ticking
    return round(1000 * longest, 1)


if __name__ == "__main__":
    main()
