"""Where a journal's objects are kept: names with bytes below one place. The local directory is one.

Not here: filesystems of pyarrow (arrow.py), which store an address means (opening.py), what the objects are
(names.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from llmzero_ray.durable import create_file, storage_error
from llmzero_ray.errors import StorageError


class JournalStore(Protocol):
    """Names with bytes. A name may have one folder: `epochs/002.json`. `str()` of it is its address.

    Listing must show every object whose creation has returned (POSIX file systems, S3, GCS and Azure do).
    """

    @property
    def exclusive(self) -> bool:
        """Whether of two processes that create one name only one succeeds."""
        ...

    @property
    def n_parallel(self) -> int:
        """How many reads are worth asking for at once."""
        ...

    def names(self, folder: str = "") -> list[str]:
        """Names in a folder, without it, in no order; none when it does not exist.

        Raises:
            StorageError: it cannot be listed.
        """
        ...

    def read(self, name: str) -> bytes:
        """What is in an object.

        Raises:
            FileNotFoundError: there is none of this name.
            StorageError: it cannot be read.
        """
        ...

    def exists(self, name: str) -> bool:
        """Whether there is an object of this name.

        Raises:
            StorageError: that cannot be told.
        """
        ...

    def create(self, name: str, content: bytes) -> None:
        """Make an object that must not exist yet; it survives a crash once this returns.

        Raises:
            FileExistsError: there is one; it was not touched.
            StorageError: it cannot be written.
        """
        ...

    def remove(self, name: str) -> None:
        """Delete an object, if it is there.

        Raises:
            StorageError: it cannot be deleted.
        """
        ...


class LocalStore:
    """A directory of this machine, or one that is mounted; made when the first object is."""

    exclusive = True
    n_parallel = 1

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __str__(self) -> str:
        return str(self.directory)

    def names(self, folder: str = "") -> list[str]:
        """Names in a folder; none when it does not exist."""
        try:
            return os.listdir(self.directory / folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise unreadable(str(self.directory / folder), error) from error

    def read(self, name: str) -> bytes:
        """What is in a file."""
        try:
            with open(f"{self.directory}/{name}", "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unreadable(f"{self}/{name}", error) from error

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        try:
            os.stat(f"{self.directory}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise unreadable(f"{self}/{name}", error) from error
        return True

    def create(self, name: str, content: bytes) -> None:
        """Make a file in one step; both it and its name are on the disk when this returns."""
        create_file(self.directory / name, content)

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        try:
            os.unlink(self.directory / name)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise storage_error(self.directory / name, error) from error


def unreadable(where: str, error: Exception) -> StorageError:
    """A file or object that is there and cannot be read, and what to do about it."""
    what = getattr(error, "strerror", None) or " ".join(str(error).split())
    return StorageError(
        f"{where}: cannot be read ({what}). Make it readable, then run the same command again."
    )
