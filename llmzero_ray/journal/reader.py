"""Read a journal, complete or still growing, and report damage with its exact position.

Recent events are in single files, older ones in segments. A writer may move events into a segment while the
journal is read.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import TypeAlias

from llmzero_ray.errors import JournalError
from llmzero_ray.journal.base import JournalStore
from llmzero_ray.journal.event_file import Body, BodyError, TornBodyError, decode
from llmzero_ray.journal.names import EventName, Listing, SegmentName, read_names
from llmzero_ray.journal.opening import open_store
from llmzero_ray.journal.segments import read_many, read_segment
from llmzero_ray.records import Event

logger = logging.getLogger(__name__)
Where: TypeAlias = str | PathLike[str] | JournalStore
_LOOKS = 5
"""Listings after which an absent name counts as missing. A listing is not a snapshot: events may move into a
segment while they are read."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One event of the journal with its position."""

    number: int
    """Position, from 1 without gaps."""
    epoch: int
    event: Event


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Place at which a journal cannot be read any further."""

    place: str
    """Address of the journal."""
    file: str | None
    """Name of the damaged object, or None if it is missing."""
    number: int
    """Number of the first unreadable event. All earlier ones are readable."""
    problem: str
    fix: str

    def __str__(self) -> str:
        where = self.place if self.file is None else f"{self.place}/{self.file}"
        kept = f" Events 1 to {self.number - 1} are whole." if self.number > 1 else ""
        return f"{where}: {self.problem}. {self.fix}{kept}"


class JournalReader:
    """Reader of a journal that another process may be writing. `poll` returns the events since the last call.

    `where` is a directory, an address that `open_store` knows, or a store.
    """

    def __init__(self, where: Where) -> None:
        self.store = open_store(where)
        self.torn: str | None = None
        """Name of an unreadable last file, or None."""
        self.journal_id: str | None = None
        """Id of the journal, or None until an event with an id was read."""
        self.in_segments = 0
        """Number of events, from the first on, that were read from intact segments."""
        self.last_name: str | None = None
        """Object that held the last event read."""
        self.replaced = False
        """Whether events that were read are gone, because the journal was deleted or replaced by another."""
        self._next = 1
        self._epoch = 0
        self._deliveries: dict[tuple[str, int, int], int] = {}
        self._reported: set[str] = set()

    @property
    def epoch(self) -> int:
        """Highest epoch read so far, or 0 for an empty journal."""
        return self._epoch

    @property
    def length(self) -> int:
        """Number of events read so far."""
        return self._next - 1

    def poll(self) -> tuple[Event, ...]:
        """Events that were added since the last call, oldest first.

        Raises:
            JournalError: an event is missing, damaged, or of a version that this one cannot read.
            StorageError: the store cannot be read.
        """
        return tuple(entry.event for entry in self.poll_entries())

    def poll_entries(self) -> tuple[Entry, ...]:
        """Like `poll`, with number and epoch."""
        entries, damage = self.poll_whole()
        if damage is not None:
            raise JournalError(str(damage))
        return entries

    def poll_whole(self) -> tuple[tuple[Entry, ...], Damage | None]:
        """(new events up to the first unreadable one, its damage or None if all were read).

        Raises:
            JournalError: events that were read before have been replaced.
            StorageError: the store cannot be read.
        """
        entries: list[Entry] = []
        damage: Damage | None = None
        for _ in range(_LOOKS):
            try:
                damage = self._read_on(entries)
            except FileNotFoundError as error:
                damage = self._missing(f"listed and then not there ({error.filename or error})")
                continue
            if damage is None or damage.file is not None:
                break
        return tuple(entries), damage

    # --- parts ----------------------------------------------------------------------------------------------

    def _read_on(self, entries: list[Entry]) -> Damage | None:
        listing = read_names(self.store.names())
        self._check_listing(listing)
        self.torn = None
        self.replaced = listing.last < self.length
        plan = list(self._plan(listing))
        with _collector_paused(any(isinstance(name, SegmentName) for name in plan)):
            return self._take_all(plan, listing, entries)

    def _take_all(
        self, plan: list[EventName | SegmentName], listing: Listing, entries: list[Entry]
    ) -> Damage | None:
        contents = read_many(self.store, [str(name) for name in plan])
        for name, content in zip(plan, contents, strict=True):
            if isinstance(name, SegmentName):
                damage = self._take_segment(name, content, listing, entries)
            elif name.epoch < self._epoch:
                continue  # superseded: a segment before it has events of a higher epoch
            elif name.number != self._next:
                damage = self._missing(f"found {name} after it")
            else:
                damage = self._take_file(name, content, entries, is_last=name is plan[-1])
            if damage is not None:
                return damage
        return None

    def _check_listing(self, listing: Listing) -> None:
        """Raise `JournalError` if a higher epoch has replaced events that were read."""
        late = [event for event in listing.events if event.number < self._next and event.epoch > self._epoch]
        if any(listing.segment_of(event.number) is None for event in late):
            raise JournalError(
                f"{self.store}: another coordinator has taken over and replaced events; read it again."
            )

    def _plan(self, listing: Listing) -> Iterator[EventName | SegmentName]:
        """Objects to read, in order: segments if they exist, otherwise single files."""
        number = self._next
        for event in listing.effective(from_number=number, epoch=self._epoch):
            while (segment := listing.segment_of(number)) is not None:
                yield segment
                number = segment.last + 1
            if event.number >= number:
                yield event
                number = event.number + 1
        while (segment := listing.segment_of(number)) is not None:
            yield segment
            number = segment.last + 1

    def _take_segment(
        self, segment: SegmentName, content: bytes, listing: Listing, entries: list[Entry]
    ) -> Damage | None:
        name = str(segment)
        try:
            for body in read_segment(content, segment, from_number=self._next):
                damage = self._take(name, body, entries)
                if damage is not None:
                    return damage
        except BodyError as error:
            return self._take_singles(segment, listing, entries, error)
        if self.in_segments + 1 == segment.first:
            self.in_segments = segment.last
        return None

    def _take_singles(
        self, segment: SegmentName, listing: Listing, entries: list[Entry], error: BodyError
    ) -> Damage | None:
        """Read the single files instead of a segment that was truncated while it was written."""
        self._warn(str(segment), f"{error}; its events are read from their single files")
        for event in listing.effective(from_number=self._next, epoch=self._epoch):
            if event.number != self._next or event.number > segment.last:
                break
            damage = self._take_file(event, self.store.read(str(event)), entries, is_last=False)
            if damage is not None:
                return damage
        if self._next > segment.last:
            return None
        problem = f"{error}, and event {self._next} is in no other file"
        return self._damaged(str(segment), problem, error.fix)

    def _take_file(
        self, name: EventName, content: bytes, entries: list[Entry], *, is_last: bool
    ) -> Damage | None:
        try:
            body = decode(content, name)
        except TornBodyError as error:
            if not is_last:
                return self._damaged(str(name), f"{error}, and later events exist")
            self.torn = str(name)
            self._warn(self.torn, f"{error}; ignored, as a crash while it was written leaves this")
            return None
        except BodyError as error:
            return self._damaged(str(name), str(error), error.fix)
        return self._take(str(name), body, entries)

    def _take(self, name: str, body: Body, entries: list[Entry]) -> Damage | None:
        number, event = body.name.number, body.event
        if self.journal_id not in (None, body.journal):
            return self._damaged(
                name,
                f"event {number} belongs to another journal (id {body.journal}; this one's is "
                f"{self.journal_id})",
            )
        self.journal_id = body.journal
        delivery = (event.source, event.attempt, event.sequence)
        known = self._deliveries.setdefault(delivery, number)
        if known != number:
            return self._damaged(
                name,
                f"event {number} repeats event {known} (delivery {event.sequence} of {event.source}, attempt "
                f"{event.attempt})",
            )
        entries.append(Entry(number=number, epoch=body.name.epoch, event=event))
        self._next, self._epoch, self.last_name = number + 1, body.name.epoch, name
        return None

    def _missing(self, what: str) -> Damage:
        return self._damaged(None, f"event {self._next} is missing ({what})")

    def _damaged(self, file: str | None, problem: str, fix: str = BodyError.fix) -> Damage:
        return Damage(place=str(self.store), file=file, number=self._next, problem=problem, fix=fix)

    def _warn(self, name: str, message: str) -> None:
        if name not in self._reported:
            self._reported.add(name)
            logger.warning("%s/%s: %s", self.store, name, message)


def read_all(where: Where) -> tuple[Event, ...]:
    """All events of a journal, oldest first. Empty if it does not exist.

    Raises:
        JournalError: an event is missing, damaged, or of a version that this one cannot read.
        StorageError: the store cannot be read.
    """
    return JournalReader(where).poll()


@contextmanager
def _collector_paused(is_long: bool) -> Iterator[None]:
    """Context without garbage collection if a long history is read. Records have no reference cycles, and
    looking for them takes a third of the time."""
    was_on = gc.isenabled()
    if is_long:
        gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
