"""Services for language-model agents in the coordinator and in the stopper: budget, records, figures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from llmzero_ray.agents.backend import MODEL_BACKENDS, STOPS, Agents, AgentServices, make_agents
from llmzero_ray.config import SearchConfig
from llmzero_ray.records import Event
from llmzero_ray.stopping.policy import StoppingPolicy
from llmzero_ray.storage import SearchStorage

from .llm_budget import LocalBudget, RemoteBudget, SearchBudget
from .names import coordinator_name, find_actor

logger = logging.getLogger("llmzero_ray.actors.agent_services")
_DRAW_S = 60.0
"""Timeout for drawing a figure, in seconds. On timeout, the request is sent without a figure."""
_POST_S = 30.0


def search_agents(
    config: SearchConfig,
    n_val: int,
    budget: SearchBudget,
    post: Callable[[Event], Coroutine[Any, Any, None]],
    storage: SearchStorage,
) -> Agents:
    """Agents of a search, to be called from threads of the coordinator's process. `post` runs on the caller's
    event loop."""
    services = None
    if budget.ledger is not None:
        loop = asyncio.get_running_loop()

        def post_from_thread(event: Event) -> None:
            done = asyncio.run_coroutine_threadsafe(post(event), loop)
            try:
                done.result(timeout=_POST_S)
            except concurrent.futures.TimeoutError:
                logger.error("%s was not journalled within %.0f s", type(event).__name__, _POST_S)

        services = AgentServices(
            facts=budget.facts,
            budget=LocalBudget(budget, loop),
            post=post_from_thread,
            write_call=storage.write_call,
            draw=draw,
            transcript=storage.paths.transcript,
        )
    return make_agents(config, n_val, services)


def stopping_policy(
    config: SearchConfig, facts: Mapping[str, Any], storage: SearchStorage, n_val: int
) -> StoppingPolicy:
    """Rules and agent of a search's stopper, which runs outside the coordinator's process."""
    if STOPS in facts:  # recorded answers are replayed, and phases end where the recorded ones did
        return StoppingPolicy(config.stopper.model_copy(update={"enabled": False}))
    services = None
    if config.agents.backend in MODEL_BACKENDS:
        services = AgentServices(
            facts=facts,
            budget=RemoteBudget(storage.paths.root),
            post=lambda event: _post(storage.paths.root, event),
            write_call=storage.write_call,
            draw=draw,
            transcript=storage.paths.transcript,
        )
    return StoppingPolicy(config.stopper, make_agents(config, n_val, services).early_stopper, n_val=n_val)


def _post(root: Path, event: Event) -> None:
    """Send an event to the coordinator of the search in `root`, which journals it."""
    import ray

    try:
        coordinator = find_actor(coordinator_name(root))
        ray.get(coordinator.post.remote(event), timeout=_POST_S)
    except (ValueError, ray.exceptions.RayError) as error:
        logger.error("%s was not journalled: %s", type(event).__name__, error)


def draw(kind: str, request: Any, n_val: int) -> bytes:
    """PNG of an agent's figure, drawn in a Ray task because drawing holds the GIL."""
    import ray

    from llmzero_ray.agents.llm.figures import draw_figure

    task = ray.remote(draw_figure).options(num_cpus=0, name=f"draw-{kind}", max_retries=1)
    png = ray.get(task.remote(kind, request, n_val), timeout=_DRAW_S)
    assert isinstance(png, bytes)
    return png
