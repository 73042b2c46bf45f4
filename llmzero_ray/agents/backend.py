"""From `agents.backend` to the agents of a search, by name; heavy imports happen only when they are made."""

from __future__ import annotations

from dataclasses import dataclass

from llmzero_ray.agents.base import EarlyStopper, ErrorAnalyzer, Proposer
from llmzero_ray.config import SearchConfig
from llmzero_ray.plugin import load_factory


@dataclass(frozen=True, kw_only=True)
class Agents:
    """Who answers a search's questions."""

    proposer: Proposer
    error_analyzer: ErrorAnalyzer
    early_stopper: EarlyStopper


def make_agents(config: SearchConfig, n_val: int) -> Agents:
    """The agents of a search; `n_val` (validation items) gives the noise of its scores.

    A backend `package.module:factory` is called with (config, n_val) and returns one object that speaks all
    three protocols.

    Raises:
        ConfigError: the backend's name leads nowhere.
    """
    backend, n_gpus = config.agents.backend, config.slots.n_gpus
    if backend == "expert":
        from llmzero_ray.agents.expert import ExpertEarlyStopper, ExpertErrorAnalyzer, ExpertProposer

        return Agents(
            proposer=ExpertProposer(n_val=n_val, n_gpus=n_gpus),
            error_analyzer=ExpertErrorAnalyzer(n_gpus=n_gpus),
            early_stopper=ExpertEarlyStopper(n_val=n_val),
        )
    agent = load_factory(backend, field="agents.backend")(config, n_val)
    return Agents(proposer=agent, error_analyzer=agent, early_stopper=agent)
