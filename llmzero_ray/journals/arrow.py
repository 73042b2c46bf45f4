"""A journal's objects on a filesystem of pyarrow: S3, GCS, Azure, HDFS, or one of the caller's own.

Not here: which filesystem an address means (opening.py).
"""

from __future__ import annotations

import posixpath
from typing import Any

from llmzero_ray.durable import storage_error
from llmzero_ray.errors import StorageError
from llmzero_ray.journals.stores import unreadable


class ArrowStore:
    """Objects below `prefix` (bucket/folder) of a `pyarrow.fs.FileSystem`.

    An object is as durable as the filesystem makes one that was closed; in S3, GCS and Azure that is durable
    and in one step. pyarrow has no exclusive creation, so `create` looks first, and two processes may both
    create a name: writers keep apart by their claims. A local directory belongs in a `LocalStore`, which
    syncs.
    """

    exclusive = False
    n_parallel = 16

    def __init__(self, filesystem: Any, prefix: str, *, address: str | None = None) -> None:
        self._filesystem = filesystem
        self._prefix = prefix.rstrip("/")
        self._address = address or f"{filesystem.type_name}:{self._prefix}"

    def __str__(self) -> str:
        return self._address

    def names(self, folder: str = "") -> list[str]:
        """Names in a folder; none when it does not exist."""
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(self._path(folder), allow_not_found=True)
        try:
            found = self._filesystem.get_file_info(selector)
        except arrow_errors() as error:
            raise unreadable(self._place(folder), error) from error
        return [info.base_name for info in found if info.type == FileType.File]

    def read(self, name: str) -> bytes:
        """What is in an object."""
        try:
            with self._filesystem.open_input_stream(self._path(name)) as stream:
                content: bytes = stream.read()
        except FileNotFoundError as error:
            raise FileNotFoundError(2, "No such object", self._place(name)) from error
        except arrow_errors() as error:
            raise unreadable(self._place(name), error) from error
        return content

    def exists(self, name: str) -> bool:
        """Whether there is an object of this name."""
        from pyarrow.fs import FileType

        try:
            (info,) = self._filesystem.get_file_info([self._path(name)])
        except arrow_errors() as error:
            raise unreadable(self._place(name), error) from error
        return bool(info.type == FileType.File)

    def create(self, name: str, content: bytes) -> None:
        """Make an object that was not there a moment ago."""
        if self.exists(name):
            raise FileExistsError(17, "Object exists", self._place(name))
        path = self._path(name)
        try:
            try:
                self._write(path, content)
            except FileNotFoundError:  # filesystems with directories want them made
                self._filesystem.create_dir(posixpath.dirname(path), recursive=True)
                self._write(path, content)
        except arrow_errors() as error:
            raise self._unwritable(name, error) from error

    def remove(self, name: str) -> None:
        """Delete an object, if it is there."""
        try:
            self._filesystem.delete_file(self._path(name))
        except FileNotFoundError:
            pass
        except arrow_errors() as error:
            raise self._unwritable(name, error) from error

    def _write(self, path: str, content: bytes) -> None:
        with self._filesystem.open_output_stream(path) as stream:
            stream.write(content)

    def _path(self, name: str) -> str:
        return f"{self._prefix}/{name}" if name else self._prefix

    def _place(self, name: str) -> str:
        return f"{self._address}/{name}" if name else self._address

    def _unwritable(self, name: str, error: Exception) -> StorageError:
        line = " ".join(str(error).split())
        plain = error if isinstance(error, OSError) and error.strerror else OSError(line)
        return storage_error(self._place(name), plain)


def arrow_errors() -> tuple[type[Exception], ...]:
    """What filesystems of pyarrow raise."""
    from pyarrow import ArrowException

    return OSError, ArrowException
