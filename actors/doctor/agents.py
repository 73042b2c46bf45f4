"""Whether the agents can be asked from where they will be: key, price, server. No tokens are spent.

`agents_found` runs on the head, where the coordinator and the stopper live and keys may lie. Not here: asking
a model (llmzero_ray.agents).
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from llmzero_ray.agents.backend import agent_facts, llm_settings
from llmzero_ray.config import AgentsConfig, parse_config
from llmzero_ray.errors import LlmzeroError

from .nodes import Node, Silent, ask
from .rows import Row, Status

_SERVER_S = 10.0
_HEAD_S = 60.0
_TODO = "start the server, correct agents.base_url, or choose agents.backend: expert"


def agents_row(config_json: dict[str, Any], head: Node) -> Row:
    """How the agents stand, as seen from the head."""
    answer = ask([head], agents_found, config_json, limit_s=_HEAD_S)[head.label]
    if isinstance(answer, Silent):
        return Row(name="agents", kind="config", status="FAIL", found=answer.reason)
    status, found, todo = answer
    return Row(name="agents", kind="config", status=status, found=found, todo=todo)


def agents_found(config_json: dict[str, Any]) -> tuple[Status, str, str]:
    """(status, what was found, what to do) in this process."""
    config = parse_config(config_json)
    agents = config.agents
    try:
        price = agent_facts(config).get("price")
        if agents.backend == "claude":
            return _model(agents, price or {})
        if agents.backend == "replay":
            from llmzero_ray.agents.llm.replay import RecordedAnswers

            RecordedAnswers(str(agents.replay_from))
            return "ok", f"replay of {agents.replay_from}", ""
        if ":" in agents.backend:
            from llmzero_ray.plugin import load_factory

            load_factory(agents.backend, field="agents.backend")
    except LlmzeroError as error:
        return "FAIL", str(error), ""
    return (
        "ok",
        f"{agents.backend}: needs no key and costs nothing" if agents.backend == "expert" else agents.backend,
        "",
    )


def _model(agents: AgentsConfig, price: dict[str, float]) -> tuple[Status, str, str]:
    from llmzero_ray.agents.llm.client import MessagesClient
    from llmzero_ray.agents.llm.key import read_key
    from llmzero_ray.agents.llm.prompting import Prompts

    Prompts.load(agents.prompts).check()
    settings = llm_settings(agents)
    client = MessagesClient(settings)
    key = "a key is set" if read_key(settings) else "no key is set"
    told = f"{agents.model} at {settings.url}, {key}, {_price_text(price)}"
    if agents.base_url is None:
        client.check()  # asks for the model's entry, which is free there
        return "ok", told, ""
    return _own_server(agents.base_url, agents.model, told)


def _own_server(base_url: str, model: str, told: str) -> tuple[Status, str, str]:
    """Any answer over HTTP will do; a list of models, where there is one, should hold ours."""
    try:
        with urllib.request.urlopen(f"{base_url.rstrip('/')}/v1/models", timeout=_SERVER_S) as answer:
            names = [entry["id"] for entry in json.load(answer)["data"]]
    except urllib.error.HTTPError as error:
        return "ok", f"{told}; it answers (HTTP {error.code})", ""
    except (OSError, urllib.error.URLError) as error:
        return "FAIL", f"{told}; no answer: {getattr(error, 'reason', error)}", _TODO
    except (ValueError, KeyError, TypeError):
        return "ok", f"{told}; it answers", ""
    if model in names:
        return "ok", f"{told}; it answers and has the model", ""
    return "warn", f"{told}; it has {', '.join(names[:5]) or 'no model'}", "set agents.model to one of these"


def _price_text(price: dict[str, float]) -> str:
    if not any(price.values()):
        return "free of charge"
    return f"{price['input']:g} dollars per million tokens in, {price['output']:g} out"
