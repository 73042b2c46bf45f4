"""Checks of a configuration before anything is started, and of a cluster before anything is reserved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmzero_ray.agents.backend import check_agents, load_plugins
from llmzero_ray.config import SearchConfig
from llmzero_ray.config.strategy_file import other_model
from llmzero_ray.engines.capacity import largest_machine, shortfall
from llmzero_ray.errors import CapacityError, ConfigError, EngineVersionError
from llmzero_ray.estimate import Estimate, SearchMemory
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.launch import actors
from llmzero_ray.launch.nodes import NoResult, nodes_up, run_on_nodes
from llmzero_ray.prepared import PreparedTask, check_model_dir
from llmzero_ray.prepared.families import family_named
from llmzero_ray.records.events import AgentCalled
from llmzero_ray.report import load_strategy
from llmzero_ray.search import load_method, make_search
from llmzero_ray.stopping.rules import make_rules
from llmzero_ray.storage import SearchStorage
from llmzero_ray.utils.plugins import check_names, load_factory

_MACHINES_S = 180.0
"""Timeout of a check on all machines, in seconds: a Ray worker starts on each and imports this library."""


def check_plan(config: SearchConfig) -> None:
    """Check that a new search can train the runs that its method plans.

    Raises:
        ConfigError: it cannot; the message says what to set.
    """
    method = load_method(config.search.method)
    if hasattr(method, "check_plan"):
        method.check_plan(config)


def check_memory(config: SearchConfig, task: PreparedTask) -> None:
    """Check the root's hyper-parameters, and that they are estimated to fit into `slots.gpu_memory_gib`.

    Raises:
        ConfigError: they do not fit the task's rows or the GPU; the message says what would help.
    """
    estimate = Estimate(config, task)
    root, facts = estimate.root, estimate.memory_facts()
    if facts and (problem := SearchMemory(config, facts).problem(root)):
        raise ConfigError(
            f"the root does not fit on the GPUs. {problem} Change root.overrides or engine accordingly, or "
            f"slots.gpu_memory_gib ({config.slots.gpu_memory_gib:g}) if a GPU has more; null there trains "
            "without the estimate."
        )


def check_platform(config: SearchConfig) -> None:
    """Check that the platform is given if a cluster will be joined. It cannot be detected there, because
    machines may differ and the head often has no GPU.

    Raises:
        ConfigError: a cluster will be joined and `engine.platform` is `auto`.
        CapacityError: RAY_ADDRESS names a cluster and it does not answer.
    """
    engine = config.engine
    if (engine.backend, engine.platform) == ("verl", "auto") and actors.head.is_to_be_joined():
        raise ConfigError(
            "engine.platform is auto, and a Ray cluster is joined, whose machines may differ; set "
            "engine.platform to gpu or to cpu."
        )


def check_engine_here(config: SearchConfig) -> None:
    """Check that VeRL's engine can start on this machine, unless a cluster will be joined.

    Raises:
        EngineVersionError: VeRL, vLLM, flash attention or NVIDIA's driver is missing or of a wrong version.
    """
    if config.engine.backend == "verl" and not actors.head.is_to_be_joined():
        from llmzero_ray.engines.verl.internals import check_versions, uses_flash_attention
        from llmzero_ray.estimate import resolve_platform

        flash_attention = uses_flash_attention(config.engine.overrides)
        check_versions(resolve_platform(config.engine.platform), flash_attention=flash_attention)


def check_slots(config: SearchConfig, without: Collection[str] = ()) -> None:
    """Check that the cluster that this process has joined could hold the slots if nothing else ran on it.
    Skipped if machines are added on demand. `without` are the ids of nodes that do not count.

    Raises:
        CapacityError: it could not; nothing has been reserved.
    """
    machines = actors.placement.cluster_machines(without)
    missing = shortfall(machines, config)
    if missing is None or actors.placement.may_grow():
        return
    largest = largest_machine(machines)
    most = "" if largest is None else f" The largest is {largest.address} with {largest.gpus:g} GPUs and "
    most += "" if largest is None else f"{largest.cpus:g} CPUs."
    raise CapacityError(
        f"the machines of this cluster cannot hold the slots, even with nothing else on them, and none is "
        f"added on demand; {missing}{most} Nothing is reserved."
    )


def check_machines(config: SearchConfig, task: PreparedTask) -> None:
    """Check that all live GPU machines of the cluster that this process has joined can train the search: they
    see its files and have what VeRL's engine needs.

    Raises:
        CapacityError: a machine cannot; the message names all such machines with their problems.
    """
    with_gpus = [node for node in nodes_up() if node.gpus >= 1]
    if (config.engine.backend, config.engine.platform) != ("verl", "gpu") or not with_gpus:
        return
    root = SearchStorage(config.storage, config.name).paths.root
    files = [str(root), task.directory, *([config.model.path] if config.model.path else [])]
    answers = run_on_nodes(
        with_gpus, machine_problem, files, "gpu", config.engine.overrides, limit_s=_MACHINES_S
    )
    wrong = [
        f"{label}: {answer.reason if isinstance(answer, NoResult) else answer}"
        for label, answer in answers.items()
        if answer is not None
    ]
    if wrong:
        raise CapacityError(
            f"{len(wrong)} of {len(with_gpus)} machine(s) with GPUs cannot train this search, and a slot may "
            f"come to lie there. {'; '.join(wrong)}. Repair them or take them out of the cluster (`ray stop` "
            "there); nothing is reserved. `llmzero doctor` looks at every machine in full."
        )


def machine_problem(files: Sequence[str], platform: str, overrides: Mapping[str, Any]) -> str | None:
    """Reason why this machine cannot train with VeRL's engine and these `engine.overrides`, or None if a
    quick check finds none."""
    from llmzero_ray.engines.verl.internals import check_versions, uses_flash_attention

    missing = [path for path in files if not Path(path).exists()]
    if missing:
        return (
            f"does not see {', '.join(missing)}; storage, task and model must be in a directory that every "
            "machine mounts under the same path"
        )
    try:
        check_versions(platform, flash_attention=uses_flash_attention(overrides))
    except EngineVersionError as error:
        return str(error)
    return None


def check_verl_keys(config: SearchConfig, task: PreparedTask) -> None:
    """Check that VeRL's configuration has every key that the root sets."""
    if config.engine.backend == "verl":
        from llmzero_ray.engines.verl.factory import check_root

        check_root(config, task, root_hyperparameters(config, task.n_train))


def check_backends(
    config: SearchConfig, spent: float, book: Callable[[AgentCalled], None]
) -> tuple[str, ...]:
    """Check everything that a search needs only much later: what `check_extensions` does, the model's
    directory, and that the agents can call theirs.

    `spent` and `book` as in `check_agents`. Returns notes about unusual properties of the model and about
    overrides that make this machine slow.
    """
    check_extensions(config)
    notes: list[str] = []
    if config.engine.backend == "verl":
        notes += check_model_dir(config.model.path) if config.model.path is not None else ()
        notes += precision_notes(config)
    check_agents(config, spent, book)
    return tuple(notes)


def precision_notes(config: SearchConfig) -> list[str]:
    """Notes about a precision in `engine.overrides` that is slow here. Empty if a cluster will be joined."""
    from llmzero_ray.engines.verl.internals import slow_dtype
    from llmzero_ray.estimate import resolve_platform

    if actors.head.is_to_be_joined():
        return []
    note = slow_dtype(resolve_platform(config.engine.platform), config.engine.overrides)
    return [] if note is None else [note]


def check_extensions(config: SearchConfig) -> None:
    """Check that everything the configuration names can be loaded: search method, stop rules, task family,
    engine, trackers and agents. Method, rules and family are also made; the others need a search.

    Raises:
        ConfigError: one cannot be loaded or made; the message names the field.
    """
    check_names()
    make_search(config.search.method, config.search, config.budget.runs)
    make_rules(config.stopper)
    if config.task.family is not None:
        family_named(config.task.family)
    if config.engine.backend != "verl":
        load_factory(config.engine.backend, field="engine.backend")
    for tracker in config.tracking.backends:
        load_factory(tracker, field="tracking.backends")
    load_plugins(config.agents, config.model)


def strategy_note(config: SearchConfig) -> str | None:
    """Note that a strategy is repeated on another base model than the one on which it was found, or None.

    Raises:
        ConfigError: the strategy cannot be read.
    """
    found = None
    if config.agents.proposer == "strategy" and config.agents.recorded_from is not None:
        found = load_strategy(config.agents.recorded_from).base_model
    elif config.search.schedule is not None:
        found = config.search.schedule.base_model
    return other_model(found, config.model.path)


def refuse_job_directory(config: SearchConfig) -> None:
    """Apply `refuse_job_path` to the paths that a search writes to or must find again."""
    refuse_job_path("storage", config.storage)
    refuse_job_path("task.dir", config.task.dir)


def refuse_job_path(key: str, path: str) -> None:
    """Reject a path in a submitted job's own directory, which is deleted with the cluster.

    Raises:
        ConfigError: the path is in such a directory.
    """
    if "working_dir_files" in Path(path).parts:
        raise ConfigError(
            f"{key} is {path}, inside the job's temporary copy of the files; give an absolute path that "
            f"every machine sees, for example --set {key}=/shared/{Path(path).name}"
        )
