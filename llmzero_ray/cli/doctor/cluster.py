"""Checks that the root can be trained, and that the cluster has the hardware for the slots."""

from __future__ import annotations

from llmzero_ray.cli.doctor.rows import CheckFinding
from llmzero_ray.config import SearchConfig
from llmzero_ray.engines.capacity import shortfall, side_cpus
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.launch import actors
from llmzero_ray.launch.preflight import check_extensions, check_verl_keys
from llmzero_ray.prepared import PreparedTask

MUST_GROW = "the machines that are up do not hold the slots, and more may be added"


def root_and_engine(config: SearchConfig, task: PreparedTask | None) -> CheckFinding:
    """Check that the default recipe can be trained, and everything that the configuration names be loaded.

    Raises:
        ConfigError: it cannot.
    """
    check_extensions(config)
    root_hyperparameters(config, None if task is None else task.n_train)
    backend = config.engine.backend
    found = f"engine {backend}, platform {config.engine.platform}"
    if backend == "verl" and task is not None:
        check_verl_keys(config, task)
        found += "; VeRL's own configuration takes the root"
    return CheckFinding("ok", found)


def resources_of_all(*, private_head: bool) -> CheckFinding:
    """Total resources of the joined cluster."""
    if private_head:
        return CheckFinding("ok", "none is running: this machine alone, with logical CPUs")
    machines = actors.placement.cluster_machines()
    gpus, cpus = sum(m.gpus for m in machines), sum(m.cpus for m in machines)
    return CheckFinding("ok", f"{len(machines)} machine(s), {gpus:g} GPUs, {cpus:g} CPUs")


def slots_fit(config: SearchConfig) -> CheckFinding:
    """Check that the machines have the slots' resources and how much of them is free, or that machines may be
    added."""
    import ray

    machines = actors.placement.cluster_machines()
    if (missing := shortfall(machines, config)) is not None:
        if actors.placement.may_grow():
            return CheckFinding("ok", f"{MUST_GROW}; {missing}")
        return CheckFinding("FAIL", missing, "add machines, or make the slots smaller")
    slots, free = config.slots, ray.available_resources()
    gpus = slots.count * slots.n_gpus
    cpus = gpus * slots.cpus_per_gpu + slots.count * side_cpus(config)
    free_gpus, free_cpus = free.get("GPU", 0.0), free.get("CPU", 0.0)
    there = f"asked: {gpus} GPUs and {cpus} CPUs in all; free now: {free_gpus:g} and {free_cpus:g}"
    short = free_gpus < gpus or free_cpus < cpus
    todo = "wait for what else runs there, or end it" if short else ""
    return CheckFinding("warn" if short else "ok", there, todo)
