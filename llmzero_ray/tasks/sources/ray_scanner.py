"""`RayScanner`: both passes over a data set as Ray Data jobs; the workers of a cluster read shares of files.

The rows are read and turned into keys by the same functions as in one process, so that the same rows are
chosen. Ray Data's own readers are not used, for the reasons in readers.py. Every node must see the files
under their paths. Not here: those functions (scan.py, selection.py), starting or joining a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict
from typing import Any

import numpy as np

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.directory import Progress
from llmzero_ray.tasks.sources.base import DatasetAdapter, TaskExample
from llmzero_ray.tasks.sources.readers import SourceFile
from llmzero_ray.tasks.sources.scan import Place, ScanResult, ScanStatistics, examples_at, scan_file
from llmzero_ray.tasks.sources.selection import ROW_KEYS


class RayScanner:
    """Needs a Ray session; `parts` is the number of shares that each file is cut into."""

    def __init__(self, parts: int = 4) -> None:
        if parts < 1:
            raise TaskError(f"parts is {parts}; a file is cut into at least one share")
        self._parts = parts

    def scan(self, adapter: DatasetAdapter, files: Sequence[SourceFile], progress: Progress) -> ScanResult:
        """Look at every row of every file; each share becomes one row of keys in binary form."""
        progress(f"reading {len(files)} files in {len(files) * self._parts} shares", 0.0)
        n_parts, held = self._parts, list(files)

        def look(batch: dict[str, Any]) -> Any:
            import pyarrow as pa

            number, part = int(batch["file"][0]), int(batch["part"][0])
            keys, statistics = scan_file(adapter, held[number], number, (part, n_parts))
            # An Arrow column: NumPy's byte strings would lose the zeros at their end.
            binary = pa.array([keys.tobytes()], pa.large_binary())
            return pa.table({"file": [number], "keys": binary, "statistics": [statistics.to_json()]})

        shares = [{"file": number, "part": part} for number in range(len(held)) for part in range(n_parts)]
        found = [
            (
                int(row["file"]),
                np.frombuffer(row["keys"], dtype=ROW_KEYS),
                ScanStatistics.from_json(row["statistics"]),
            )
            for row in _mapped(shares, look)
        ]
        return ScanResult.joined(sorted(found, key=lambda part: part[0]))

    def fetch(
        self, adapter: DatasetAdapter, files: Sequence[SourceFile], wanted: Mapping[int, Set[int]]
    ) -> dict[Place, TaskExample]:
        """The examples of some rows, by number of the file."""
        held = list(files)

        def fetch(batch: dict[str, Any]) -> dict[str, Any]:
            number, rows = int(batch["file"][0]), frozenset(json.loads(batch["rows"][0]))
            examples = [[row, asdict(example)] for row, example in examples_at(adapter, held[number], rows)]
            return {"file": [number], "items": [json.dumps(examples)]}

        tasks = [
            {"file": number, "rows": json.dumps([int(row) for row in share])}
            for number, rows in wanted.items()
            for share in np.array_split(sorted(rows), self._parts)
            if len(share)
        ]
        return {
            (int(row["file"]), number): TaskExample(**example)
            for row in _mapped(tasks, fetch)
            for number, example in json.loads(row["items"])
        }


def _mapped(rows: list[dict[str, Any]], work: Any) -> list[dict[str, Any]]:
    """Each row by itself through `work`, somewhere in the cluster."""
    import ray

    if not ray.is_initialized():
        raise TaskError("preparing on a cluster needs a Ray session; call ray.init first, or prepare locally")
    data = ray.data.from_items(rows, override_num_blocks=len(rows))
    mapped: list[dict[str, Any]] = data.map_batches(work, batch_size=1).take_all()
    return mapped
