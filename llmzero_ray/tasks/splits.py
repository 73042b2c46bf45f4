"""Cut a family's problems into training, validation and test sets, and into demonstrations: no prompt twice.

Everything is a function of (family, sizes, seed): the same bytes every time. Each set has its own range of
generator seeds, at least 10^7 apart, because many generators seed item i with seed + i: nearby seeds give
overlapping sets.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.families import Family, Problem

SPLITS = ("train", "val", "test")
MAX_PROBLEMS = 1_000_000
"""Of one set: far below the distance of two sets' generator seeds."""
MAX_SEED = 1_000_000
_FIRST_SEED = {"train": 10_000_000, "val": 200_000_000, "test": 400_000_000, "demonstrations": 600_000_000}
_SEED_STRIDE = 1_000_000_000
_TRIES_PER_PROBLEM = 8


class ProblemStream(Protocol):
    """Endless problems by seed, such as a family's."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    def problems(self, seed: int) -> Iterator[Problem]:
        """Problems number seed, seed + 1, ...; may repeat a prompt, and may end."""
        ...


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Problems by split, and (prompt, response) pairs to imitate."""

    problems: dict[str, tuple[Problem, ...]]
    demonstrations: tuple[tuple[str, str], ...]


def canonical_prompt(text: str) -> str:
    """What two prompts share when they are the same question: the words, however they are spaced."""
    return " ".join(text.split())


def make_splits(family: Family, sizes: dict[str, int], seed: int) -> Splits:
    """Problems for train, val and test (`sizes` per split) and the family's demonstrations.

    Raises:
        TaskError: the family has too few different prompts for these sizes, or a library it needs is missing.
    """
    seen: set[str] = set()
    problems = {
        # The test set first: it keeps its problems when the training set grows.
        split: tuple(distinct_problems(family, split, sizes[split], seed, seen))
        for split in reversed(SPLITS)
    }
    rng = random.Random(seed + _FIRST_SEED["demonstrations"])
    pool = distinct_problems(family, "demonstrations", family.warm_start.n_demonstrations, seed, seen)
    demonstrations = tuple((problem.prompt, family.demonstration(problem, rng)) for problem in pool)
    return Splits(problems=problems, demonstrations=demonstrations)


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
    """Accuracy of always giving the most frequent answer: what a score must beat to mean anything."""
    answers = [problem.answer for problem in problems]
    return max(answers.count(answer) for answer in set(answers)) / len(answers)


def to_rows(family: Family, split: str, problems: tuple[Problem, ...]) -> list[dict[str, Any]]:
    """Rows in VeRL's schema; `extra_info.index` counts inside the split."""
    return [
        {
            "data_source": family.name,
            "prompt": [{"role": "user", "content": problem.prompt}],
            "ability": family.name,
            "reward_model": {"style": "rule", "ground_truth": problem.answer},
            "extra_info": {"index": index, "split": split},
        }
        for index, problem in enumerate(problems)
    ]


def write_parquet(rows: list[dict[str, Any]], path: Path, extra: Mapping[str, str] | None = None) -> None:
    """Write rows under one explicit schema: VeRL concatenates files, which must agree in every type.

    `extra` gives the Arrow type by name of what `extra_info` holds beside index and split.

    Raises:
        OSError: the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    more = [(name, pa.type_for_alias(kind)) for name, kind in (extra or {}).items()]
    schema = pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
            ("extra_info", pa.struct([("index", pa.int64()), ("split", pa.string()), *more])),
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def read_problems(path: str | Path) -> list[Problem]:
    """The problems of a file that `write_parquet` wrote."""
    import pyarrow.parquet as pq

    rows = pq.ParquetFile(path).read(columns=["prompt", "reward_model"]).to_pylist()
    return [
        Problem(prompt=row["prompt"][-1]["content"], answer=row["reward_model"]["ground_truth"])
        for row in rows
    ]
