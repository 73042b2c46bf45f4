"""Who answers in one drafting: rules, or a language model with a key, a price and a cap.

Not here: the agents (llm_agents.py, expert_agents.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmzero_ray import __version__
from llmzero_ray.agents.backend import llm_settings
from llmzero_ray.agents.drafting.base import DraftingAgents
from llmzero_ray.agents.drafting.expert_agents import ExpertDraftingAgents
from llmzero_ray.agents.drafting.llm_agents import LlmDraftingAgents
from llmzero_ray.agents.drafting.llm_requests import draft_record, prompts_digest
from llmzero_ray.agents.llm.agent_client import AgentClient
from llmzero_ray.agents.llm.api_key import read_key
from llmzero_ray.agents.llm.budget import BudgetLedger
from llmzero_ray.agents.llm.errors import redacted
from llmzero_ray.agents.llm.prices import price_of
from llmzero_ray.config import AgentsConfig, parse_config
from llmzero_ray.errors import ConfigError

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
        """Backend, model, calls and cost: the first part of draft.json."""
        total = self.ledger.total() if self.ledger is not None else None
        return {
            "version": __version__,
            "sentence": sentence,
            "backend": self.backend,
            "model": self.model,
            "prompts": prompts_digest() if self.ledger is not None else None,
            "dollars": 0.0 if total is None else round(total.dollars, 6),
            "tokens": {"input": 0, "output": 0}
            if total is None
            else {"input": total.usage.all_input, "output": total.usage.output},
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
    """The agents, after a check that the model can be reached.

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
    ledger = BudgetLedger(price_of(agents.model, agents.price, agents.prompts), max_dollars)
    client = MessagesClient(settings)
    secret = read_key(settings)
    client.check(budget=ledger)
    records: list[dict[str, Any]] = []
    agent_client = AgentClient(
        client=lambda _node, _name: client,
        budget=ledger,
        report=lambda report: records.append(draft_record(report)),
        model=agents.model,
        deadline_s=agents.deadline_s,
    )
    return DraftingSession(
        agents=LlmDraftingAgents(agent_client, ledger, strict=agents.strict_tools, secret=secret),
        backend="claude",
        model=agents.model,
        ledger=ledger,
        secret=secret,
        records=records,
    )
