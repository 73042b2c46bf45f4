"""The doctor's own directory while it runs: next to the search's, removed afterwards."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import StorageError
from llmzero_ray.utils.files import FileLock, storage_errors
from llmzero_ray.utils.threads import in_thread

_REMOVE_S = 60.0


def scratch_of(config: SearchConfig) -> Path:
    """Path of the directory. No search can have its name."""
    return Path(config.storage) / f".doctor-{config.name}"


class Scratch:
    """The directory, held by one doctor of a search at a time."""

    def __init__(self, config: SearchConfig) -> None:
        self._path = scratch_of(config)
        self._lock: FileLock | None = None

    def take(self) -> None:
        """Create the empty directory.

        Raises:
            StorageError: it cannot be created, or another doctor of the search is running.
        """
        lock = FileLock(self._path / "lock")
        with storage_errors(self._path):
            taken = lock.acquire()
        if not taken:
            raise StorageError(
                f"{self._path}: another doctor of this search is running; wait for it, or end it."
            )
        self._lock = lock
        for left in self._path.iterdir():  # left by a doctor that was killed
            if left.name != "lock":
                shutil.rmtree(left) if left.is_dir() else left.unlink()

    def remove(self) -> None:
        """Remove the directory with its content. Idempotent. A hanging storage is left alone."""
        if self._lock is None:
            return
        with contextlib.suppress(TimeoutError):
            in_thread(lambda: shutil.rmtree(self._path, ignore_errors=True)).result(_REMOVE_S)
        self._lock.release()
        self._lock = None
