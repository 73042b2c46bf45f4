"""The rewards that ship, by data_source and by kind."""

from __future__ import annotations

from collections.abc import Iterable

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.chem_subtasks import PREFIX, missing_requirements
from llmzero_ray.prepared.shipped_rewards import PACKAGE

KINDS = {
    "exact_match": f"{PACKAGE}.exact_match",
    "mcq": f"{PACKAGE}.mcq",
    "math": f"{PACKAGE}.math_answer",
    "regex": f"{PACKAGE}.regex_match",
}
"""Generic kind -> module."""
GOLD_FORMS = {
    "exact_match": "<answer>{answer}</answer>",
    "mcq": "\\boxed{{answer}}",
    "math": "\\boxed{{answer}}",
}
"""Generic kind -> form of a right response. The form of a user's pattern is unknown."""
_EXACT = {
    "papersearchqa": f"{PACKAGE}.papersearchqa",
    "chain_sum": f"{PACKAGE}.marked_answer",
    "register": f"{PACKAGE}.marked_answer",
    "echo": f"{PACKAGE}.marked_answer",
}
_BY_PREFIX = {
    PREFIX: f"{PACKAGE}.chemcot",
    "ssmr_": f"{PACKAGE}.ssmr",
    "wildsci_": f"{PACKAGE}.wildsci",
}


def reward_module(data_source: str) -> str:
    """Module whose `compute_score` scores rows of this data_source.

    Raises:
        TaskError: no shipped reward does.
    """
    if data_source in _EXACT:
        return _EXACT[data_source]
    for prefix, module in _BY_PREFIX.items():
        if data_source.startswith(prefix):
            return module
    known = ", ".join([*_EXACT, *(f"{prefix}*" for prefix in _BY_PREFIX)])
    raise TaskError(
        f"data_source {data_source[:80]!r} has no shipped reward; known: {known}. Name a reward: one of the "
        f"kinds {', '.join(KINDS)}, or a file of your own"
    )


def unmet(data_sources: Iterable[str]) -> list[str]:
    """Obstacles to scoring these data_sources with shipped rewards on this machine. Empty if there are
    none."""
    return missing_requirements(name for name in data_sources if name.startswith(PREFIX))
