"""Records of a search under Tune: a file of JSON lines in the experiment's directory.

Ray saves the state of an experiment periodically. This file contains what happens between two saves, so a
driver may be killed at any time. A line is written before the search acts on it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmzero_ray.errors import StorageError
from llmzero_ray.utils.files import storage_error

_FLUSHED_ONLY = ("result", "checkpoint")
"""Kinds of records that survive the death of the process, but perhaps not of the machine: they are frequent,
and syncing each would be slow."""


class RecordLog:
    """The file of one search, open for appending."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.records, n_bytes = _read(path)  # those that were there when it was opened
            self._file = open(path, "ab")  # noqa: SIM115 - open as long as the search is
            # A record that was cut off by a death is none; the next one begins on a line of its own.
            self._file.truncate(n_bytes)
        except OSError as error:
            raise storage_error(path, error) from error

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record.

        Raises:
            StorageError: the disk is full or gone.
        """
        try:
            self._file.write(json.dumps(record).encode() + b"\n")
            self._file.flush()
            if record["kind"] not in _FLUSHED_ONLY:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise storage_error(self.path, error) from error


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """(records, bytes of the file that they fill)."""
    records: list[dict[str, Any]] = []
    n_bytes = 0
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        try:
            if not line.endswith(b"\n"):
                break
            records.append(json.loads(line))
        except ValueError as error:
            raise StorageError(
                f"{path}: line {len(records) + 1} is damaged; restore the file from a backup, or start the "
                "experiment under another name."
            ) from error
        n_bytes += len(line)
    return records, n_bytes
