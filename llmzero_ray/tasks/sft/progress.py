"""Progress of a training: JSON lines in a file next to its checkpoints.

Metrics have the names that VeRL's SFT trainer gives them. After an interruption a step may occur twice; the
later line counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmzero_ray.utils.files import storage_errors

FILE = "metrics.jsonl"
LOSS, LR, GRAD_NORM, VAL_LOSS = "train/loss", "train/lr", "train/grad_norm", "val/loss"


class ProgressWriter:
    """Writer of progress lines, for one worker at a time.

    Raises:
        StorageError: the file cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        with storage_errors(directory / FILE):
            self._file = (directory / FILE).open("a", encoding="utf-8")
            # A writer that was killed may have left half a line.
            self._file.write("\n")

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line and flush it."""
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


class ProgressReader:
    """Reader of the lines written after it was created."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._place = self._path.stat().st_size if self._path.exists() else 0

    def read(self) -> Iterator[dict[str, Any]]:
        """New complete lines."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._place)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._place += len(whole)
        for line in filter(None, whole.split(b"\n")):
            try:
                yield json.loads(line)
            except ValueError:
                continue  # half a line of a writer that was killed
