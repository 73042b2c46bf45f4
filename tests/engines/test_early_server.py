"""Servers of vLLM that start before VeRL is imported: every call reaches the server, and VeRL is given none
that was launched in another way than it asks for."""

from __future__ import annotations

import asyncio
import copy
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from llmzero_ray.engines.verl.early_server import METHODS, EarlyServer
from llmzero_ray.engines.verl.overrides import all_overrides, compose
from llmzero_ray.errors import EngineError, EngineVersionError
from tests.engines.test_overrides import spec, verl_settings


class Held:
    """Answers each method with its name and arguments, every other one as a coroutine."""

    def __getattr__(self, name: str) -> Any:
        async def later(*args: Any, **kwargs: Any) -> Any:
            return name, args, kwargs

        return later if METHODS.index(name) % 2 else lambda *args, **kwargs: (name, args, kwargs)


@pytest.mark.parametrize("name", METHODS)
def test_a_call_is_passed_on_with_its_arguments_and_waited_for(name: str) -> None:
    server = EarlyServer(__name__, Held.__name__)
    assert asyncio.run(getattr(server, name)(1, last=2)) == (name, (1,), {"last": 2})


class Handle:
    """Of an actor: keeps what it was asked, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def remote(*args: Any, **kwargs: Any) -> str:
            self.calls.append((name, args, kwargs))
            return f"{name}'s result"

        return SimpleNamespace(remote=remote)


@pytest.fixture
def rollout_server(monkeypatch: pytest.MonkeyPatch) -> Any:
    levels = [(one, one.level) for one in (logging.root, *logging.root.handlers)]
    module = pytest.importorskip("llmzero_ray.engines.verl.rollout_server")
    for one, level in levels:  # VeRL's import lets errors through alone
        one.setLevel(level)
    monkeypatch.setattr(module.ray, "get", lambda reference: reference)
    return module


@pytest.fixture
def config() -> Any:
    return compose(all_overrides(verl_settings(), spec(), 5000)).actor_rollout_ref


def asked_by_verl(rollout_server: Any, config: Any) -> dict[str, Any]:
    """What VeRL's replica gives its server."""
    replica = rollout_server.RecordingReplica(
        0, config.rollout, config.model, gpus_per_node=config.rollout.n_gpus_per_node
    )
    return {**replica.server_arguments(), "workers": ["a worker"], "cuda_visible_devices": "0"}


def test_a_server_is_begun_then_launched_and_given_once_verl_asks_for_it(
    rollout_server: Any, config: Any
) -> None:
    handle = Handle()
    launched = rollout_server.launch_servers({0: handle}, config)
    assert [(name, args) for name, args, _ in handle.calls] == [
        ("begin", ()),
        ("launch_server", ("begin's result",)),
    ]
    started = launched[0].options(name="vllm_server_0_0").remote(**asked_by_verl(rollout_server, config))
    assert started is handle and len(handle.calls) == 2


def test_a_server_that_verl_asks_for_with_other_settings_is_refused(rollout_server: Any, config: Any) -> None:
    launched = rollout_server.launch_servers({0: Handle()}, config)
    other = copy.deepcopy(config)
    other.rollout.max_num_seqs += 1
    config.model.path = "/elsewhere"  # VeRL's own object, changed in the meantime
    for changed, name in ((other, "config"), (config, "model_config")):
        with pytest.raises(EngineError, match=rf"started early with another {name} than VeRL asks for"):
            launched[0].remote(**asked_by_verl(rollout_server, changed))


def test_a_server_with_methods_that_are_not_passed_on_is_refused(
    rollout_server: Any, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_server, "METHODS", METHODS[1:])
    with pytest.raises(EngineVersionError, match=r"other methods \(abort_all_requests\)"):
        rollout_server.launch_servers({0: Handle()}, config)
