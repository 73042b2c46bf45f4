"""What a journal needs of the place where its objects lie: names with bytes, created once.

Not here: the stores themselves (local.py, object_store.py), which store an address means (opening.py), what
the objects are (names.py).
"""

from __future__ import annotations

from typing import Protocol

from llmzero_ray.errors import StorageError


class JournalStore(Protocol):
    """Names with bytes. A name may have one folder: `epochs/002.json`. `str()` of it is its address.

    Listing must show every object whose creation has returned (POSIX file systems, S3, GCS and Azure do).
    """

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
        """Make an object that must not exist yet; it survives a crash once this returns. Of two processes
        that create one name only one succeeds.

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


def unreadable(where: str, error: Exception) -> StorageError:
    """A file or object that is there and cannot be read, and what to do about it."""
    what = getattr(error, "strerror", None) or " ".join(str(error).split())
    return StorageError(
        f"{where}: cannot be read ({what}). Make it readable, then run the same command again."
    )
