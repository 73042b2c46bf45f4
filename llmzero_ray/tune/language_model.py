"""The proposer `claude` under Tune: a language model's proposals and repairs, its budget and its records.

The pickled object contains no client and no key: the calling process creates both, from the environment or
the key file.
"""

from __future__ import annotations

import threading
from pathlib import Path
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
from llmzero_ray.records import Event, Proposal, from_json, to_json
from llmzero_ray.records.agents import ErrorRequest, ProposalRequest
from llmzero_ray.records.events import AgentCalled
from llmzero_ray.storage import SearchStorage
from llmzero_ray.tune.record_log import RecordLog

CALLS_FILE, CALLS_FOLDER = "llmzero-calls.jsonl", "llmzero-calls"
"""Files in the experiment's directory: the costs of calls, from which the budget is restored, and their
records."""
_N_VAL = 500
"""Assumed number of validation items, which Tune does not know, for the noise of scores in prompts."""


class LanguageModelProposer:
    """Proposer and error analyzer on a language model behind the Messages API.

    `agents` is the block of a search.yaml with backend `claude`; `dollars` caps the cost of its calls (no cap
    if None). It never waits for a server: in an outage the expert answers. Key and model are checked when it
    is made.

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
        self._directory: Path | None = None
        self._checks: dict[str, AgentCalled] = {}
        check_agents(self._config, 0.0, self._book_check)
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._made: Agents | None = None

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_lock", "_made", "_directory")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._directory = None
        self._reset()

    def open_directory(self, directory: Path) -> None:
        """Keep costs and records of calls in an experiment's directory, and continue with existing ones."""
        self._directory = directory

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

        log = None if self._directory is None else RecordLog(self._directory / CALLS_FILE)
        known = [] if log is None else [_event(record) for record in log.records]
        writing = threading.Lock()

        def post(event: Event) -> None:
            if log is not None:
                with writing:
                    log.append({"kind": "call", "event": to_json(event)})

        sources = {event.source for event in known}
        for check in self._checks.values():
            if check.source not in sources:
                post(check)
                known.append(check)
        for reservation, _ in open_reservations(known).values():  # of a driver that was killed in a call
            lost = lost_event(reservation, llm_settings(self._config.agents).model)
            post(lost)
            known.append(lost)
        ledger = ledger_of(self._facts, self._config.budget.dollars, known)
        return AgentServices(
            facts=self._facts,
            budget=JournalledBudget(ledger, post),
            post=post,
            write_call=self._write_call,
            draw=actors.agent_services.draw,
        )

    def _write_call(self, *call: Any) -> None:
        if self._directory is not None:
            SearchStorage(str(self._directory), CALLS_FOLDER).write_call(*call)


def _event(record: dict[str, Any]) -> Event:
    found = from_json(record["event"])
    assert isinstance(found, Event)
    return found
