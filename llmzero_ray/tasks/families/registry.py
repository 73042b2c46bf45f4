"""The task families that ship, by name."""

from __future__ import annotations

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.families import Family
from llmzero_ray.tasks.families.chain_sum import ChainSum
from llmzero_ray.tasks.families.echo import Echo
from llmzero_ray.tasks.families.register import Register

FAMILIES: tuple[Family, ...] = (ChainSum(), Register(), Echo())


def family_named(name: str) -> Family:
    """The family of that name.

    Raises:
        TaskError: there is none.
    """
    for family in FAMILIES:
        if family.name == name:
            return family
    known = ", ".join(family.name for family in FAMILIES)
    raise TaskError(
        f"task family {name!r} is unknown; shipped families: {known}. For data of your own write a "
        "manifest.json"
    )
