"""A doctor's checks of the configuration and of the cluster as a whole.

Not here: files (files.py), agents (agents.py), training (step.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmzero_ray.capacity import shortfall, side_cpus
from llmzero_ray.config import SearchConfig
from llmzero_ray.coordinator import root_hyperparameters
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.plugin import load_factory
from llmzero_ray.tasks import PreparedTask

from ..head import connect
from ..machines import cluster_machines
from .nodes import Node, ask, clock_offsets
from .probes import look
from .rows import Row, Status, checked
from .verdicts import clock_row, room_row, versions_row

_CLOCK_S = 20.0


def configuration_row(config: SearchConfig, task: PreparedTask | None) -> Row:
    """The root's recipe can be trained, and the engine can be loaded.

    Raises:
        ConfigError: it cannot.
    """
    root = root_hyperparameters(config, None if task is None else task.n_train)
    backend = config.engine.backend
    found = f"engine {backend}, platform {config.engine.platform}"
    if backend != "verl":
        load_factory(backend, field="engine.backend")
    elif task is not None:
        from llmzero_ray.engines.verl.factory import check_root

        check_root(config, task, root)
        found += "; VeRL's own configuration takes the root"
    return Row(name="configuration", kind="config", status="ok", found=found)


def joined(config: SearchConfig) -> tuple[Row, bool]:
    """Whether a cluster answers, and whether it is a head of this command alone."""

    def row(status: Status, found: str, todo: str = "") -> Row:
        return Row(name="cluster", kind="capacity", status=status, found=found, todo=todo)

    try:
        private_head = connect(config)
    except LlmzeroError as error:
        return row("FAIL", str(error)), False
    except Exception as error:  # noqa: BLE001 - Ray raises many kinds, and the other checks go on
        todo = "see that RAY_ADDRESS, RAY_AUTH_MODE and Ray's version are those of the cluster"
        return row("FAIL", f"Ray cannot be joined: {type(error).__name__}: {error}", todo), False
    if private_head:
        return row("ok", "none is running: this machine alone, with logical CPUs"), True
    machines = cluster_machines()
    gpus, cpus = sum(m.gpus for m in machines), sum(m.cpus for m in machines)
    return row("ok", f"{len(machines)} machine(s), {gpus:g} GPUs, {cpus:g} CPUs"), False


def slots_fit(config: SearchConfig) -> Row:
    """The machines have what the slots ask for, and how much of it is free."""
    import ray

    machines = cluster_machines()
    if (missing := shortfall(machines, config)) is not None:
        todo = "see `found`; a cluster that grows on demand must have grown before"
        return Row(name="resources", kind="capacity", status="FAIL", found=missing, todo=todo)
    slots, free = config.slots, ray.available_resources()
    gpus = slots.count * slots.n_gpus
    cpus = gpus * slots.cpus_per_gpu + slots.count * side_cpus(config)
    free_gpus, free_cpus = free.get("GPU", 0.0), free.get("CPU", 0.0)
    there = f"asked: {gpus} GPUs and {cpus} CPUs in all; free now: {free_gpus:g} and {free_cpus:g}"
    short = free_gpus < gpus or free_cpus < cpus
    todo = "wait for what else runs there, or end it" if short else ""
    return Row(name="resources", kind="capacity", status="warn" if short else "ok", found=there, todo=todo)


def cluster_rows(config: SearchConfig, nodes: Sequence[Node], *, limit_s: float) -> Iterator[Row]:
    """Versions, room and clocks of all machines."""
    engine = config.engine
    looked = ask(nodes, look, engine.backend, engine.platform, limit_s=limit_s)
    yield checked("versions", "engine", lambda: versions_row(nodes, looked), limit_s=limit_s)
    yield checked("/tmp and /dev/shm", "capacity", lambda: room_row(nodes, looked), limit_s=limit_s)
    bound_s = limit_s + len(nodes) * _CLOCK_S
    yield checked(
        "clocks", "capacity", lambda: clock_row(clock_offsets(nodes, limit_s=_CLOCK_S)), limit_s=bound_s
    )
