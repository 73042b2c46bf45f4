"""Start the coordinator of a search on a cluster, wait until it ends, and clean up its actors."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from llmzero_ray import version
from llmzero_ray.agents.backend import agent_facts, needs_key
from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.estimate import Estimate
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.prepared.confirmation import write_confirmation
from llmzero_ray.prepared.task import task_facts
from llmzero_ray.records import events as ev
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.presence import drop_ends, owner
from llmzero_ray.utils.api_key import KEY_ENVS, key_file, tracker_key_file
from llmzero_ray.utils.plugins import installed_versions

from .coordinator import SearchCoordinator
from .names import coordinator_name, end_actor, name_on_cluster, restarting, slot_of, stopper_name
from .placement import remove_groups
from .runner_pool import HELD_SLOTS_ENV

_PACKAGES = ("ray", "verl", "vllm", "torch", "transformers", "peft", "tensordict", "numpy", "pydantic")


@dataclass(frozen=True, kw_only=True)
class Running:
    """A running search."""

    private_head: bool
    """Whether the Ray head ends with this process."""
    name: str
    """Name of the coordinator actor."""
    coordinator: Any
    joined: Any
    """Reference of a `join` call, which is ready when the search has ended."""


def start_on(
    config: SearchConfig, task: PreparedTask, *, private_head: bool, checks: Iterable[ev.AgentCalled] = ()
) -> Running:
    """Start the search's coordinator on the cluster that this process is connected to, or find the one that
    already runs there. The caller has checked the directory. `checks` are the calls that tested the agents'
    model.

    Raises:
        ConfigError: the default recipe cannot be trained.
        StorageError: a key cannot be kept for the actors, or fresh validation items cannot be written.
        TaskError: winners must be confirmed, but the task has no spare rows.
    """
    facts, estimate = task_facts(task), Estimate(config, task)
    if config.confirm.k:
        rows = SearchStorage(config.storage, config.name).paths.confirm_rows
        facts["n_confirm"] = write_confirmation(task, config.confirm.n, rows)
    started = ev.SearchStarted(
        config=config.to_json(),
        task=facts,
        root=estimate.root,
        versions=_versions(),
        agents={**agent_facts(config), **estimate.model_facts()},
        memory=estimate.memory_facts(),
    )
    root = SearchStorage(config.storage, config.name).recorded_root()
    name = coordinator_name(root)
    if owner(root) is None:
        end_actor(name)  # an ended coordinator would only return its old result
        drop_ends(root)  # requests to end that one
    wrapped = ray.remote(SearchCoordinator).options(**restarting(name))
    key, env = None, KEY_ENVS.get(config.agents.provider)
    if env is not None and needs_key(config.agents):
        key = key_file(config.storage, private_head=private_head, key_env=env)
    tracker_keys = None
    if config.tracking.backends:
        tracker_keys = tracker_key_file(config.storage, private_head=private_head)
    held_slots = os.environ.get(HELD_SLOTS_ENV)
    coordinator = wrapped.remote(str(root.parent), started, private_head, key, tracker_keys, held_slots)
    joined = coordinator.join.remote()
    for call in checks:
        coordinator.post.remote(call)
    return Running(private_head=private_head, name=name, coordinator=coordinator, joined=joined)


def has_joined(running: Running) -> bool:
    """Whether the coordinator has ended. Its journal is then complete, unless another command has replaced
    the coordinator.

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
        # Usually it exited between the end of the search and this call; the journal has the reason.
        if "creation task" in str(error):
            raise LlmzeroError(f"the coordinator could not be started: {str(error).strip()}") from None
    finally:
        end_actor(running.name, only=running.coordinator)  # another coordinator may have the name by now
    return True


def clean_up(root: Path) -> list[str]:
    """End all actors that the search in `root`, which has no live coordinator, left behind, and release its
    hardware. Returns the names of the actors that were found."""
    root = SearchStorage.at(root).recorded_root()
    slots = name_on_cluster(root)
    actors = [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)]
    runners = [name for name in actors if slot_of(slots, name) is not None]
    names = [coordinator_name(root), stopper_name(root), *runners]
    found = [name for name in names if end_actor(name)]
    remove_groups(slots)
    return found


def _versions() -> dict[str, str]:
    found = {"llmzero_ray": version.__version__, "python": platform.python_version()}
    return found | installed_versions(_PACKAGES)
