"""Who may write in which epoch: each writer leaves a claim before it reads what it will build on.

A claim of a higher epoch ends all lower ones. A writer looks for one after each event and before it acts on
it; the newcomer reads the journal after its claim. So either the newcomer has read the event, or the old
writer has seen the claim and does not act: no event that was acted on is ever replaced.

Two writers may ask for one epoch at the same moment. Where creation is exclusive, one fails. Elsewhere each
leaves a claim under a name of its own and goes on only once it sees no other for the epoch: of two claims,
the one that was made later is seen by its maker beside the earlier one. All of this needs a store that lists
every object whose creation has returned; in one that lists with a delay two writers could go on for that
long, until the first of them reads back the other's event under its own name, or sees a higher epoch.

Not here: when to claim (llmzero_ray/journal.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
import uuid
from dataclasses import dataclass

from llmzero_ray.errors import JournalError, StorageError
from llmzero_ray.journals.stores import JournalStore

_FOLDER = "epochs"
_CLAIM = re.compile(r"(\d{3,})(?:\.([0-9a-f]+))?\.json")
_ROUNDS, _ROUND_S = 20, 0.25
"""How long a claim waits for another one to be withdrawn."""


@dataclass(frozen=True, kw_only=True)
class Writer:
    """A process that writes to a journal."""

    id: str
    host: str
    pid: int

    @classmethod
    def here(cls) -> Writer:
        """A new one, in this process."""
        return cls(id=uuid.uuid4().hex[:12], host=socket.gethostname(), pid=os.getpid())

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """An epoch that somebody writes in."""

    epoch: int
    writer: str | None
    """Id of the writer, where its name tells it."""
    name: str


def read_claims(store: JournalStore) -> list[Claim]:
    """All claims of a journal, by epoch.

    Raises:
        StorageError: they cannot be listed.
    """
    found = []
    for name in store.names(_FOLDER):
        if match := _CLAIM.fullmatch(name):
            found.append(Claim(epoch=int(match[1]), writer=match[2], name=f"{_FOLDER}/{name}"))
    return sorted(found, key=lambda claim: (claim.epoch, claim.writer or ""))


def take_epoch(store: JournalStore, epoch: int, writer: Writer) -> Claim:
    """The claim of `epoch`; its writer is the only one in it.

    Raises:
        JournalError: another writer asks for it, or has a higher one.
        StorageError: the claim cannot be written.
    """
    named = None if store.exclusive else writer.id
    name = f"{_FOLDER}/{epoch:03d}.json" if named is None else f"{_FOLDER}/{epoch:03d}.{named}.json"
    claim = Claim(epoch=epoch, writer=named, name=name)
    try:
        store.create(name, (json.dumps({"epoch": epoch, **vars(writer)}) + "\n").encode())
    except FileExistsError:
        if _maker(store, claim) != writer:
            raise _taken(store, claim) from None
    if not store.exclusive:
        _settle(store, claim, writer)
    return claim


def withdraw(store: JournalStore, claim: Claim) -> None:
    """Take a claim back that nothing was written under; one that stays costs an epoch number, no more."""
    with contextlib.suppress(StorageError):
        store.remove(claim.name)


def _settle(store: JournalStore, ours: Claim, writer: Writer) -> None:
    """Wait until no other claim of the epoch is seen, or give way to one."""
    for _ in range(_ROUNDS):
        seen = [claim for claim in read_claims(store) if claim.epoch >= ours.epoch]
        if ours not in seen:
            raise StorageError(
                f"{store}: {ours.name} was written and is not listed. A journal needs a store that lists "
                "every object at once; set `storage` to another place."
            )
        rivals = [claim for claim in seen if claim != ours]
        if not rivals:
            return
        # Of those that see each other the lowest id stays; it waits, in case the other went on before.
        if any(claim.epoch > ours.epoch or (claim.writer or "") < writer.id for claim in rivals):
            break
        time.sleep(_ROUND_S)
    withdraw(store, ours)
    raise _taken(store, rivals[0])


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
