"""Cut a family's problems into training, validation and test sets, and into demonstrations: no prompt twice.

Everything is a function of (family, sizes, seed): the same bytes every time. Each set has its own range of
generator seeds, at least 10^7 apart, because many generators seed item i with seed + i: nearby seeds give
overlapping sets.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.families import Family, Problem

SPLITS = ("train", "val", "test")
CONFIRM: Final = "confirm"
"""Fresh validation items, drawn after all other splits so that those stay as they are."""
MAX_PROBLEMS = 1_000_000
"""Maximum problems of one set, far below the distance between two sets' generator seeds."""
MAX_SEED = 1_000_000
_FIRST_SEED = {
    "train": 10_000_000,
    "val": 200_000_000,
    "test": 400_000_000,
    "demonstrations": 600_000_000,
    CONFIRM: 800_000_000,
}
_SEED_STRIDE = 1_000_000_000
_TRIES_PER_PROBLEM = 8


class ProblemStream(Protocol):
    """A source of problems by seed, such as a family."""

    @property
    def name(self) -> str:
        """Name that messages use."""
        ...

    def problems(self, seed: int) -> Iterator[Problem]:
        """Problems number seed, seed + 1, ...; may repeat a prompt, and may end."""
        ...


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Problems by split, and (prompt, response) pairs to imitate."""

    problems: dict[str, tuple[Problem, ...]]
    demonstrations: tuple[tuple[str, str], ...]


@lru_cache(maxsize=8)  # a row's prompt is needed for its key and for its digest
def canonical_prompt(text: str) -> str:
    """The prompt with single spaces. Two prompts with the same form are the same question."""
    return " ".join(text.split())


def make_splits(family: Family, sizes: dict[str, int], seed: int, seen: set[str] | None = None) -> Splits:
    """Problems for train, val and test (`sizes` per split) and the family's demonstrations; `seen` gets all
    their prompts.

    Raises:
        TaskError: the family has too few different prompts for these sizes, or a library it needs is missing.
    """
    seen = set() if seen is None else seen
    problems = {
        # The test set first: it keeps its problems when the training set grows.
        split: tuple(distinct_problems(family, split, sizes[split], seed, seen))
        for split in reversed(SPLITS)
    }
    rng = random.Random(seed + _FIRST_SEED["demonstrations"])
    pool = distinct_problems(family, "demonstrations", family.warm_start.n_demonstrations, seed, seen)
    demonstrations = tuple((problem.prompt, family.demonstration(problem, rng)) for problem in pool)
    return Splits(problems=problems, demonstrations=demonstrations)


def fresh_problems(family: Family, sizes: dict[str, int], seed: int, n: int) -> tuple[Problem, ...]:
    """`n` problems whose prompts are in no split of `make_splits` and in no demonstration.

    Raises:
        TaskError: the family has too few different prompts, or a library it needs is missing.
    """
    seen: set[str] = set()
    make_splits(family, sizes, seed, seen)
    return tuple(distinct_problems(family, CONFIRM, n, seed, seen))


def distinct_problems(
    family: ProblemStream, purpose: str, n: int, seed: int, seen: set[str]
) -> Iterator[Problem]:
    """`n` problems whose prompts are not in `seen`; adds them to it.

    `purpose` is a split, or "demonstrations": each has its own range of generator seeds.

    Raises:
        TaskError: there are too few different prompts.
    """
    stream = family.problems(_FIRST_SEED[purpose] + seed * _SEED_STRIDE)
    found = 0
    for _, problem in zip(range(n * _TRIES_PER_PROBLEM), stream, strict=False):
        if (prompt := canonical_prompt(problem.prompt)) not in seen:
            seen.add(prompt)
            found += 1
            yield problem
        if found == n:
            return
    raise TaskError(
        f"task family {family.name} has too few different prompts: {found} of {n} found for {purpose} "
        f"({len(seen)} over all sets); ask for smaller sets"
    )


def majority_share(problems: tuple[Problem, ...]) -> float:
    """Accuracy of always giving the most frequent answer, the baseline for a score."""
    answers = [problem.answer for problem in problems]
    return max(answers.count(answer) for answer in set(answers)) / len(answers)
