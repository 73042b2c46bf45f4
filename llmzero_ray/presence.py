"""Who is at work on a search, and messages to them, all through its directory: works without Ray and across
heads.

One coordinator at a time holds `lock` (the operating system frees it when the process dies), touches
`heartbeat`, and looks for requests in `requests/`. Not here: what is done about a request (actors/).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias, get_args

from llmzero_ray.durable import replace_file, storage_error
from llmzero_ray.errors import StorageError

HEARTBEAT_S = 5.0
"""Seconds between two signs of life."""
STALE_S = 60.0
"""A heartbeat older than this, seen from another machine, means that the coordinator is gone."""

RequestKind: TypeAlias = Literal["stop", "pause", "hint", "veto", "clone", "set"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What somebody asked the coordinator for, through the search's directory."""

    id: str
    kind: RequestKind
    reason: str
    asked: Mapping[str, Any]
    """Everything the request holds."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The coordinator process of a search."""

    host: str
    pid: int
    private_head: bool
    """Whether it lives on a head that was started for this search alone, out of reach of other commands."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class SearchLock:
    """Held by the coordinator for as long as it lives, so that no second one writes to the same journal."""

    def __init__(self, root: Path) -> None:
        self._path = root / "lock"
        self._file: IO[str] | None = None

    def acquire(self, *, private_head: bool) -> None:
        """Take the lock.

        Raises:
            StorageError: another process has it, or the directory cannot be written.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = open(self._path, "a+", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise storage_error(self._path, error) from error
        try:
            _lock(file)
        except BlockingIOError:
            file.close()
            raise StorageError(
                f"{self._path.parent}: {owner(self._path.parent) or 'another process'} is at work on this "
                "search. "
                "Follow it with `llmzero status`, end it with `llmzero stop`."
            ) from None
        except OSError:
            pass  # a file system without locks: the journal's epochs still fence off a second writer
        body = {"host": socket.gethostname(), "pid": os.getpid(), "private_head": private_head}
        file.seek(0)
        file.truncate()
        file.write(json.dumps(body))
        file.flush()
        self._file = file

    def release(self) -> None:
        """Give the lock back; repeatable."""
        if self._file is not None:
            self._file.close()
            self._file = None


def owner(root: Path) -> Owner | None:
    """The live coordinator of a search; None when there is none.

    On its own machine the lock tells; from another one the age of the heartbeat does.
    """
    path = root / "lock"
    try:
        with open(path, encoding="utf-8") as file:
            body = json.loads(file.read())
            found = Owner(**{key: body[key] for key in ("host", "pid", "private_head")})
            if found.host == socket.gethostname():
                return found if _is_locked(file) else None
    except (OSError, ValueError, KeyError):
        return None
    beat = last_heartbeat(root)
    return found if beat is not None and time.time() - beat < STALE_S else None


def beat(root: Path) -> None:
    """Leave a sign of life; a storage that cannot take one is noticed elsewhere."""
    with contextlib.suppress(OSError):
        (root / "heartbeat").touch()


def last_heartbeat(root: Path) -> float | None:
    """Unix seconds of the last sign of life; None when there was none."""
    try:
        return (root / "heartbeat").stat().st_mtime
    except OSError:
        return None


def request(root: Path, kind: RequestKind, reason: str = "", **asked: Any) -> str:
    """Ask the coordinator for something; it looks every half second. The id of the request.

    Raises:
        StorageError: the directory cannot be written.
    """
    name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
    body = {"id": name, "kind": kind, "reason": reason, "time": time.time(), **asked}
    replace_file(root / "requests" / f"{name}.json", json.dumps(body))
    return name


def waiting_requests(root: Path) -> tuple[Request, ...]:
    """Requests that wait, the oldest first; each stays until `done_with` it. Other files are removed."""
    found: list[Request] = []
    for path in sorted((root / "requests").glob("*.json")):
        try:
            body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if body["kind"] not in get_args(RequestKind):
                raise ValueError(f"kind {body['kind']!r} is unknown")
            found.append(Request(id=path.stem, kind=body["kind"], reason=str(body["reason"]), asked=body))
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("%s is no request and was removed: %s", path, error)
            path.unlink(missing_ok=True)
        except OSError:
            continue
    return tuple(found)


def done_with(root: Path, request_id: str) -> None:
    """Remove a request: what came of it is in the journal."""
    (root / "requests" / f"{request_id}.json").unlink(missing_ok=True)


def drop_ends(root: Path) -> None:
    """Remove requests to stop or to pause that were meant for a coordinator that is gone; the others stay."""
    for waiting in waiting_requests(root):
        if waiting.kind in ("stop", "pause"):
            done_with(root, waiting.id)


def _lock(file: IO[str]) -> None:
    """Take the lock, trying a second long: whoever asks `owner` holds it for a moment."""
    for _ in range(20):
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.05)
    return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return True  # no locks here: believe what the file says
    fcntl.flock(file, fcntl.LOCK_UN)
    return False
