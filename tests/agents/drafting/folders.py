"""Folders with data for the drafting agents' tests: made-up rows in every format."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Rows = list[dict[str, Any]]


def questions(n: int = 40, answer: Any = lambda i: f"City {i % 7}", **more: Any) -> Rows:
    """`n` rows with a question, an answer, and further columns, each a function of the number."""
    return [
        {
            "question": f"Which one is number {i}?",
            "answer": answer(i),
            **{name: value(i) for name, value in more.items()},
        }
        for i in range(n)
    ]


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """The rows in the format that the name tells."""
    path.parent.mkdir(parents=True, exist_ok=True)
    match path.suffix:
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(list(rows)), path)
        case ".csv" | ".tsv":
            with path.open("w", newline="", encoding="utf-8") as stream:
                writer = csv.DictWriter(stream, rows[0], delimiter="\t" if path.suffix == ".tsv" else ",")
                writer.writeheader()
                writer.writerows(rows)
        case ".json":
            path.write_text(json.dumps(list(rows), indent=1), encoding="utf-8")
        case _:
            path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return path
