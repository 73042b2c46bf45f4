"""Protocol of a journal's store: named objects, each created once."""

from __future__ import annotations

from typing import Protocol

from llmzero_ray.errors import StorageError
from llmzero_ray.utils.text import collapse_whitespace


class JournalStore(Protocol):
    """Store of named byte objects. A name may contain one folder: `epochs/002.json`. `str()` of the store is
    its address.

    A listing must include every object whose creation has returned, as on POSIX file systems, S3, GCS and
    Azure.
    """

    @property
    def n_parallel(self) -> int:
        """Number of parallel reads."""
        ...

    def names(self, folder: str = "") -> list[str]:
        """Names in a folder, without its prefix and in any order. Empty if it does not exist.

        Raises:
            StorageError: it cannot be listed.
        """
        ...

    def read(self, name: str) -> bytes:
        """Content of an object.

        Raises:
            FileNotFoundError: no object has this name.
            StorageError: it cannot be read.
        """
        ...

    def exists(self, name: str) -> bool:
        """Whether an object of this name exists.

        Raises:
            StorageError: the store cannot be reached.
        """
        ...

    def create(self, name: str, content: bytes) -> None:
        """Create an object. It is durable once this returns. If two processes create the same name, only one
        succeeds.

        Raises:
            FileExistsError: the name exists; its object was not changed.
            StorageError: it cannot be written.
        """
        ...

    def remove(self, name: str) -> None:
        """Delete an object if it exists.

        Raises:
            StorageError: it cannot be deleted.
        """
        ...


def unreadable(where: str, error: Exception) -> StorageError:
    """Error for an object that exists but cannot be read, with the remedy."""
    what = getattr(error, "strerror", None) or collapse_whitespace(str(error))
    return StorageError(
        f"{where}: cannot be read ({what}). Make it readable, then run the same command again."
    )
