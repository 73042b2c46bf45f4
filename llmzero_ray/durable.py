"""Files that are either there, whole, or not there at all, even after a power cut.

Not here: which files a search has (storage.py, journal.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from pathlib import Path

from llmzero_ray.errors import StorageError


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file in one step: readers see the old content or the new one, and the new one survives a crash.

    Raises:
        StorageError: it could not be written; nothing has changed.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise storage_error(path, error) from error


def storage_error(path: Path, error: OSError) -> StorageError:
    """What happened at `path`, and what to do about it."""
    what = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"{path}: cannot be written, the storage is full ({what}). Free space, then run the same command "
            "again."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StorageError(
            f"{path}: cannot be written ({what}). Make it writable, or set `storage` to another directory."
        )
    return StorageError(
        f"{path}: cannot be written ({what}). Set `storage` to a directory that can hold the search."
    )


def _sync_directory(directory: Path) -> None:
    """Make the rename itself survive a crash; file systems that cannot do it say so with an error, which is
    harmless."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
