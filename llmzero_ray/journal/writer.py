"""Writer of a search's journal: append-only, one durable object per event, the source of truth.

Each coordinator process writes under its own epoch, one above all earlier ones. Files of a lower epoch count
only up to the start of a higher one: later files of a superseded coordinator are ignored, and its next append
raises. A torn last file, left by a crash during its write, is reported and ignored. A gap, or a damaged file
before the last one, is lost history and raises an error. Every `segment_events` events, the oldest single
files become one segment, so that a long journal is quick to open and to list.

The journal only refers to metric series and checkpoints, which are files (storage/search_storage.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
import uuid

from llmzero_ray.errors import JournalError, LlmzeroError, StorageError
from llmzero_ray.journal.epochs import Claim, Writer, read_claims, take_epoch, withdraw
from llmzero_ray.journal.event_file import BodyError, decode, encode
from llmzero_ray.journal.names import EventName, SegmentName, read_names
from llmzero_ray.journal.reader import Entry, JournalReader, Where
from llmzero_ray.journal.segments import SEGMENT_EVENTS, remove_events, write_segment
from llmzero_ray.records import Event
from llmzero_ray.records.events import ENDS, INITIALIZATION, CoordinatorStarted, SearchStarted

logger = logging.getLogger(__name__)
_LOOSE = 64
"""Number of newest events that stay single files: followers read them, and every append checks the last."""


class Journal:
    """The one writer of a search's journal.

    The constructor reads all events (`history`) and claims a new epoch, which ends every other writer.
    `where` is a directory, an address that `open_store` knows, or a store. A journal that cannot be written
    still opens, but the first append raises.

    Raises:
        JournalError: the journal is damaged, or another process opens it at the same time.
        ConfigError: the address cannot be understood.
        StorageError: the store cannot be read.
    """

    def __init__(self, where: Where, *, segment_events: int = SEGMENT_EVENTS) -> None:
        reader = JournalReader(where)
        self.store = reader.store
        entries = reader.poll_entries()
        self._reader, self._writer = reader, Writer.here()
        self._claim: Claim | None = None
        claimed = max((claim.epoch for claim in read_claims(self.store)), default=0)
        listing = read_names(self.store.names())
        self.epoch = max(claimed, listing.epoch, reader.epoch) + 1
        """Epoch of this writer."""
        try:
            self._begin()
            entries += self._read_behind_the_claim()
        except StorageError as error:
            logger.warning("opened for reading only: %s", error)
        with contextlib.suppress(StorageError):
            # A crash between writing a segment and deleting its single files leaves these.
            remove_events(self.store, [e for e in listing.events if e.number <= reader.in_segments])
        self.history: tuple[Event, ...] = tuple(entry.event for entry in entries)
        """Events that existed when the journal was opened."""
        self.torn = reader.torn
        self._id = reader.journal_id or uuid.uuid4().hex[:12]
        self._number, self._last_name = reader.length, reader.last_name
        self._seen = {_delivery(event) for event in self.history}
        self._segment_events, self._in_segments = segment_events, reader.in_segments
        self._compact_at = reader.in_segments + segment_events + _LOOSE

    def append(self, event: Event, *, now: float | None = None) -> Event | None:
        """Make an event durable and return it as written, or None if the journal already has this delivery
        (source, attempt and sequence).

        `now` (Unix seconds, default: the current time) becomes its time. An event of the default source is
        always new: the journal numbers it.

        Raises:
            JournalError: another coordinator has taken over, or files have vanished.
            StorageError: the file could not be written.
        """
        if event.source == "coordinator":
            event = dataclasses.replace(event, attempt=self.epoch, sequence=self._number + 1)
        if _delivery(event) in self._seen:
            return None
        self._check_still_ours()
        event = dataclasses.replace(event, time=time.time() if now is None else now)
        name = EventName(self._number + 1, self.epoch)
        event = self._create(name, event)
        self._check_not_superseded()  # a new writer that missed this event is seen here
        self._number, self._last_name = name.number, str(name)
        self._seen.add(_delivery(event))
        if self._number >= self._compact_at:
            self._compact()
        return event

    # --- parts ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._claim = take_epoch(self.store, self.epoch, self._writer)

    def _read_behind_the_claim(self) -> tuple[Entry, ...]:
        """Events that other writers wrote before they could see the claim."""
        assert self._claim is not None
        try:
            return self._reader.poll_entries()
        except LlmzeroError:
            withdraw(self.store, self._claim)
            self._claim = None
            raise

    def _check_still_ours(self) -> None:
        if self._claim is None:  # it could not be written when the journal was opened
            self._begin()
            if self._read_behind_the_claim():
                raise JournalError(
                    f"{self.store}: another coordinator has continued this search since it was read; this "
                    "one must end. Run the same command again."
                )
        self._check_not_superseded()
        if self._last_name is not None and not self.store.exists(self._last_name):
            raise self._vanished(f"event {self._number}")

    def _check_not_superseded(self) -> None:
        claims = read_claims(self.store)
        newest = max((claim.epoch for claim in claims), default=0)
        if newest > self.epoch:
            raise JournalError(
                f"{self.store}: another coordinator (epoch {newest}) has taken over from this one (epoch "
                f"{self.epoch}); this one must end. Follow the search with `llmzero status`."
            )
        if self._claim not in claims:
            what = f"event {self._number}" if self._number else f"the claim of epoch {self.epoch}"
            raise self._vanished(what)

    def _vanished(self, what: str) -> JournalError:
        return JournalError(
            f"{self.store}: {what} has vanished; someone removes files of a running search. History is "
            "lost: restore it from a backup, or start a search of another name."
        )

    def _create(self, name: EventName, event: Event) -> Event:
        """Create the event in the store under `name`."""
        content = encode(event, name, journal=self._id, writer=self._writer.id)
        try:
            self.store.create(str(name), content)
        except FileExistsError:
            return self._standing(name, event, content)
        return event

    def _standing(self, name: EventName, event: Event, content: bytes) -> Event:
        """Event under `name`, if this writer wrote it, now or in an earlier try whose reply was lost."""
        try:
            found = self.store.read(str(name))
            if found == content:
                return event
            body = decode(found, name)
        except (BodyError, FileNotFoundError) as error:
            raise JournalError(
                f"{self.store}/{name}: {error}, just after it was written. Run the same command again."
            ) from error
        if body.writer != self._writer.id:
            raise JournalError(
                f"{self.store}/{name}: another coordinator writes in epoch {self.epoch} too; this one must "
                "end. Follow the search with `llmzero status`."
            )
        again = dataclasses.replace(body.event, time=event.time)
        if encode(again, name, journal=self._id, writer=self._writer.id) != content:
            raise JournalError(
                f"{self.store}/{name}: holds another event, from a try that had failed. Run the same command "
                "again."
            )
        return body.event

    def _compact(self) -> None:
        """Move the oldest single files into a segment. A failure is retried later and loses nothing."""
        first, last = self._in_segments + 1, self._in_segments + self._segment_events
        try:
            write_segment(self.store, SegmentName(first, last))
            self._in_segments = last
            self._compact_at = last + self._segment_events + _LOOSE
        except (LlmzeroError, FileNotFoundError) as error:
            self._compact_at = self._number + self._segment_events
            logger.warning("events %d to %d stay single files for now: %s", first, last, error)


class ActiveTime:
    """Seconds with a live coordinator.

    Each coordinator counts from its first event to its last heartbeat, or to its last event if that ended its
    work (in a copied directory, the heartbeat is as old as the copy). If the clock was set back between two
    events, the time between them is not counted.
    """

    def __init__(self) -> None:
        self._earlier_s = 0.0
        self._begun: float | None = None
        """Time of the newest coordinator's first event, or of the first since its clock was set back."""
        self._last = 0.0
        self._ended = False

    def take(self, event: Event) -> None:
        """Apply the next event of the journal. Events before the start of the search do not count."""
        if self._begun is None and isinstance(event, INITIALIZATION):
            return
        if self._begun is None:
            self._begun = self._last = event.time
        if isinstance(event, CoordinatorStarted):
            beaten = None if self._ended else event.previous_alive
            alive = min(beaten or self._last, event.time)
            self._earlier_s += max(self._last, alive) - self._begun
            self._begun, self._ended = event.time, False
        elif event.time < self._last:
            self._earlier_s += self._last - self._begun
            self._begun = event.time
        self._ended |= isinstance(event, ENDS)
        self._last = event.time

    def seconds(self, now: float | None = None) -> float:
        """Seconds so far. The newest coordinator counts up to `now`, or up to its last event if it is
        None."""
        if self._begun is None:
            return 0.0
        return self._earlier_s + max(0.0, (self._last if now is None else now) - self._begun)


def active_seconds(events: tuple[Event, ...], now: float | None = None) -> float:
    """Seconds with a live coordinator, from the events of a journal (`ActiveTime`)."""
    time_at_work = ActiveTime()
    for event in events:
        time_at_work.take(event)
    return time_at_work.seconds(now)


def _delivery(event: Event) -> tuple[str, int, int]:
    return event.source, event.attempt, event.sequence


def keep_initialization(where: Where) -> bool:
    """Remove the events from `SearchStarted` on, newest first, so that only the initialization is left.
    Returns False, without removing anything, if there was no initialization.

    A crash in between leaves a shorter, consistent journal.

    Raises:
        JournalError: the journal is damaged.
        StorageError: it cannot be read or changed.
    """
    reader = JournalReader(where)
    events = reader.poll()
    kept = next(
        (place for place, event in enumerate(events) if isinstance(event, SearchStarted)), len(events)
    )
    if kept:
        listing = read_names(reader.store.names())
        for name in reversed([event for event in listing.events if event.number > kept]):
            reader.store.remove(str(name))
    return kept > 0
