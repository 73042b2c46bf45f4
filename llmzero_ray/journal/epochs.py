"""Fencing of writers by epochs: each writer claims an epoch before it reads the journal.

A claim of a higher epoch ends all lower ones. A writer looks for such a claim after it writes an event and
before it acts on it; a new writer reads the journal after its claim. So either the new writer has read the
event, or the old one has seen the claim and does not act: no event that was acted on is ever replaced. Two
writers that claim the same epoch create the same name, and the store refuses the second. This requires a
store that lists every object whose creation has returned.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import uuid
from dataclasses import dataclass

from llmzero_ray.errors import JournalError, StorageError
from llmzero_ray.journal.base import JournalStore

_FOLDER = "epochs"
_CLAIM = re.compile(r"(\d{3,})\.json")


@dataclass(frozen=True, kw_only=True)
class Writer:
    """A process that writes to a journal."""

    id: str
    host: str
    pid: int

    @classmethod
    def here(cls) -> Writer:
        """Writer for this process, with a new id."""
        return cls(id=uuid.uuid4().hex[:12], host=socket.gethostname(), pid=os.getpid())

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claimed epoch."""

    epoch: int
    name: str


def read_claims(store: JournalStore) -> list[Claim]:
    """All claims of a journal, by epoch.

    Raises:
        StorageError: they cannot be listed.
    """
    found = []
    for name in store.names(_FOLDER):
        if match := _CLAIM.fullmatch(name):
            found.append(Claim(epoch=int(match[1]), name=f"{_FOLDER}/{name}"))
    return sorted(found, key=lambda claim: (claim.epoch, claim.name))


def take_epoch(store: JournalStore, epoch: int, writer: Writer) -> Claim:
    """Claim `epoch` for a writer, exclusively.

    Raises:
        JournalError: another writer has claimed it or a higher one.
        StorageError: the claim cannot be written.
    """
    claim = Claim(epoch=epoch, name=f"{_FOLDER}/{epoch:03d}.json")
    try:
        store.create(claim.name, (json.dumps({"epoch": epoch, **vars(writer)}) + "\n").encode())
    except FileExistsError:
        if _maker(store, claim) != writer:
            raise _taken(store, claim) from None
    return claim


def withdraw(store: JournalStore, claim: Claim) -> None:
    """Withdraw a claim under which nothing was written. If that fails, only an epoch number is wasted."""
    with contextlib.suppress(StorageError):
        store.remove(claim.name)


def _taken(store: JournalStore, claim: Claim) -> JournalError:
    other = _maker(store, claim)
    who = "another coordinator" if other is None else f"another coordinator ({other})"
    return JournalError(
        f"{store}: {who} took over this search at the same moment (epoch {claim.epoch}); this one must end. "
        "Follow the search with `llmzero status`."
    )


def _maker(store: JournalStore, claim: Claim) -> Writer | None:
    try:
        body = json.loads(store.read(claim.name))
        return Writer(id=str(body["id"]), host=str(body["host"]), pid=int(body["pid"]))
    except (FileNotFoundError, StorageError, ValueError, KeyError, TypeError):
        return None
