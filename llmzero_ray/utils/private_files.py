"""Files and directories of a running process that other users of the machine cannot access.

They are in the user's runtime directory (mode 0700), never in the storage of a search. They are removed by
`remove` or at the end of the owning process; after a kill, the next process that creates an entry of the same
kind removes them. The owner holds a lock for its lifetime, which shows that it is alive.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from llmzero_ray.errors import StorageError

MAX_SOCKET_PATH = 107
"""Maximum bytes of the path of a Unix socket on Linux."""

_LONGEST_DIRECTORY = 40
"""Maximum bytes of the runtime directory's path. The rest of `MAX_SOCKET_PATH` is for an entry and the names
of sockets in it (vLLM's have 36 bytes)."""


class PrivateEntry:
    """One file or directory, in use by this process until `remove`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        self._owner = os.getpid()
        atexit.register(self.remove)

    def remove(self) -> None:
        """Delete the entry. Idempotent, and without effect in a forked child."""
        if self._lock < 0 or os.getpid() != self._owner:
            return
        _delete(self.path)
        os.close(self._lock)
        self._lock = -1
        atexit.unregister(self.remove)


def private_file(kind: str, content: str, *, outside: Path | None = None) -> PrivateEntry:
    """Create a file of mode 0600 with `content`, outside the directory `outside`.

    Raises:
        StorageError: there is no directory for it that only this user can access.
    """
    with _runtime_dir(outside) as directory:
        path = _free_name(directory, kind)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.write(descriptor, content.encode())
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return PrivateEntry(path, descriptor)


def private_directory(kind: str) -> PrivateEntry:
    """Create a directory of mode 0700, with a path short enough for sockets in it.

    Raises:
        StorageError: there is no directory for it that only this user can access.
    """
    with _runtime_dir() as directory:
        path = _free_name(directory, kind)
        path.mkdir(mode=0o700)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return PrivateEntry(path, descriptor)


@contextlib.contextmanager
def _runtime_dir(outside: Path | None = None) -> Iterator[Path]:
    """Context with the user's runtime directory, locked against other processes that create or remove
    entries."""
    candidates = [Path(f"/tmp/llmzero-{os.getuid()}"), Path(f"/dev/shm/llmzero-{os.getuid()}")]
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    if session and len(os.fsencode(session)) <= _LONGEST_DIRECTORY and _is_own(Path(session)):
        candidates.insert(0, Path(session) / "llmzero")
    if outside is not None:
        within = outside.resolve()
        candidates = [path for path in candidates if within not in path.resolve().parents] or candidates[-1:]
    directory = candidates[0]
    try:
        with contextlib.suppress(FileExistsError):  # checked below
            directory.mkdir(mode=0o700)
    except OSError as error:
        raise StorageError(
            f"{directory}, for keys and sockets, cannot be made ({error.strerror}). Set XDG_RUNTIME_DIR to a "
            "short path of a directory that belongs to you and has mode 0700."
        ) from error
    if not _is_own(directory):
        raise StorageError(
            f"{directory} is not a directory that belongs to user {os.getuid()} with mode 0700; keys and "
            "sockets are kept in it. Remove it, or correct its owner and mode (chmod 700)."
        )
    descriptor = os.open(directory, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield directory
    finally:
        os.close(descriptor)


def _is_own(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _free_name(directory: Path, kind: str) -> Path:
    """A new name for an entry. Removes entries of the same kind whose owners have ended."""
    for path in directory.glob(f"{kind}-*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _delete(path)
            finally:
                os.close(descriptor)
    return directory / f"{kind}-{secrets.token_hex(6)}"


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
