"""Builds the agents of a search from `agents.backend`. Heavy libraries are imported only when needed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llmzero_ray.config import AgentModelConfig, AgentsConfig, ModelConfig, SearchConfig
from llmzero_ray.config.yaml_text import validated
from llmzero_ray.errors import CapReachedError, ConfigError
from llmzero_ray.hyperparameters import space_with
from llmzero_ray.records.agents import (
    AGENT_NAMES,
    SKILL_AGENT,
    AgentName,
    EarlyStopper,
    ErrorAnalyzer,
    ModelRole,
    Proposer,
)
from llmzero_ray.records.events import AgentCalled
from llmzero_ray.search import load_method, needs_model, shipped_method
from llmzero_ray.utils.api_key import KEY_ENVS
from llmzero_ray.utils.plugins import BUILT_IN, call, load_factory, make

if TYPE_CHECKING:
    from llmzero_ray.agents.llm.agents import DrawFigure
    from llmzero_ray.agents.llm.budget import BudgetClient
    from llmzero_ray.agents.llm.call_records import Post, WriteCall
    from llmzero_ray.agents.llm.prices import Price
    from llmzero_ray.agents.llm.settings import LlmSettings

STOPS: Final = "stops"
"""Key in the facts of a search that replays recorded answers (`agents.llm.recorded.recorded_course`)."""
MODEL_BACKENDS = ("claude", "recorded")
"""Backends whose agents are a language model or its recorded responses."""
BACKENDS = BUILT_IN["llmzero_ray.agents"]
PROPOSERS = BUILT_IN["llmzero_ray.proposers"]


@dataclass(frozen=True, kw_only=True)
class Agents:
    """The three agents of a search."""

    proposer: Proposer
    error_analyzer: ErrorAnalyzer
    early_stopper: EarlyStopper


@dataclass(frozen=True, kw_only=True)
class AgentServices:
    """Services that a search provides to agents of a language model."""

    facts: Mapping[str, Any]
    """Prompts and price, frozen for the search (`SearchStarted.agents`)."""
    budget: BudgetClient
    post: Post
    """Callback that posts an event to the journal."""
    write_call: WriteCall
    """Callback that stores records of calls."""
    draw: DrawFigure
    """Callback that draws the agents' figures."""
    transcript: Path | None = None
    """File of the skill-based agent's conversation. If None, it is kept in memory."""


def make_agents(config: SearchConfig, n_val: int, services: AgentServices | None = None) -> Agents:
    """Agents of a search. `n_val` (validation items) determines the noise of its scores.

    A search method may bring its own agents. Otherwise `agents.proposer` may name a proposer that replaces
    the backend's. Factories are called with (config, n_val): a backend's returns one object that implements
    all three protocols, a proposer's returns a `Proposer`.

    Raises:
        ConfigError: the backend or the proposer cannot be loaded or made, or no answer was recorded.
    """
    agents = _backend_agents(config, n_val, services)
    method = load_method(config.search.method)
    if hasattr(method, "make_agents"):
        _check_has_model(config, method)
        what = f"search.method is {config.search.method!r}, whose agents cannot be made"
        brought: Agents = call(method.make_agents, config, n_val, agents, services, what=what)
        return brought
    if config.agents.proposer == "backend":
        return agents
    if config.agents.proposer == "strategy":
        return dataclasses.replace(agents, proposer=_strategy_proposer(config.agents, config.model))
    own: Proposer = make(config.agents.proposer, config, n_val, field="agents.proposer")
    return dataclasses.replace(agents, proposer=own)


def _check_has_model(config: SearchConfig, method: object) -> None:
    if needs_model(method) and config.agents.backend not in MODEL_BACKENDS:
        raise ConfigError(
            f"search.method is {config.search.method}, which needs a language model, and agents.backend is "
            f"{config.agents.backend!r}; must be one of {', '.join(MODEL_BACKENDS)}."
        )


def lacks_model(config: SearchConfig) -> bool:
    """Whether the search needs a language model but its backend has none, or the key is missing."""
    if config.agents.backend == "claude":
        from llmzero_ray.agents.llm.api_key import is_missing

        return is_missing(llm_settings(config.agents))
    return needs_model(shipped_method(config.search.method)) and config.agents.backend != "recorded"


def _backend_agents(config: SearchConfig, n_val: int, services: AgentServices | None) -> Agents:
    backend, n_gpus = config.agents.backend, config.slots.n_gpus
    if backend == "expert":
        from llmzero_ray.agents.expert import ExpertEarlyStopper, ExpertErrorAnalyzer, ExpertProposer

        return Agents(
            proposer=ExpertProposer(n_val=n_val, n_gpus=n_gpus),
            error_analyzer=ExpertErrorAnalyzer(n_gpus=n_gpus),
            early_stopper=ExpertEarlyStopper(n_val=n_val),
        )
    if backend in MODEL_BACKENDS:
        if services is None:
            raise ConfigError(f"agents.backend {backend!r} works inside a search only.")
        agent: Any = _model_agents(config, n_val, services)
    else:
        agent = make(backend, config, n_val, field="agents.backend")
    return Agents(proposer=agent, error_analyzer=agent, early_stopper=agent)


def load_plugins(agents: AgentsConfig, model: ModelConfig | None = None) -> None:
    """Check that plug-in agents can be loaded, and that a strategy fits the model.

    Raises:
        ConfigError: a plug-in cannot be loaded, or the strategy does not fit.
    """
    if agents.backend not in BACKENDS:
        load_factory(agents.backend, field="agents.backend")
    if agents.proposer == "strategy":
        _strategy_proposer(agents, model)
    elif agents.proposer not in PROPOSERS:
        load_factory(agents.proposer, field="agents.proposer")


def _strategy_proposer(agents: AgentsConfig, model: ModelConfig | None) -> Proposer:
    from llmzero_ray.agents.strategy import StrategyProposer

    if agents.recorded_from is None:
        raise ConfigError(
            "agents.proposer is 'strategy', which needs agents.recorded_from: the strategy.yaml to repeat."
        )
    return StrategyProposer.of(agents.recorded_from, model)


def agent_facts(config: SearchConfig) -> dict[str, Any]:
    """Facts frozen with the search: the prompts, one hash over them, and the price. Empty without a language
    model.

    Raises:
        ConfigError: a prompt cannot be read, or the model's price is unknown.
    """
    agents = config.agents
    if agents.backend not in MODEL_BACKENDS:
        return {}
    from llmzero_ray.agents.llm.prices import FREE, price_of
    from llmzero_ray.agents.llm.prompts import Prompts

    prompts = Prompts.load(agents.prompts)
    recorded = agents.backend == "recorded"
    price = FREE if recorded else price_of(agents.model, agents.price, agents.provider)
    own: dict[str, dict[str, float]] = {
        agent: price_of(one.model, one.price, agents.provider).to_json()
        for agent, one in agents.per_agent.items()
        if one.model is not None and not recorded
    }
    if agents.fallback_model is not None and not recorded:
        from llmzero_ray.agents.llm.budget import FALLBACK

        own[FALLBACK] = fallback_price(agents).to_json()
    facts = {"prompts": dict(prompts.texts), "digest": prompts.digest, "price": price.to_json()}
    frozen = getattr(shipped_method(config.search.method), "frozen_facts", dict)
    facts |= frozen()
    if recorded:
        from llmzero_ray.agents.llm.recorded import recorded_course

        facts |= recorded_course(str(agents.recorded_from))
    return {**facts, "prices": own} if own else facts


def check_agents(
    config: SearchConfig, spent: float = 0.0, book: Callable[[AgentCalled], None] = lambda _: None
) -> None:
    """Check, before any hardware is reserved, that the language model can be called. `spent` dollars of its
    budget are already used.

    `book` receives each call that may cost money twice: at its worst case before it is sent, and under the
    same `source` once its cost is known.

    Raises:
        ConfigError: prompts, price or records are missing or wrong.
        AgentError: there is no key, the server rejects the key, the model or images, or it cannot be reached.
    """
    method = load_method(config.search.method)
    if hasattr(method, "check"):
        call(method.check, config, what=f"search.method is {config.search.method!r}, whose check failed")
    _check_has_model(config, method)
    load_plugins(config.agents, config.model)
    if agent_facts(config):
        from llmzero_ray.agents.llm.prompts import Prompts

        Prompts.load(config.agents.prompts).check()
    if config.agents.backend == "recorded":
        from llmzero_ray.agents.llm.recorded import RecordedResponses

        RecordedResponses(str(config.agents.recorded_from))
    elif config.agents.backend == "claude":
        own: tuple[ModelRole, ...] = (SKILL_AGENT,) if needs_model(method) else ()
        _check_models(config, (*AGENT_NAMES, *own), spent, book)


def _check_models(
    config: SearchConfig, names: Sequence[ModelRole], spent: float, book: Callable[[AgentCalled], None]
) -> None:
    from llmzero_ray.agents.llm.budget import BudgetLedger
    from llmzero_ray.agents.llm.call_records import CheckBudget
    from llmzero_ray.agents.llm.client import MessagesClient

    agents, cap = config.agents, config.budget.dollars

    def check(settings: LlmSettings, price: Price, image: bytes | None) -> float:
        ledger = BudgetLedger(price, None if cap is None else cap - spent)
        budget = CheckBudget(ledger, book, settings.model)
        with contextlib.suppress(CapReachedError):  # the agents cannot make a call then, either
            MessagesClient(settings).check(image=image, budget=budget)
        return ledger.dollars

    for name, settings in {repr(s): (n, s) for n in names for s in [llm_settings(agents, n)]}.values():
        spent += check(settings, agent_price(agents, name), _DOT if agents.visual else None)
    if agents.fallback_model is not None:  # works without images
        check(_fallback_settings(agents, "proposer", agents.fallback_model), fallback_price(agents), None)


def agent_price(agents: AgentsConfig, agent: ModelRole) -> Price:
    """Price of one agent's model.

    Raises:
        ConfigError: it is not known.
    """
    from llmzero_ray.agents.llm.prices import price_of

    own = agents.per_agent.get(agent, AgentModelConfig())
    listed = own.price if own.model is not None else agents.price
    return price_of(own.model or agents.model, listed, agents.provider)


def fallback_price(agents: AgentsConfig) -> Price:
    """Price of `agents.fallback_model`: the list price, or `agents.price` if it has none.

    Raises:
        ConfigError: neither is known.
    """
    from llmzero_ray.agents.llm.prices import price_of

    model = str(agents.fallback_model)
    try:
        return price_of(model, None, agents.provider)
    except ConfigError:
        if agents.price is None:
            raise
        return price_of(model, agents.price)


def needs_key(agents: AgentsConfig) -> bool:
    """Whether the agents send the key from the command's environment."""
    return agents.backend == "claude" and llm_settings(agents).takes_environment_key


THINKERS: tuple[ModelRole, ...] = ("proposer", "error_analyzer", SKILL_AGENT)
"""Agents that think before they answer unless configured otherwise, because their decisions cost hours of
training. The early stopper is called often and answers briefly."""
THINKING_TOKENS: Mapping[ModelRole, int] = {
    "proposer": 14_500,
    "error_analyzer": 10_800,
    SKILL_AGENT: 13_000,
    "early_stopper": 3_850,
}
"""Token limit of an agent's thinking, if the model thinks. Thinking and answer: 16,000 for the proposer."""
_OTHERS_THINKING_TOKENS = 4_000
"""Token limit of thinking for a model that is called outside a search."""


def llm_settings(agents: AgentsConfig, agent: ModelRole | None = None) -> LlmSettings:
    """Client settings for one agent of a search. `agent` is None for a model that answers without thinking.

    Raises:
        ConfigError: the settings in `agents` cannot work together.
    """
    from llmzero_ray.agents.llm.settings import HOURLY, LlmSettings

    own = agents.per_agent.get(agent, AgentModelConfig()) if agent is not None else AgentModelConfig()
    model = own.model or agents.model
    deadline_s = agents.deadline_of(agent)
    settings = {
        "model": model,
        "provider": agents.provider,
        "base_url": agents.base_url,
        "key_file": agents.key_file,
        "temperature": agents.temperature,
        "thinking": own.thinking or agents.thinking,
        "thinking_budget": own.thinking_budget or agents.thinking_budget,
        "thinks_by_default": agent in THINKERS,
        "thinking_tokens": THINKING_TOKENS[agent] if agent else _OTHERS_THINKING_TOKENS,
        "cache": "1h" if agent in HOURLY else "5m" if agent is None else None,
        "effort": own.effort or agents.effort,
        "deadline_s": deadline_s,
        "check_deadline_s": min(deadline_s, 20.0),
        "key_env": KEY_ENVS.get(agents.provider, ""),
        "key_file_env": f"{KEY_ENVS.get(agents.provider, '')}_FILE",
    }
    return validated(LlmSettings, settings, "search.yaml")


def _fallback_settings(agents: AgentsConfig, agent: ModelRole, model: str) -> LlmSettings:
    """Client settings of the fallback model. Model-dependent ones are unset, so its capabilities decide."""
    own = {"model": model, "thinking": None, "thinking_budget": None, "effort": None, "cache": None}
    return llm_settings(agents, agent).model_copy(update=own)


def _model_agents(config: SearchConfig, n_val: int, services: AgentServices) -> Any:
    from llmzero_ray.agents.llm.agent_client import AgentClient
    from llmzero_ray.agents.llm.agents import LlmAgents, LlmAgentSettings
    from llmzero_ray.agents.llm.call_records import CallRecorder
    from llmzero_ray.agents.llm.prompts import Prompts

    agents = config.agents
    texts = {str(name): str(text) for name, text in services.facts["prompts"].items()}
    prompts = Prompts(texts=texts, origins={name: f"prompts/{name}" for name in texts})
    report = CallRecorder(prompts.digest, services.post, services.write_call)
    clients = dict[AgentName, AgentClient]()
    for name in AGENT_NAMES:
        own = llm_settings(agents, name)
        clients[name] = AgentClient(
            client=model_client(agents, name),
            budget=services.budget,
            report=report,
            model=own.model,
            deadline_s=own.deadline_s,
            thinking_tokens=THINKING_TOKENS[name],
        )
    settings = LlmAgentSettings(
        n_val=n_val,
        n_gpus=config.slots.n_gpus,
        stop_below=config.stopper.stop_below,
        visual=agents.visual,
        multi_stage=config.search.multi_stage,
        priors=agents.priors,
        strict_tools=agents.strict_tools,
        on_cap=agents.on_cap,
        on_outage="rules" if agents.backend == "recorded" else agents.on_outage,
        space=space_with(agents.allow),
        backend=agents.backend,
    )
    return LlmAgents(clients, prompts, settings, services.draw)


def model_client(agents: AgentsConfig, agent: ModelRole) -> Any:
    """Client of one agent's language model or of its recorded responses, for `AgentClient`."""
    if agents.backend == "recorded":
        from llmzero_ray.agents.llm.recorded import RecordedResponses

        return RecordedResponses(str(agents.recorded_from)).client
    from llmzero_ray.agents.llm.client import FallbackClient, MessagesClient

    client = MessagesClient(llm_settings(agents, agent))
    client.warm_up()
    model = agents.fallback_model
    if model is None or model == client.settings.model:
        return lambda _node, _name: client
    both = FallbackClient(client, MessagesClient(_fallback_settings(agents, agent, model)))
    return lambda _node, _name: both


_DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108020000009077"
    "53de0000000c49444154789c63f8ffff3f0005fe02fe0def46b80000000049454e44ae426082"
)
"""One-pixel PNG, to check whether a model accepts images."""
