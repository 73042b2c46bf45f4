"""Detect the live coordinator of a search, and send it requests, through files in the search's directory.
This works without Ray and across Ray heads.

One coordinator at a time holds `lock` (the operating system releases it when the process dies), touches
`heartbeat`, and polls `requests/`. Until it exists, the command that starts the search keeps `starting`.
Not here: processing of requests (actors/control_requests.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from llmzero_ray.errors import SearchBusyError
from llmzero_ray.utils.files import FileLock, is_locked, replace_file, storage_error
from llmzero_ray.utils.text import one_line, short_duration

HEARTBEAT_S = 5.0
"""Seconds between two heartbeats."""
STALE_S = 60.0
"""Age in seconds of a heartbeat from which other machines consider the coordinator dead."""

RequestKind: TypeAlias = Literal["stop", "pause", "hint", "veto", "clone", "set", "approve"]
LockRole: TypeAlias = Literal["coordinator", "command"]
"""Holder of a search's lock: its coordinator for as long as it lives, or a command while it prepares the
directory for a coordinator."""

_FILE_BYTES = 512
"""Length to which the lock, heartbeat and start files are padded, so that one write replaces their text."""
_MAX_REQUEST = 1024**2
"""Maximum bytes of a request's file. Hints and changes take a few hundred."""
_LOCK_WAIT_S = 1.0
_LOOK_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to the coordinator, written into the search's directory."""

    id: str
    kind: RequestKind | Literal["unreadable"]
    reason: str
    fields: Mapping[str, Any]
    """All fields of the request."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The coordinator process of a search."""

    host: str
    pid: int
    private_head: bool
    """Whether it runs on a Ray head of its own, which other commands cannot reach."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class SearchLock:
    """Lock that the coordinator holds for its lifetime, so that no other one writes to the same journal."""

    def __init__(self, root: Path) -> None:
        self._path = root / "lock"
        self._lock = FileLock(self._path)

    def acquire(
        self, *, private_head: bool, role: LockRole = "coordinator", wait_s: float = _LOCK_WAIT_S
    ) -> None:
        """Take the lock, waiting up to `wait_s` seconds for another holder to release it.

        A coordinator waits for a command that prepares the directory, and for a killed predecessor whose
        process is not gone yet. A command waits only for other commands: if a coordinator is running, the
        command can follow it. On a file system without locks, the journal's epochs still exclude a second
        writer.

        Raises:
            SearchBusyError: another process holds it.
            StorageError: the directory cannot be written.
        """
        deadline = time.monotonic() + wait_s
        try:
            # Processes that call `owner` also hold the lock briefly.
            while not self._lock.acquire(timeout_s=_LOOK_S):
                someone = owner(self._path.parent)
                if time.monotonic() >= deadline or (role == "command" and someone is not None):
                    raise SearchBusyError(
                        f"{self._path.parent}: {someone or 'another process'} is working on this search. "
                        "Follow it with `llmzero status`, end it with `llmzero stop`."
                    )
            body = {"host": socket.gethostname(), "pid": os.getpid(), "private_head": private_head}
            _overwrite(self._path, json.dumps({**body, "role": role}))
        except SearchBusyError:
            raise
        except OSError as error:
            self._lock.release()
            raise storage_error(self._path, error) from error

    def release(self) -> None:
        """Release the lock. Idempotent."""
        self._lock.release()


def _overwrite(path: Path, text: str) -> None:
    """Replace a file's text in one write, so that readers never see part of it."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(file, text.ljust(_FILE_BYTES).encode(), 0)
    finally:
        os.close(file)


_UNREADABLE = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)
"""Errors that reading a small, untrusted JSON file may raise."""


def owner(root: Path) -> Owner | None:
    """Live coordinator of a search. None if there is none, even if a command holds the lock.

    On the coordinator's machine the lock decides, on others the age of the heartbeat.
    """
    path = root / "lock"
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        host, private = one_line(str(body["host"]), 100), bool(body["private_head"])
        found = Owner(host=host, pid=int(body["pid"]), private_head=private)
        if body.get("role") == "command":
            return None
        if found.host == socket.gethostname():
            return found if is_locked(path) else None
    except _UNREADABLE:
        return None
    beat = last_heartbeat(root)
    return found if beat is not None and time.time() - beat < STALE_S else None


def beat(root: Path) -> None:
    """Write the heartbeat. Storage errors are ignored, because other writes report them."""
    with contextlib.suppress(OSError):
        _overwrite(root / "heartbeat", f"{time.time():.3f}")


def last_heartbeat(root: Path) -> float | None:
    """Unix seconds of the last heartbeat, even in a copy of the directory. None if there was none."""
    path = root / "heartbeat"
    try:
        return float(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, kw_only=True)
class PendingStart:
    """A command that is starting a search which has no coordinator yet."""

    host: str
    pid: int
    doing: str
    """Last progress message of the command."""
    time: float
    """Unix seconds of that message."""
    alive: bool | None
    """Whether the process still lives, or None if it is on another machine."""

    def __str__(self) -> str:
        age = short_duration(max(0.0, time.time() - self.time))
        word = f"last word {age} ago: {self.doing}"
        if self.alive is False:
            return f"its start was interrupted; {word}. Run the same command again"
        does = "prepares" if self.alive else "began to prepare"
        return f"process {self.pid} on {self.host} {does} its start; {word}"


@contextlib.contextmanager
def being_started(root: Path, say: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Context in which other processes see that the search is being started. It yields a replacement for
    `say` that also shows them each line. A killed process leaves the file unlocked.

    Best effort: if the directory cannot be written, or another command starts the same search, only `say` is
    called.
    """
    path = root / "starting"
    there = [each for each in (root, *root.parents) if not each.exists()]
    lock = FileLock(path)

    def tell(line: str) -> None:
        body = {"host": socket.gethostname(), "pid": os.getpid(), "doing": one_line(line, 100)}
        with contextlib.suppress(OSError):
            _overwrite(path, json.dumps({**body, "time": time.time()}, ensure_ascii=False))
        say(line)

    mine = False
    with contextlib.suppress(OSError):
        mine = lock.acquire()
    try:
        yield tell if mine else say
    finally:
        if mine:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            lock.release()
            for each in there:
                with contextlib.suppress(OSError):  # something was written into it meanwhile
                    each.rmdir()


def start_of(root: Path) -> PendingStart | None:
    """Command that is starting a search, or whose start was interrupted. None if there is none."""
    path = root / "starting"
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        return PendingStart(
            host=one_line(str(body["host"]), 100),
            pid=int(body["pid"]),
            doing=one_line(str(body["doing"]), 100),
            time=float(body["time"]),
            alive=is_locked(path) if body["host"] == socket.gethostname() else None,
        )
    except _UNREADABLE:
        return None


def request(root: Path, kind: RequestKind, reason: str = "", **fields: Any) -> str:
    """Write a request to the coordinator, which polls every half second. Returns the request's id.

    Raises:
        StorageError: the directory cannot be written.
    """
    name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
    body = {"id": name, "kind": kind, "reason": reason, "time": time.time(), **fields}
    replace_file(root / "requests" / f"{name}.json", json.dumps(body))
    return name


def waiting_requests(root: Path) -> tuple[Request, ...]:
    """Pending requests, oldest first. Each stays until `done_with` removes it.

    An invalid file becomes a request of kind `unreadable` with the reason. Directories are skipped.
    """
    found: list[Request] = []
    for path in sorted((root / "requests").glob("*.json")):
        try:
            about = path.lstat()
            if stat.S_ISDIR(about.st_mode):
                continue
            if not stat.S_ISREG(about.st_mode):  # reading a pipe or a device may never end
                raise ValueError("it is not a regular file")
            if about.st_size > _MAX_REQUEST:
                raise ValueError(f"it is longer than {_MAX_REQUEST} bytes")
            body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if body["kind"] not in get_args(RequestKind):
                raise ValueError(f"kind {body['kind']!r} is unknown")
            found.append(Request(id=path.stem, kind=body["kind"], reason=str(body["reason"]), fields=body))
        except OSError:
            continue  # it is being written or removed
        except Exception as error:  # noqa: BLE001 - any process may have written any file here
            problem = f"{type(error).__name__}: {error}"
            found.append(Request(id=path.stem, kind="unreadable", reason=problem, fields={}))
    return tuple(found)


def is_extension_requested(root: Path) -> bool:
    """Whether a `set` request is pending. A finished search continues if its settings extend the search."""
    return any(waiting.kind == "set" for waiting in waiting_requests(root))


def done_with(root: Path, request_id: str) -> None:
    """Remove a request whose result is in the journal.

    Raises:
        OSError: the file cannot be removed, for example from a directory of another user.
    """
    (root / "requests" / f"{request_id}.json").unlink(missing_ok=True)


def drop_ends(root: Path) -> None:
    """Remove `stop` and `pause` requests that a dead coordinator did not process. Other requests stay, and so
    do files that cannot be removed."""
    for waiting in waiting_requests(root):
        if waiting.kind in ("stop", "pause"):
            with contextlib.suppress(OSError):
                done_with(root, waiting.id)
