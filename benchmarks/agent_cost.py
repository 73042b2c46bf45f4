"""Cost of a search's agents with a language model: recorded tokens at the shipped prices.

    python -m benchmarks.agent_cost [SEARCH] [--model claude-sonnet-5-5] [--proposals 15] [--verdicts 90]

Takes the mean tokens of each agent's calls from SEARCH, the directory of a search that ran with
`agents.backend: claude`. Without SEARCH it uses benchmarks/agent_tokens.json: the largest request of the
tests (a phase of 120 steps with a hundred metrics, a tree of 16 nodes), counted as characters / 3.6 without
its picture, plus 1,500 tokens of thinking for the proposer.
Prints one JSON line with two sums, because the prompt cache expires after five minutes: one if every call
finds the system prompt in the cache, one if none does.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from llmzero_ray.agents.llm.messages import Usage
from llmzero_ray.agents.llm.prices import Price, cost, price_of
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.records import events as ev
from llmzero_ray.storage import SearchStorage

TYPICAL = Path(__file__).parent / "agent_tokens.json"


def main() -> None:
    """Add up and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("search", nargs="?", type=Path, help="directory of a search")
    parser.add_argument("--model", default="claude-sonnet-5-5")
    parser.add_argument("--proposals", type=int, default=15, help="calls of the proposer")
    parser.add_argument("--verdicts", type=int, default=90, help="calls of the early stopper")
    options = parser.parse_args()
    tokens = json.loads(TYPICAL.read_text()) if options.search is None else recorded(options.search)
    price = price_of(options.model)
    calls = {"proposer": options.proposals, "early_stopper": options.verdicts}
    sums = {
        found: {agent: round(n * _dollars(tokens[agent], price, found), 4) for agent, n in calls.items()}
        for found in ("cached", "uncached")
    }
    totals = {found: round(sum(by_agent.values()), 3) for found, by_agent in sums.items()}
    print(
        json.dumps(
            {"model": options.model, "calls": calls, "tokens": tokens, "dollars": sums, "together": totals}
        )
    )


def recorded(search: Path) -> dict[str, dict[str, float]]:
    """Agent -> mean tokens of a call: system prompt (which can be cached), other input, output."""
    follower = Follower(SearchStorage(str(search.parent), search.name))
    follower.poll()
    calls = [
        event for event in follower.events if isinstance(event, ev.AgentCalled) and event.outcome == "ok"
    ]
    return {
        agent: {
            "system": statistics.fmean(
                c.cache_read_tokens + c.cache_creation_tokens for c in calls if c.agent == agent
            ),
            "input": statistics.fmean(c.input_tokens for c in calls if c.agent == agent),
            "output": statistics.fmean(c.output_tokens for c in calls if c.agent == agent),
        }
        for agent in dict.fromkeys(call.agent for call in calls)
    }


def _dollars(tokens: dict[str, float], price: Price, found: str) -> float:
    system, rest, output = (round(tokens[kind]) for kind in ("system", "input", "output"))
    if found == "cached":
        return cost(Usage(cache_read=system, input=rest, output=output), price)
    return cost(Usage(cache_creation=system, input=rest, output=output), price)


if __name__ == "__main__":
    main()
