"""The proposer `claude` under Tune: a language model's proposals and repairs, and its budget.

The pickled object contains no client and no key: the calling process creates both, from the environment or
the key file.
"""

from __future__ import annotations

import threading
from typing import Any

from llmzero_ray.agents.backend import (
    Agents,
    AgentServices,
    agent_facts,
    check_agents,
    llm_settings,
    make_agents,
)
from llmzero_ray.config import AgentsConfig, SearchConfig, parse_config
from llmzero_ray.errors import ConfigError
from llmzero_ray.launch import actors
from llmzero_ray.records import Proposal
from llmzero_ray.records.agents import ErrorRequest, ProposalRequest
from llmzero_ray.records.events import AgentCalled
from llmzero_ray.tune.state import TuneSearch

_N_VAL = 500
"""Assumed number of validation items, which Tune does not know, for the noise of scores in prompts."""


class LanguageModelProposer:
    """Proposer and error analyzer on a language model behind the Messages API.

    `agents` is the block of a search.yaml with backend `claude`; `dollars` caps the cost of its calls (no cap
    if None). It never waits for a server: in an outage the expert answers. Creating it checks key and model.

    Raises:
        ConfigError: prompts or price are missing, or another backend is named.
        AgentError: there is no key, or the server refuses key or model, or cannot be reached.
    """

    def __init__(self, agents: AgentsConfig, dollars: float | None = None) -> None:
        if agents.backend != "claude" or agents.proposer != "backend":
            raise ConfigError(
                f"proposer: the agents have backend {agents.backend!r} and proposer {agents.proposer!r}; "
                "under Ray Tune they must be 'claude' and 'backend'. Name other proposers by proposer=..."
            )
        given = {
            "name": "tune",
            "agents": {**agents.model_dump(), "on_outage": "rules"},
            "budget": {"dollars": dollars},
        }
        self._config: SearchConfig = parse_config(given, source="proposer")
        self._facts = agent_facts(self._config)
        self._search: TuneSearch | None = None
        self._checks: dict[str, AgentCalled] = {}
        check_agents(self._config, 0.0, self._book_check)
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._made: Agents | None = None

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_lock", "_made")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def attach(self, search: TuneSearch) -> None:
        """Record calls as events of this search, and count the cost of its earlier calls."""
        self._search = search

    def propose(self, request: ProposalRequest) -> Proposal:
        """Proposal of the next phase, or the expert's if the model gives none."""
        return self._agents().proposer.propose(request)

    def analyze(self, request: ErrorRequest) -> Proposal:
        """Repair of a failed phase, or the expert's if the model gives none."""
        return self._agents().error_analyzer.analyze(request)

    # --- parts ----------------------------------------------------------------------------------------------

    def _book_check(self, call: AgentCalled) -> None:
        self._checks[call.source] = call

    def _agents(self) -> Agents:
        with self._lock:
            if self._made is None:
                self._made = make_agents(self._config, _N_VAL, self._services())
            return self._made

    def _services(self) -> AgentServices:
        from llmzero_ray.agents.llm.call_records import (
            JournalledBudget,
            ledger_of,
            lost_event,
            open_reservations,
        )

        search = self._search
        assert search is not None
        sources = {event.source for event in search.events}
        for check in self._checks.values():
            if check.source not in sources:
                search.post(check)
        for reservation, _ in open_reservations(search.events).values():  # of a driver killed in a call
            search.post(lost_event(reservation, llm_settings(self._config.agents).model))
        ledger = ledger_of(self._facts, self._config.budget.dollars, search.events)
        return AgentServices(
            facts=self._facts,
            budget=JournalledBudget(ledger, search.post),
            post=search.post,
            write_call=search.write_call,
            draw=actors.agent_services.draw,
        )
