"""Atomic writes of files and directories that survive a power cut, SHA-256 digests, and file locks.

Not here: the files of a search (storage/search_storage.py, journal/).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from llmzero_ray.errors import StorageError
from llmzero_ray.utils.failpoints import reach

_NO_LINKS = (errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


MOST_TEXT = 128 * 2**20
"""Maximum bytes of a model's JSON file. The largest are tokenizers, of about 35 MB."""


def small_text(path: Path) -> str:
    """Text of a file of at most `MOST_TEXT` bytes.

    Raises:
        OSError: it cannot be read, or is larger.
        UnicodeDecodeError: it is not UTF-8.
    """
    with path.open("rb") as file:
        content = file.read(MOST_TEXT + 1)
    if len(content) > MOST_TEXT:
        raise OSError(errno.EFBIG, f"is larger than {MOST_TEXT >> 20} MiB", str(path))
    return content.decode()


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically: readers see either the old or the new content, and the new one survives a
    crash.

    Raises:
        StorageError: it could not be written; nothing has changed.
    """
    temporary = _temporary(path)
    try:
        _make_directory(path.parent)
        _write(temporary, content, "wb")
        reach("file.written")
        os.replace(temporary, path)
        _sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise storage_error(path, error) from error


def create_file(path: Path, content: str | bytes) -> None:
    """Write a file that must not exist yet, atomically. If two processes try, one succeeds.

    On a file system without hard links, a crash may leave a partial file.

    Raises:
        FileExistsError: there is already a file of this name; it was not changed.
        StorageError: it could not be written; nothing has changed.
    """
    temporary = _temporary(path)
    try:
        _make_directory(path.parent)
        _write(temporary, content, "wb")
        try:
            os.link(temporary, path)
        except FileExistsError:
            # A network file system may have repeated a successful request whose reply was lost.
            if temporary.stat().st_nlink != 2:
                raise
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _create_in_place(path, content)
        _sync_directory(path.parent)
    except FileExistsError:
        raise
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


@contextlib.contextmanager
def replace_directory(path: Path) -> Iterator[Path]:
    """Context with a new directory to fill, which replaces `path` at the end of the block.

    After an error in the block, or in the replacement, `path` is unchanged, or its content is kept under its
    hidden name if it cannot be renamed back. The new directory's content is on disk before it gets its name.
    A killed process leaves a hidden directory whose name ends in `.tmp`.

    Raises:
        OSError: it cannot be made, written or renamed.
    """
    new, old = _temporary(path), _temporary(path)
    try:
        _make_directory(path.parent)
        new.mkdir()
        yield new
        sync_tree(new)
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, old)
        try:
            os.rename(new, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.rename(old, path)
            raise
        _sync_directory(path.parent)
    finally:
        for left in (new, old) if os.path.lexists(path) else (new,):
            if left.is_symlink():  # `path` was a link
                left.unlink()
            shutil.rmtree(left, ignore_errors=True)


def sync_tree(directory: Path) -> None:
    """Sync a directory to disk with everything in it.

    Raises:
        OSError: a file cannot be read or written.
    """
    for path in [*directory.rglob("*"), directory]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def file_digest(path: Path | str) -> str:
    """SHA-256 of a file's content, hexadecimal.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text_digest(text: str | bytes) -> str:
    """SHA-256 of a text as UTF-8 (unpaired surrogates included), or of bytes, hexadecimal."""
    return hashlib.sha256(
        text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    ).hexdigest()


class FileLock:
    """File lock that one process of a machine holds at a time. It is released when its holder ends, even if
    that is killed.

    The file stays when the lock is released, and may contain text. On a file system without locks, every
    `acquire` succeeds without excluding other processes.
    """

    def __init__(self, path: Path) -> None:
        # The import takes 0.1 s, which is saved for commands that only read.
        import filelock

        self._path = path
        self._lock = filelock.FileLock(path, thread_local=False, fallback_to_soft=False)

    @property
    def is_enforced(self) -> bool:
        """Whether this process holds the lock and others are kept out."""
        return self._lock.is_locked

    def acquire(self, *, timeout_s: float | None = 0.0) -> bool:
        """Take the lock, waiting up to `timeout_s` seconds (forever if None). Returns False if another
        process holds it.

        Raises:
            OSError: the file cannot be created or opened.
        """
        import filelock

        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.open("ab").close()
        try:
            self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s)
        except filelock.Timeout:
            return False
        except OSError:
            pass  # a file system without locks
        return True

    def release(self) -> None:
        """Release the lock. Idempotent."""
        self._lock.release(force=True)


def is_locked(path: Path) -> bool:
    """Whether a process of this machine holds the `FileLock` of this file. True if unknown.

    Raises:
        FileNotFoundError: there is no such file.
    """
    # Try a shared lock, which filelock does not offer: probes do not block each other, and a reader may take
    # it.
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        fcntl.flock(file, fcntl.LOCK_UN)
    return False


@contextlib.contextmanager
def storage_errors(path: Path | str, *, setting: str = "storage") -> Iterator[None]:
    """Context that turns an `OSError` into the `storage_error` of `path`, which `setting` names."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise storage_error(path, error, setting=setting) from error


def storage_error(path: Path | str, error: OSError, *, setting: str = "storage") -> StorageError:
    """Error for a failure at `path`, with the remedy."""
    what = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"{path}: cannot be written, the storage is full ({what}). Free space, then run the same command "
            "again."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StorageError(
            f"{path}: cannot be written ({what}). Make it writable, or set `{setting}` to another directory."
        )
    return StorageError(f"{path}: cannot be written ({what}). Set `{setting}` to another directory.")


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def _write(path: Path, content: str | bytes, mode: str) -> None:
    with open(path, mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def _create_in_place(path: Path, content: str | bytes) -> None:
    """`create_file` for a file system without hard links. A crash can leave a partial file."""
    try:
        _write(path, content, "xb")
    except FileExistsError:
        raise
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _make_directory(directory: Path) -> None:
    """Create a directory and its parents, so that they survive a crash."""
    if directory.is_dir():
        return
    if directory.parent != directory:
        _make_directory(directory.parent)
    with contextlib.suppress(FileExistsError):
        directory.mkdir()
        _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    """Make the names in a directory survive a crash. Errors of file systems that cannot do this are
    ignored."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
