"""Resources that the slots of a search require, and whether machines have them. Pure.

Not here: reserving them (actors/placement.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmzero_ray.config import SearchConfig

QUEUE_UNITS = {"cpu": 1, "gpu": 4}
"""TransferQueue storage units per slot. On GPUs, a step has about 0.5 GB of data, which is read several
times."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Total resources of one machine of the cluster."""

    address: str
    cpus: float
    gpus: float


def side_cpus(config: SearchConfig) -> int:
    """CPUs that one slot needs on its machines outside its bundles. A user's engine is assumed to need none.

    The controller of VeRL's queue and each of its units use one. VeRL's servers, agent and reward workers and
    load balancer reserve none, but Ray starts them only on a machine that has CPUs; one more is counted for
    that.
    """
    engine = config.engine
    if engine.backend != "verl":
        return 0
    return 1 + QUEUE_UNITS["cpu" if engine.platform == "cpu" else "gpu"] + 1


def private_head_resources(config: SearchConfig, *, has_gpus: bool) -> dict[str, int]:
    """Logical CPUs and GPUs of a head that is started for this search alone.

    CPUs are only scheduling tokens there: as many as the slots require, whatever the machine has. On a
    machine without GPUs, so are GPUs. Ray counts real GPUs itself.
    """
    slots = config.slots
    per_slot = slots.nodes * slots.gpus_per_node * slots.cpus_per_gpu + side_cpus(config)
    cpus = {"num_cpus": max(16, slots.count * per_slot + 2)}
    return cpus if has_gpus else {**cpus, "num_gpus": slots.count * slots.gpus_per_node}


def shortfall(machines: Sequence[Machine], config: SearchConfig) -> str | None:
    """Reason why the slots do not fit on these machines even if nothing else runs there, or None if they fit.

    For slots that span machines, the CPUs outside their bundles may be on any of the machines.
    """
    slots, side = config.slots, side_cpus(config)
    gpus, cpus = slots.gpus_per_node, slots.gpus_per_node * slots.cpus_per_gpu
    on_one = cpus + (side if slots.nodes == 1 else 0)
    # The parts of one slot are on different machines. A machine may hold parts of several slots.
    holds = [min(int(m.gpus // gpus), int(m.cpus // on_one), slots.count) for m in machines]
    n_parts = slots.count * slots.nodes
    if sum(holds) < n_parts:
        return required_and_available(machines, config)
    usable = sum(machine.cpus for machine, parts in zip(machines, holds, strict=True) if parts)
    if usable < n_parts * cpus + slots.count * side:
        return required_and_available(machines, config)
    return None


def largest_machine(machines: Sequence[Machine]) -> Machine | None:
    """Machine with the most GPUs, then the most CPUs. None if there are no machines."""
    return max(machines, key=lambda machine: (machine.gpus, machine.cpus), default=None)


def required_and_available(machines: Sequence[Machine], config: SearchConfig) -> str:
    """Required and available resources, for an error message."""
    slots, beside = config.slots, side_cpus(config)
    each = f"{slots.gpus_per_node} GPUs and {slots.gpus_per_node * slots.cpus_per_gpu} CPUs"
    side = f", and {beside} more CPUs on each slot's machines for VeRL's processes" if beside else ""
    there = "; ".join(f"{m.address}: {m.gpus:g} GPUs, {m.cpus:g} CPUs" for m in machines) or "no machine"
    return (
        f"asked: {slots.count} slot(s) of {slots.nodes} machine(s) with {each} each{side}. There: {there}. "
        "Lower slots.count, slots.nodes, slots.gpus_per_node or slots.cpus_per_gpu, or add machines."
    )
