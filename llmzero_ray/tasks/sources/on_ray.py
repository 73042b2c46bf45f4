"""The two passes over a data set as Ray Data jobs: shares of files are read by the workers of a cluster.

The rows are read, turned into facts and chosen by the same functions as on one machine, so that the same rows
are chosen. Every node must see the files under their paths. Not here: those functions (facts.py,
selection.py), starting or joining a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict
from typing import Any

import numpy as np

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.making import Progress
from llmzero_ray.tasks.sources.base import Adapter, Item
from llmzero_ray.tasks.sources.facts import Tally, examine, items_at
from llmzero_ray.tasks.sources.passes import Examined, Place
from llmzero_ray.tasks.sources.reading import SourceFile
from llmzero_ray.tasks.sources.selection import FACTS


class RayPasses:
    """Needs a Ray session; `parts` is the number of shares that each file is cut into."""

    def __init__(self, parts: int = 4) -> None:
        if parts < 1:
            raise TaskError(f"parts is {parts}; a file is cut into at least one share")
        self._parts = parts

    def examine(self, adapter: Adapter, files: Sequence[SourceFile], progress: Progress) -> Examined:
        """Look at every row of every file; each share becomes one row of facts in binary form."""
        progress(f"reading {len(files)} files in {len(files) * self._parts} shares", 0.0)
        n_parts, held = self._parts, list(files)

        def look(batch: dict[str, Any]) -> Any:
            import pyarrow as pa

            number, part = int(batch["file"][0]), int(batch["part"][0])
            facts, tally = examine(adapter, held[number], number, (part, n_parts))
            # An Arrow column: NumPy's byte strings would lose the zeros at their end.
            binary = pa.array([facts.tobytes()], pa.large_binary())
            return pa.table({"file": [number], "facts": binary, "tally": [tally.to_json()]})

        shares = [{"file": number, "part": part} for number in range(len(held)) for part in range(n_parts)]
        found = [
            (int(row["file"]), np.frombuffer(row["facts"], dtype=FACTS), Tally.from_json(row["tally"]))
            for row in _mapped(shares, look)
        ]
        return Examined.joined(sorted(found, key=lambda part: part[0]))

    def collect(
        self, adapter: Adapter, files: Sequence[SourceFile], wanted: Mapping[int, Set[int]]
    ) -> dict[Place, Item]:
        """The items of some rows, by number of the file."""
        held = list(files)

        def fetch(batch: dict[str, Any]) -> dict[str, Any]:
            number, rows = int(batch["file"][0]), frozenset(json.loads(batch["rows"][0]))
            items = [[row, asdict(item)] for row, item in items_at(adapter, held[number], rows)]
            return {"file": [number], "items": [json.dumps(items)]}

        asked = [
            {"file": number, "rows": json.dumps([int(row) for row in share])}
            for number, rows in wanted.items()
            for share in np.array_split(sorted(rows), self._parts)
            if len(share)
        ]
        return {
            (int(row["file"]), number): Item(**item)
            for row in _mapped(asked, fetch)
            for number, item in json.loads(row["items"])
        }


def _mapped(rows: list[dict[str, Any]], work: Any) -> list[dict[str, Any]]:
    """Each row by itself through `work`, somewhere in the cluster."""
    import ray

    if not ray.is_initialized():
        raise TaskError("preparing on a cluster needs a Ray session; call ray.init first, or prepare locally")
    data = ray.data.from_items(rows, override_num_blocks=len(rows))
    mapped: list[dict[str, Any]] = data.map_batches(work, batch_size=1).take_all()
    return mapped
