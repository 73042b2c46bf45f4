"""The two passes over a data set: look at every row, then fetch the chosen ones. On this machine.

Not here: choosing (selection.py), the same passes on a cluster (on_ray.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from llmzero_ray.tasks.making import Progress
from llmzero_ray.tasks.sources.base import Adapter, Item
from llmzero_ray.tasks.sources.facts import Tally, examine, items_at
from llmzero_ray.tasks.sources.reading import SourceFile
from llmzero_ray.tasks.sources.selection import FACTS, Facts

Place: TypeAlias = tuple[int, int]
"""Number of the file, and of the row in it."""


@dataclass
class Examined:
    """All rows of a data set."""

    facts: Facts
    tally: Tally = field(default_factory=Tally)
    rows: dict[int, int] = field(default_factory=dict)
    """Rows by number of the file."""

    @classmethod
    def joined(cls, parts: Sequence[tuple[int, Facts, Tally]]) -> Examined:
        """Parts of files (number, facts, tally) put together."""
        whole = cls(facts=np.concatenate([np.empty(0, dtype=FACTS), *(facts for _, facts, _ in parts)]))
        for number, _, tally in parts:
            whole.tally.add(tally)
            whole.rows[number] = whole.rows.get(number, 0) + tally.rows
        return whole


class Passes(Protocol):
    """Where the work is done."""

    def examine(self, adapter: Adapter, files: Sequence[SourceFile], progress: Progress) -> Examined:
        """Look at every row of every file."""
        ...

    def collect(
        self, adapter: Adapter, files: Sequence[SourceFile], wanted: Mapping[int, Set[int]]
    ) -> dict[Place, Item]:
        """The items of some rows, by number of the file.

        Raises:
            TaskError: a file was changed since it was examined.
        """
        ...


class LocalPasses:
    """One process, one file after the other."""

    def examine(self, adapter: Adapter, files: Sequence[SourceFile], progress: Progress) -> Examined:
        """Look at every row of every file."""
        parts = []
        for number, file in enumerate(files):
            progress(f"reading: {file.name}", number / len(files))
            parts.append((number, *examine(adapter, file, number)))
        return Examined.joined(parts)

    def collect(
        self, adapter: Adapter, files: Sequence[SourceFile], wanted: Mapping[int, Set[int]]
    ) -> dict[Place, Item]:
        """The items of some rows, by number of the file."""
        return {
            (number, row): item
            for number, rows in wanted.items()
            for row, item in items_at(adapter, files[number], rows)
        }
