"""Wires a search: puts its coordinator on a cluster, learns of its end, removes what is left of it.

Not here: which cluster (head.py), what the user sees (watch.py, commands.py), what actors do.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import time
from dataclasses import dataclass
from typing import Any

import ray

import llmzero_ray
from llmzero_ray import events as ev
from llmzero_ray.agents.backend import agent_facts
from llmzero_ray.config import SearchConfig
from llmzero_ray.coordinator import root_hyperparameters
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.presence import owner
from llmzero_ray.storage import SearchStorage
from llmzero_ray.tasks import PreparedTask

from .coordinator import SearchCoordinator
from .facts import task_facts
from .hardware import release_all
from .head import connect
from .options import NAMESPACE, coordinator_name, restarting, slot_of, stopper_name

_PACKAGES = ("ray", "verl", "vllm", "torch", "transformers", "peft", "tensordict", "numpy", "pydantic")


@dataclass(frozen=True, kw_only=True)
class Running:
    """A search at work: whether its head ends with this process, and a call that returns when the search has
    ended."""

    private_head: bool
    coordinator: str
    """Name of its coordinator."""
    joined: Any


def start(config: SearchConfig, task: PreparedTask) -> Running:
    """Put the search's coordinator on a cluster, or find it there; the directory must have been checked
    before.

    Raises:
        ConfigError: the root's recipe cannot be trained.
        CapacityError: a cluster is named and does not answer.
    """
    return start_on(config, task, private_head=connect(config))


def start_on(config: SearchConfig, task: PreparedTask, *, private_head: bool) -> Running:
    """Put the search's coordinator on the cluster that this process is connected to, or find it there.

    Raises:
        ConfigError: the root's recipe cannot be trained.
    """
    started = ev.SearchStarted(
        config=config.to_json(),
        task=task_facts(task),
        root=root_hyperparameters(config, task.n_train),
        versions=_versions(),
        agents=agent_facts(config),
    )
    name = coordinator_name(config.name)
    if owner(SearchStorage(config.storage, config.name).paths.root) is None:
        _kill(name)  # one that has ended and is about to leave would only give its old last word
    wrapped = ray.remote(SearchCoordinator).options(**restarting(name))
    coordinator = wrapped.remote(config.storage, started, private_head)
    return Running(private_head=private_head, coordinator=name, joined=coordinator.join.remote())


def has_joined(running: Running) -> bool:
    """Whether the search has ended or was interrupted; its coordinator has left the journal complete then.

    Raises:
        LlmzeroError: the coordinator could not read or write the journal.
    """
    done, _ = ray.wait([running.joined], timeout=0)
    if not done:
        return False
    try:
        ray.get(running.joined)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, LlmzeroError) else LlmzeroError(str(error)) from None
    except ray.exceptions.RayActorError as error:
        # Usually it left between its last word and this look, and the journal says how it ended.
        if "creation task" in str(error):
            raise LlmzeroError(f"the coordinator could not be started: {str(error).strip()}") from None
    finally:
        _kill(running.coordinator)
    return True


def clean_up(config: SearchConfig) -> list[str]:
    """End all actors of a search that nobody coordinates any more, and give its hardware back; what was
    found."""
    actors = [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)]
    runners = [name for name in actors if slot_of(config.name, name) is not None]
    names = [coordinator_name(config.name), stopper_name(config.name), *runners]
    found = [name for name in names if _kill(name)]
    slots = [slot_of(config.name, name) or 0 for name in runners]
    release_all(config, max([config.slots.count, *(slot + 1 for slot in slots)]))
    return found


def _kill(name: str) -> bool:
    """End the actor of that name and wait until the name is free; whether there was one."""
    was_there = False
    for _ in range(100):
        try:
            actor = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            return was_there
        was_there = True
        ray.kill(actor)
        time.sleep(0.05)
    return was_there


def _versions() -> dict[str, str]:
    found = {"llmzero_ray": llmzero_ray.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
