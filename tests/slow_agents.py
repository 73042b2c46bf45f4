"""The expert, with a proposer that takes two seconds: `agents.backend: tests.slow_agents:make_agents`."""

from __future__ import annotations

import time
from typing import Any

from llmzero_ray.agents.backend import make_agents as make_known
from llmzero_ray.records import Proposal, StopDecision
from llmzero_ray.records.agents import ErrorRequest, ProposalRequest, StopRequest

PROPOSER_S = 2.0


class SlowAgents:
    """All three agents in one object, as a plug-in has to be."""

    def __init__(self, config: Any, n_val: int) -> None:
        expert = config.model_copy(update={"agents": config.agents.model_copy(update={"backend": "expert"})})
        self._expert = make_known(expert, n_val)

    def propose(self, request: ProposalRequest) -> Proposal:
        time.sleep(PROPOSER_S)
        return self._expert.proposer.propose(request)

    def analyze(self, request: ErrorRequest) -> Proposal:
        return self._expert.error_analyzer.analyze(request)

    def judge(self, request: StopRequest) -> StopDecision:
        return self._expert.early_stopper.judge(request)


def make_agents(config: Any, n_val: int) -> SlowAgents:
    return SlowAgents(config, n_val)
