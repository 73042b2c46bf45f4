"""Preparing and searching: check everything that can be checked first, then wire, then follow.

Not here: parsing (cli.py), looking at searches and ending them (inspection.py), Ray (app.py, imported when
needed).
"""

from __future__ import annotations

import argparse

from rich.console import Console

from llmzero_ray.config import SearchConfig, load_config
from llmzero_ray.config_changes import read_settings, with_changes
from llmzero_ray.coordinator import root_hyperparameters
from llmzero_ray.errors import ConfigError
from llmzero_ray.follow import Follower
from llmzero_ray.presence import SearchLock, owner, request
from llmzero_ray.storage import SearchStorage
from llmzero_ray.tasks import PreparedTask
from llmzero_ray.view import outcome_lines

from .checks import check_backends, check_verl_keys, refuse_job_directory
from .facts import check_same_task
from .finding import find
from .watch import gone, print_all, watch


def prepare(arguments: argparse.Namespace) -> int:
    """Make the task of a search.yaml or of a task.yaml, or see that it is there."""
    from .preparing import is_task_file, prepare_task, tell_task

    console = Console()
    if is_task_file(arguments):
        return prepare_task(arguments, console)
    return tell_task(_prepared(load_config(arguments.config, arguments.set), console), console)


def search(arguments: argparse.Namespace) -> int:
    """Start, attach or resume, by name; follow to the end."""
    if arguments.dry_run:
        from .dry_run import dry_run

        config = _known(arguments) if arguments.resume else load_config(arguments.config, arguments.set)
        return dry_run(config, seconds_per_step=arguments.seconds_per_step, like=arguments.like)
    return resume(arguments) if arguments.resume else _search(load_config(arguments.config, arguments.set))


def resume(arguments: argparse.Namespace) -> int:
    """Go on with a search from its directory alone, on whatever cluster there is now."""
    return _search(_known(arguments))


def _known(arguments: argparse.Namespace) -> SearchConfig:
    """The configuration of a search that exists, where it is now.

    Raises:
        ConfigError: there is none, or a setting cannot be changed any more.
    """
    place = find(arguments.config, getattr(arguments, "storage", "runs"))
    config = place.config()
    if config is None:
        raise ConfigError(f"{place.paths.root}: there is no search here. Start one with `llmzero search`.")
    config = with_changes(config, read_settings(arguments.set))
    return config.model_copy(update={"storage": str(place.paths.root.parent)})


def _search(config: SearchConfig) -> int:
    refuse_job_directory(config)
    console, storage = Console(), SearchStorage(config.storage, config.name)
    storage.check()
    follower, root = Follower(storage), storage.paths.root
    follower.poll()
    someone = owner(root)
    changes = storage.check_same(config) if someone is not None or follower.has_trained else {}
    if follower.finished is not None:
        print_all(console, outcome_lines(follower))
        return 0
    if someone is not None and changes:
        listed = " ".join(f"{key}={value}" for key, value in changes.items())
        raise ConfigError(
            f"{config.name} is at work with other settings; change them with `llmzero set {root} {listed}`."
        )
    if someone is not None:
        console.print(f"{config.name}: {someone} is at work on it; following", highlight=False)
        return watch(follower, console, ended=gone(follower), private_head=False)
    root_hyperparameters(config, None)
    check_backends(config)
    task = _prepared(config, console)
    check_verl_keys(config, task)
    _settle(config, task, follower)
    if changes:
        request(root, "set", changes=changes)  # the first thing that its coordinator takes
    return _run(config, task, Follower(storage), console)


def _settle(config: SearchConfig, task: PreparedTask, follower: Follower) -> None:
    """Make the directory ready for a coordinator, unless one has taken it meanwhile."""
    storage = follower.storage
    lock = SearchLock(storage.paths.root)
    lock.acquire(private_head=True)
    try:
        follower.poll()
        if follower.has_trained and follower.core.started is not None:
            check_same_task(follower.core.started.task, task)
        else:
            storage.start_over()
        storage.adopt_config(config)
    finally:
        lock.release()


def _run(config: SearchConfig, task: PreparedTask, follower: Follower, console: Console) -> int:
    from . import app
    from .head import disconnecting
    from .interrupts import hear_termination

    with disconnecting():
        running = app.start(config, task)
        hear_termination(console)
        return watch(
            follower, console, ended=lambda: app.has_joined(running), private_head=running.private_head
        )


# --- parts --------------------------------------------------------------------------------------------------


def _prepared(config: SearchConfig, console: Console) -> PreparedTask:
    from llmzero_ray.tasks.prepare import prepare as make

    said: list[str] = []

    def progress(doing: str, share: float) -> None:
        part = doing.split(":")[0]
        if part not in said:
            said.append(part)
            console.print(f"preparing the task: {part} ({share:.0%})", highlight=False)

    task, wanted = config.task, config.model.path is None
    return make(
        dir=task.dir,
        family=task.family,
        n_train=task.n_train,
        n_val=task.n_val,
        n_test=task.n_test,
        seed=task.seed,
        make_model=wanted,
        progress=progress,
    )
