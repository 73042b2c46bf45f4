"""Starts vLLM's servers before this process imports VeRL.

A server's process spends as much time on imports as this one, and vLLM's engine core does so again after it.
Ray needs an actor's class to start it, and VeRL's server class is in a module that imports all of vLLM.
Therefore this module has a proxy class with the same methods.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

MODULE, SERVER = "llmzero_ray.engines.verl.rollout_server", "RecordingServer"
METHODS = (
    "abort_all_requests",
    "abort_request",
    "begin",
    "canary_log_probs",
    "check_engine",
    "clear_kv_cache",
    "collective_rpc",
    "generate",
    "generate_many",
    "get_master_address",
    "get_rollout_config",
    "get_server_address",
    "launch_server",
    "open_submission_gate",
    "read_record",
    "release_kv_cache",
    "reset_record",
    "resume_engine_generation",
    "resume_generation",
    "resume_kv_cache",
    "run_headless",
    "run_server",
    "set_global_steps",
    "set_pd_peer",
    "sleep",
    "start_profile",
    "stop_profile",
    "wait_for_requests_to_drain",
    "wake_up",
)
"""Public methods of VeRL's server class with our extensions (rollout_server.py)."""


class EarlyServer:
    """Proxy of a server. Only the server's own process imports the real class."""

    def __init__(self, module: str, name: str) -> None:
        self._server = getattr(importlib.import_module(module), name)()


def _passed_on(name: str) -> Callable[..., Awaitable[Any]]:
    async def call(self: EarlyServer, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self._server, name)(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    call.__name__ = name
    return call


for _name in METHODS:
    setattr(EarlyServer, _name, _passed_on(_name))


def start_servers_early(count: int, concurrency: int, node_id: str) -> dict[int, Any]:
    """Handles by replica rank of servers whose processes start importing vLLM now. All run on the node
    `node_id` (Ray's hex id), and each takes `concurrency` calls at a time."""
    import ray

    server = ray.remote(type(SERVER, (EarlyServer,), {}))  # Ray names processes and log lines by it
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    return {
        rank: server.options(  # as VeRL's replica does; its workers look servers up by this name
            name=f"vllm_server_{rank}_0", scheduling_strategy=here, max_concurrency=concurrency
        ).remote(MODULE, SERVER)
        for rank in range(count)
    }
