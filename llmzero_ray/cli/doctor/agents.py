"""Check that the agents can call their model from the head: key, price, server. It spends no tokens.

`agents_found` runs on the head, where the coordinator and the stopper run and where keys may be stored.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from llmzero_ray.agents.backend import agent_facts, llm_settings, load_plugins
from llmzero_ray.cli.doctor.rows import CheckFinding
from llmzero_ray.config import AgentsConfig, SearchConfig, parse_config
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.launch.nodes import Node, NoResult, run_on_nodes
from llmzero_ray.utils.api_key import KEY_ENV, KEY_ENVS, key_file_in_use

if TYPE_CHECKING:
    from llmzero_ray.agents.llm.settings import LlmSettings

_SERVER_S = 10.0
_HEAD_S = 60.0
_TODO = "start the server, correct agents.base_url, or choose agents.backend: expert"


def agents_from(head: Node, config_json: dict[str, Any], key_file: str | None = None) -> CheckFinding:
    """Finding about the agents from the head. `key_file` names a file with the command's key."""
    answer = run_on_nodes([head], agents_found, config_json, key_file, limit_s=_HEAD_S)[head.label]
    return CheckFinding("FAIL", answer.reason) if isinstance(answer, NoResult) else CheckFinding(*answer)


def agents_found(config_json: dict[str, Any], key_file: str | None = None) -> CheckFinding:
    """Finding about the agents from this process."""
    config = parse_config(config_json)
    with key_file_in_use(key_file, KEY_ENVS.get(config.agents.provider, KEY_ENV)):
        return _found(config)


def _found(config: SearchConfig) -> CheckFinding:
    agents = config.agents
    try:
        price = agent_facts(config).get("price")
        if agents.backend == "claude":
            return _model(agents, price or {})
        if agents.backend == "recorded":
            from llmzero_ray.agents.llm.recorded import RecordedResponses

            RecordedResponses(str(agents.recorded_from))
            return CheckFinding("ok", f"recorded answers of {agents.recorded_from}")
        load_plugins(agents)
    except LlmzeroError as error:
        return CheckFinding("FAIL", str(error))
    free = agents.backend == "expert"
    return CheckFinding("ok", f"{agents.backend}{': needs no key and costs nothing' if free else ''}")


def _model(agents: AgentsConfig, price: dict[str, float]) -> CheckFinding:
    from llmzero_ray.agents.llm.api_key import read_key
    from llmzero_ray.agents.llm.client import MessagesClient
    from llmzero_ray.agents.llm.prompts import Prompts

    Prompts.load(agents.prompts).check()
    settings = llm_settings(agents)
    client = MessagesClient(settings)
    key = read_key(settings)
    described = f"{agents.model} at {settings.url}, {_key_text(settings, key)}, {_price_text(price)}"
    if agents.base_url is None:
        client.check()  # asks for the model's entry, which is free there
        return CheckFinding("ok", described)
    return _own_server(settings, described, key)


def _key_text(settings: LlmSettings, key: str | None) -> str:
    if key:
        return "a key is set"
    return "no key is set" if settings.takes_environment_key else "no key is sent (agents.key_file)"


def _own_server(settings: LlmSettings, described: str, key: str | None) -> CheckFinding:
    """Check that the server responds over HTTP. If it lists its models, the list must contain the model."""
    model = settings.model
    models = "models" if settings.provider == "openai" else "v1/models"  # base_url ends with /v1 for OpenAI's
    request = urllib.request.Request(f"{settings.url.rstrip('/')}/{models}")
    if key:
        request.add_unredirected_header("authorization", f"Bearer {key}")
    try:
        direct = [urllib.request.ProxyHandler({})] if settings.is_on_this_machine else []
        with urllib.request.build_opener(*direct).open(request, timeout=_SERVER_S) as answer:
            names = [entry["id"] for entry in json.load(answer)["data"]]
    except urllib.error.HTTPError as error:
        return CheckFinding("ok", f"{described}; it answers (HTTP {error.code})")
    except (OSError, urllib.error.URLError) as error:
        return CheckFinding("FAIL", f"{described}; no answer: {getattr(error, 'reason', error)}", _TODO)
    except (ValueError, KeyError, TypeError):
        return CheckFinding("ok", f"{described}; it answers")
    if model in names:
        return CheckFinding("ok", f"{described}; it answers and has the model")
    has = ", ".join(names[:5]) or "no model"
    return CheckFinding("warn", f"{described}; it has {has}", "set agents.model to one of these")


def _price_text(price: dict[str, float]) -> str:
    if not any(price.values()):
        return "free of charge"
    return f"{price['input']:g} dollars per million tokens in, {price['output']:g} out"
