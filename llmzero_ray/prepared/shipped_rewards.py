"""The rewards that ship, by data_source and by kind."""

from __future__ import annotations

from collections.abc import Iterable

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.chem_subtasks import PREFIX, missing_requirements

_PACKAGE = "llmzero_ray.tasks.rewards"
KINDS = {
    "exact_match": f"{_PACKAGE}.exact_match",
    "mcq": f"{_PACKAGE}.mcq",
    "math": f"{_PACKAGE}.math_answer",
    "regex": f"{_PACKAGE}.regex_match",
}
"""Generic kind -> module."""
GOLD_FORMS = {
    "exact_match": "<answer>{answer}</answer>",
    "mcq": "\\boxed{{answer}}",
    "math": "\\boxed{{answer}}",
}
"""Generic kind -> form of a right response; unknown for a pattern of the user's."""
_EXACT = {
    "papersearchqa": f"{_PACKAGE}.papersearchqa",
    "chain_sum": f"{_PACKAGE}.marked_answer",
    "register": f"{_PACKAGE}.marked_answer",
    "echo": f"{_PACKAGE}.marked_answer",
}
READ_WORDINGS = (KINDS["exact_match"], KINDS["math"], KINDS["regex"], _EXACT["papersearchqa"])
"""Modules that read a ground truth as `gold_answers.accepted_answers` does; the others read text alone."""
_BY_PREFIX = {
    PREFIX: f"{_PACKAGE}.chemcot",
    "ssmr_": f"{_PACKAGE}.ssmr",
    "wildsci_": f"{_PACKAGE}.wildsci",
}


def is_shipped(module: str) -> bool:
    """Whether a module is one of this package's rewards: each bounds its own work and raises nothing."""
    return module.startswith(f"{_PACKAGE}.")


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
    """What keeps shipped rewards from scoring these data_sources here; empty when nothing does."""
    return missing_requirements(name for name in data_sources if name.startswith(PREFIX))
