"""Journal store in S3, GCS or Azure, through the library obstore.

Creation is conditional (`put(mode="create")`): if two writers create the same name, the store refuses one.
Not here: the store that an address means (opening.py).
"""

from __future__ import annotations

import re
from typing import Any

from llmzero_ray.errors import StorageError
from llmzero_ray.journal.base import unreadable
from llmzero_ray.utils.files import storage_error
from llmzero_ray.utils.text import collapse_whitespace


class ObjectStore:
    """Journal store on an obstore store (`obstore.store.S3Store`, ...), which has its bucket and prefix.

    An object is durable and complete once its creation has returned, as S3, GCS and Azure guarantee. For a
    local directory use `LocalStore`, which syncs to disk.
    """

    n_parallel = 16

    def __init__(self, store: Any, *, address: str) -> None:
        self._store = store
        self._address = address

    def __str__(self) -> str:
        return self._address

    def names(self, folder: str = "") -> list[str]:
        """Names in a folder. Empty if it does not exist."""
        import obstore

        try:
            found = obstore.list_with_delimiter(self._store, prefix=folder or None)
        except store_errors() as error:
            raise unreadable(self._place(folder), brief(error)) from error
        return [entry["path"].rpartition("/")[2] for entry in found["objects"]]

    def read(self, name: str) -> bytes:
        """Content of an object."""
        import obstore

        try:
            return bytes(obstore.get(self._store, name).bytes())
        except FileNotFoundError as error:
            raise FileNotFoundError(2, "No such object", self._place(name)) from error
        except store_errors() as error:
            raise unreadable(self._place(name), brief(error)) from error

    def exists(self, name: str) -> bool:
        """Whether an object of this name exists."""
        import obstore

        try:
            obstore.head(self._store, name)
        except FileNotFoundError:
            return False
        except store_errors() as error:
            raise unreadable(self._place(name), brief(error)) from error
        return True

    def create(self, name: str, content: bytes) -> None:
        """Create an object in one request, which the store rejects if the name is taken."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            obstore.put(self._store, name, content, mode="create")
        except AlreadyExistsError as error:
            raise FileExistsError(17, "Object exists", self._place(name)) from error
        except store_errors() as error:
            raise self._unwritable(name, error) from error

    def remove(self, name: str) -> None:
        """Delete an object if it exists."""
        import obstore

        try:
            obstore.delete(self._store, name)
        except FileNotFoundError:
            pass
        except store_errors() as error:
            raise self._unwritable(name, error) from error

    def _place(self, name: str) -> str:
        return f"{self._address}/{name}" if name else self._address

    def _unwritable(self, name: str, error: Exception) -> StorageError:
        return storage_error(self._place(name), brief(error))


def store_errors() -> tuple[type[Exception], ...]:
    """Exceptions that obstore raises."""
    from obstore.exceptions import BaseError

    return BaseError, OSError


def brief(error: BaseException) -> OSError:
    """An obstore error on one line, without the library's dump of its own objects. An error number of the
    operating system, such as that of a full disk, is kept."""
    text = str(error).partition("Debug source:")[0]
    number = re.search(r"\(os error (\d+)\)", str(error))
    line = collapse_whitespace(text)
    return OSError(int(number[1]), line) if number else OSError(line)
