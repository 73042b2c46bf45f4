"""Dollars that the agents of a search are expected to cost.

Not here: how many requests there are (estimate/search_time.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from llmzero_ray.agents.backend import agent_price, llm_settings
from llmzero_ray.agents.llm.agents import PROPOSAL_TOKENS, VERDICT_TOKENS
from llmzero_ray.agents.llm.messages import Usage
from llmzero_ray.agents.llm.prices import FREE, Price, cost, pixel_tokens
from llmzero_ray.agents.llm.settings import HOURLY
from llmzero_ray.config import SearchConfig
from llmzero_ray.estimate import Course, Tokens
from llmzero_ray.records.agents import AGENT_NAMES, AgentName

TYPICAL_TOKENS: Mapping[AgentName, Tokens] = {
    "proposer": Tokens(system=4836, input=2179, output=2400),
    "early_stopper": Tokens(system=916, input=467, output=90),
}
"""Tokens of large requests (a phase of 120 steps, a tree of 16 nodes) without images. The proposer's thinking
counts as 1,500 tokens. benchmarks/agent_cost.py adds them up for a search of any size."""
_PICTURES = {"proposer": (1100, 1110), "early_stopper": (900, 520)}
"""Pixels of the agents' figures."""
_LONGEST = {"proposer": PROPOSAL_TOKENS, "early_stopper": VERDICT_TOKENS}


def agent_prices(config: SearchConfig) -> Mapping[AgentName, Price] | None:
    """Agent -> price of its tokens: zero without a language model. None for a user's own agents.

    Raises:
        ConfigError: a model's price is not known.
    """
    agents = config.agents
    if agents.backend == "claude":
        return {name: agent_price(agents, name) for name in AGENT_NAMES}
    return None if ":" in agents.backend else dict.fromkeys(AGENT_NAMES, FREE)


def expected_dollars(
    config: SearchConfig,
    prices: Mapping[AgentName, Price],
    measured: Mapping[str, Tokens],
    course: Course,
    calls: Mapping[str, int],
) -> float:
    """Dollars that `calls` (agent -> number) cost, from `measured` tokens or else `TYPICAL_TOKENS`.

    The low case assumes that the prompt cache holds the system prompts of agents that are called often. The
    high case assumes that every answer reaches its token limit.
    """
    together = 0.0
    for agent, typical in TYPICAL_TOKENS.items():
        tokens = measured.get(agent) or typical
        shown = agent not in measured and config.agents.visual
        system, output = round(tokens.system), round(tokens.output)
        longest = llm_settings(config.agents, agent).output_tokens(_LONGEST[agent])
        kept, price = agent in HOURLY, prices[agent]
        usage = Usage(
            input=round(tokens.input)
            + (0 if kept else system)
            + (pixel_tokens(*_PICTURES[agent]) if shown else 0),
            output=max(output, longest) if course == "high" else output,
            cache_read=system if kept and course == "low" else 0,
            cache_creation=system if kept and course != "low" else 0,
        )
        together += calls[agent] * cost(usage, price.kept_an_hour if kept else price)
    return together
