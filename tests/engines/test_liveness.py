"""A dead actor and a dead vLLM engine are told from a failing phase; on real Ray, without VeRL."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.waiting import PATIENCE_S


class Server:
    """Stands for a vLLM server; its engine may be dead while it lives."""

    def __init__(self, problem: str | None) -> None:
        self._problem = problem

    def check_engine(self) -> str | None:
        return self._problem


@pytest.fixture
def ray(head: str) -> Any:
    import ray

    return ray


def serve(ray: Any, problem: str | None = None) -> Any:
    server = ray.remote(Server).options(num_cpus=0).remote(problem)
    ray.get(server.check_engine.remote())
    return server


@pytest.mark.slow
def test_a_failure_with_all_processes_alive_is_no_loss(ray: Any) -> None:
    from llmzero_ray.engines.verl.liveness import ActorLiveness

    server = serve(ray)
    watch = ActorLiveness(lambda: [server])
    assert watch.dead() is None
    assert watch.cause_of() is None


@pytest.mark.slow
def test_a_dead_engine_behind_a_living_server_is_a_loss(ray: Any) -> None:
    from llmzero_ray.engines.verl.liveness import ActorLiveness

    server = serve(ray, "EngineDeadError: EngineCore encountered an issue")
    assert (
        ActorLiveness(lambda: [server]).cause_of()
        == "vLLM's engine died: EngineDeadError: EngineCore encountered an issue"
    )


@pytest.mark.slow
def test_a_killed_actor_is_named_once_and_one_that_came_later_does_not_count(ray: Any) -> None:
    from llmzero_ray.engines.verl.liveness import ActorLiveness

    first = serve(ray)
    watch, told, heard = ActorLiveness(list), [], threading.Event()

    def lost(what: str) -> None:
        told.append(what)
        heard.set()

    watch.start(lost)
    ray.kill(serve(ray))
    assert watch.dead() is None
    ray.kill(first)
    assert heard.wait(PATIENCE_S)
    assert told == ["Server died"] and watch.cause_of() == "Server died"
