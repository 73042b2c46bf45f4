"""Seconds and peak memory of preparing a task from a large data set on this machine.

    python -m benchmarks.prepare_rate --rows 1000000

Writes made-up rows in WildSci's layout (about 1.3 kB each) to a temporary directory, prepares them in a fresh
process, and prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

_CHUNK = 20_000
_WORDS = 60
"""Words per question; an option has a fifth of them."""


def rows(n: int) -> Iterator[dict[str, Any]]:
    """Rows in WildSci's layout: five questions per paper, every tenth one voted down."""
    rng = Random(1)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 11))) for _ in range(4000)]
    for index in range(n):
        yield {
            "paper_id": f"paper-{index // 5}",
            "discipline": f"Discipline {index // 5 % 9}",
            "nc_domain": "domain",
            "nc_subdomain": "subdomain",
            "question": f"{index}: {' '.join(rng.choices(words, k=_WORDS))}?",
            "options": {
                letter: f"{letter} {' '.join(rng.choices(words, k=_WORDS // 5))}" for letter in "ABCDEFGHIJ"
            },
            "answer": "ABCDEFGHIJ"[index % 10],
            "rationale": "because",
            "voting_type": "not_aligned" if index % 10 == 0 else "all_aligned",
            "voting_answers": ["A"] * 8,
        }


def write(directory: Path, n: int) -> int:
    """Write one file of `n` rows. Returns its size in bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, stream = directory / "wildsci.parquet", rows(n)
    schema = pa.Table.from_pylist(list(rows(1))).schema
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, n, _CHUNK):
            chunk = [next(stream) for _ in range(min(_CHUNK, n - start))]
            writer.write_table(pa.Table.from_pylist(chunk, schema=schema))
    return path.stat().st_size


def measure(directory: str) -> None:
    """Prepare the data set in `directory`, and print the figures."""
    from llmzero_ray.tasks.sources.prepare import prepare_source
    from llmzero_ray.tasks.task_yaml import parse_task_file

    task = parse_task_file({"dataset": "wildsci", "files": directory, "dir": f"{directory}/task"})
    began = time.monotonic()
    summary = prepare_source(task)
    seconds = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu, peak = used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20
    print(
        json.dumps(
            {"rows": summary.rows_read, "wall_s": round(seconds, 1), "cpu_s": round(cpu, 1)}
            | {"peak_rss_gib": round(peak, 2), "train": summary.task.n_train}
        )
    )


def main() -> None:
    """Write, measure in a process of its own, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
        return
    with tempfile.TemporaryDirectory() as directory:
        size = write(Path(directory), arguments.rows)
        print(json.dumps({"gib": round(size / 2**30, 2)}), flush=True)
        command = [sys.executable, "-m", "benchmarks.prepare_rate", "--measure", directory]
        sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
