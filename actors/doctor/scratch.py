"""A doctor's own directory while it works: beside the search, and gone afterwards.

Not here: what is written there (files.py, step.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from pathlib import Path
from typing import IO

from llmzero_ray.config import SearchConfig
from llmzero_ray.durable import storage_error
from llmzero_ray.errors import StorageError

from .rows import bounded

_REMOVE_S = 60.0


def scratch_of(config: SearchConfig) -> Path:
    """Where it is: under a name that no search can have."""
    return Path(config.storage) / f".doctor-{config.name}"


class Scratch:
    """A doctor's directory, for one doctor of a search at a time."""

    def __init__(self, config: SearchConfig) -> None:
        self._path = scratch_of(config)
        self._lock: IO[bytes] | None = None

    def take(self) -> None:
        """Make it, empty.

        Raises:
            StorageError: it cannot be made, or another doctor of the search is at work.
        """
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            lock = open(self._path / "lock", "ab")  # noqa: SIM115
        except OSError as error:
            raise storage_error(self._path, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise StorageError(
                f"{self._path}: another doctor of this search is at work; wait for it, or end it."
            ) from None
        except OSError:
            pass  # a file system without locks
        self._lock = lock
        for left in self._path.iterdir():  # by a doctor that was killed
            if left.name != "lock":
                shutil.rmtree(left) if left.is_dir() else left.unlink()

    def remove(self) -> None:
        """Remove it with everything in it; repeatable. A storage that hangs is left alone."""
        if self._lock is None:
            return
        with contextlib.suppress(TimeoutError):
            bounded(lambda: shutil.rmtree(self._path, ignore_errors=True), _REMOVE_S)
        self._lock.close()
        self._lock = None
