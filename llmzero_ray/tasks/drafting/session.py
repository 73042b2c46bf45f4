"""Agents of one drafting run: rules, or a language model with a key, a price and a cost limit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmzero_ray.agents.backend import MODEL_BACKENDS, llm_settings
from llmzero_ray.agents.llm.agent_client import AgentClient, CallReport, Report
from llmzero_ray.agents.llm.api_key import read_key
from llmzero_ray.agents.llm.budget import BudgetClient, BudgetLedger, LlmClient
from llmzero_ray.agents.llm.errors import redacted
from llmzero_ray.agents.llm.messages import Usage
from llmzero_ray.agents.llm.prices import FREE, Price, price_of
from llmzero_ray.config import AgentsConfig, parse_config
from llmzero_ray.errors import ConfigError
from llmzero_ray.tasks.drafting.base import DraftingAgents
from llmzero_ray.tasks.drafting.expert_agents import ExpertDraftingAgents
from llmzero_ray.tasks.drafting.llm_agents import LlmDraftingAgents
from llmzero_ray.tasks.drafting.llm_requests import draft_record, prompts_digest
from llmzero_ray.version import __version__

BACKENDS = ("expert", "claude")


@dataclass(frozen=True, kw_only=True)
class DraftingSession:
    """The agents of one drafting run, their calls and cost."""

    agents: DraftingAgents
    backend: str
    model: str | None = None
    ledger: BudgetLedger | None = None
    secret: str | None = field(default=None, repr=False)
    """The API key, to redact it in every file."""
    records: list[dict[str, Any]] = field(default_factory=list, repr=False)
    """Calls, oldest first."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Fallbacks to the rules, one line each."""
        return tuple(redacted(note, self.secret) for note in getattr(self.agents, "notes", ()))

    def record(self, sentence: str) -> dict[str, Any]:
        """Content of draft.json: backend, model, calls and cost."""
        calls = () if self.ledger is None else self.ledger.entries
        usage = sum((call.usage for call in calls), Usage())
        return {
            "version": __version__,
            "sentence": sentence,
            "backend": self.backend,
            "model": self.model,
            "prompts": prompts_digest() if self.ledger is not None else None,
            "dollars": 0.0 if self.ledger is None else round(self.ledger.dollars, 6),
            "tokens": {"input": usage.all_input, "output": usage.output},
            "notes": list(self.notes),
            "calls": list(self.records),
        }


def agents_config(backend: str, model: str | None, settings: Mapping[str, Any]) -> AgentsConfig:
    """The `agents` block of a search.yaml with these settings (dotted keys below `agents.`).

    Raises:
        ConfigError: the backend is unknown, or a setting is wrong.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"--backend {backend}: must be {' or '.join(BACKENDS)}")
    others = [key for key in settings if not key.startswith("agents.") or key.count(".") > 1]
    if others:
        raise ConfigError(
            f"--set {others[0]}: a draft takes settings of agents alone, such as agents.base_url=..."
        )
    block = {key.removeprefix("agents."): value for key, value in settings.items()} | {"backend": backend}
    if model is not None:
        block["model"] = model
    return parse_config({"name": "draft", "agents": block}, source="draft").agents


def open_session(agents: AgentsConfig, max_dollars: float) -> DraftingSession:
    """Check that the model can be reached, and return the agents of one draft.

    Raises:
        ConfigError: no price is known, or a package is missing.
        AgentError: no key, or the server refuses key or model, or cannot be reached.
    """
    if agents.backend == "expert":
        return DraftingSession(agents=ExpertDraftingAgents(), backend="expert")
    from llmzero_ray.agents.llm.client import MessagesClient

    if not 0 < max_dollars < float("inf"):
        raise ConfigError(f"--max-dollars is {max_dollars:g}; must be a number > 0")
    settings = llm_settings(agents)
    ledger = BudgetLedger(price_of(agents.model, agents.price, agents.provider), max_dollars)
    client = MessagesClient(settings)
    secret = read_key(settings)
    client.check(budget=ledger)
    records: list[dict[str, Any]] = []
    session = _model_session(
        agents,
        client=lambda _node, _name: client,
        budget=ledger,
        ledger=ledger,
        report=lambda report: records.append(draft_record(report)),
        secret=secret,
    )
    return dataclasses.replace(session, records=records)


@dataclass(frozen=True, kw_only=True)
class SearchCalls:
    """Services of a search for the agents that initialize it."""

    budget: Callable[[Price], tuple[BudgetClient, BudgetLedger]]
    """Function from a price to (client that reserves calls in the search's budget, ledger behind it)."""
    answered: Mapping[str, dict[str, Any]]
    """Hash of a prompt -> record of its call in an interrupted initialization. Such calls are not
    repeated."""
    report: Report
    """Records and journals a call."""
    attempt: int
    """Number of earlier changes of the user's decisions, used in the names of the records."""


def open_search_session(agents: AgentsConfig, calls: SearchCalls) -> DraftingSession:
    """The agents that initialize a search with these settings: on a language model, on its recorded answers,
    or on rules.

    Raises:
        ConfigError: no price is known, a package is missing, or no answer was recorded.
        AgentError: no key.
    """
    if agents.backend not in MODEL_BACKENDS:
        return DraftingSession(agents=ExpertDraftingAgents(), backend="expert")
    from llmzero_ray.agents.llm.recorded import RecordedResponses, ResumingClient

    if agents.backend == "recorded":
        budget, ledger = calls.budget(FREE)
        client = RecordedResponses(str(agents.recorded_from)).client
        return _model_session(
            agents, client=client, budget=budget, ledger=ledger, report=calls.report, secret=None, calls=calls
        )
    from llmzero_ray.agents.llm.client import MessagesClient

    settings = llm_settings(agents)
    price = price_of(agents.model, agents.price, agents.provider)
    budget, ledger = calls.budget(price)
    live = MessagesClient(settings)
    live.warm_up()
    resuming = ResumingClient(calls.answered, live)

    def report(report: CallReport) -> None:
        if report.response is None or report.n_attempts:  # otherwise it is already recorded
            calls.report(report)

    return _model_session(
        agents,
        client=lambda _node, _name: resuming,
        budget=budget,
        ledger=ledger,
        report=report,
        secret=read_key(settings),
        calls=calls,
    )


def _model_session(
    agents: AgentsConfig,
    *,
    client: Callable[[int, str], LlmClient],
    budget: BudgetClient,
    ledger: BudgetLedger,
    report: Report,
    secret: str | None,
    calls: SearchCalls | None = None,
) -> DraftingSession:
    agent_client = AgentClient(
        client=client,
        budget=budget,
        report=report,
        model=agents.model,
        deadline_s=llm_settings(agents).deadline_s,
    )
    in_search: dict[str, Any] = {}
    if calls is not None:
        stops = agents.on_cap == "stop"
        in_search = {"cap": "budget.dollars", "stops_at_cap": stops, "attempt": calls.attempt}
    drafting = LlmDraftingAgents(agent_client, ledger, strict=agents.strict_tools, secret=secret, **in_search)
    return DraftingSession(
        agents=drafting, backend=agents.backend, model=agents.model, ledger=ledger, secret=secret
    )
