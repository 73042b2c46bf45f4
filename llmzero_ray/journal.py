"""The journal of a search: append-only, one durable file per event, the truth about what happened.

    journal/00000042.e002.json = {"format", "number", "epoch", "checksum", "event"}

Each coordinator process writes under an epoch of its own, one above all before it. Files of a lower epoch
count only up to the point where a higher one began: what a superseded coordinator still writes is ignored,
and it is told so at its next append. A torn last file (a crash during its write) is reported and ignored; a
gap or a damaged file further up means that history is lost, and is an error.

Not here: what events mean (coordinator/), or series and checkpoints (storage.py): the journal holds
references only.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmzero_ray.durable import replace_file
from llmzero_ray.errors import JournalError
from llmzero_ray.events import CoordinatorStarted
from llmzero_ray.records import Event, from_json, to_json

FORMAT = 1
"""Raised when an older version could misread what a newer one writes."""

logger = logging.getLogger(__name__)
_NAME = re.compile(r"^(\d{8,})\.e(\d{3,})\.json$")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One event of the journal and where it stands."""

    number: int
    """Position, from 1 without gaps."""
    epoch: int
    event: Event


class JournalReader:
    """Reads a journal that someone else may be writing; `poll` gives what is new since the last call."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._next = 1
        self._epoch = 0
        self.torn: str | None = None
        """Name of a last file that could not be read; None when there is none."""

    @property
    def epoch(self) -> int:
        """Highest epoch read so far; 0 for an empty journal."""
        return self._epoch

    @property
    def length(self) -> int:
        """Events read so far."""
        return self._next - 1

    def poll(self) -> tuple[Event, ...]:
        """Events that were added since the last call, oldest first.

        Raises:
            JournalError: an event is missing, damaged, or of a version that this one cannot read.
        """
        return tuple(entry.event for entry in self.poll_entries())

    def poll_entries(self) -> tuple[Entry, ...]:
        """Like `poll`, with number and epoch."""
        listed = _list(self.directory)
        if any(number < self._next and epoch > self._epoch for number, epoch, _ in listed):
            raise JournalError(
                f"{self.directory}: another coordinator has taken over and replaced events; read it anew."
            )
        files = _effective(listed, from_number=self._next, epoch=self._epoch)
        entries = []
        self.torn = None
        for number, epoch, path in files:
            if number != self._next:
                raise JournalError(
                    f"{self.directory}: event {self._next} is missing (found {path.name} after it). History "
                    "is lost: "
                    "restore the file from a backup, or start a search of another name."
                )
            event = self._read(path, number, epoch, is_last=number == files[-1][0])
            if event is None:
                break
            entries.append(Entry(number=number, epoch=epoch, event=event))
            self._next, self._epoch = number + 1, epoch
        return tuple(entries)

    def _read(self, path: Path, number: int, epoch: int, *, is_last: bool) -> Event | None:
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            problem = _problem(body, number, epoch)
        except (ValueError, OSError) as error:
            body, problem = {}, f"cannot be read ({error})"
        if problem is None:
            return _event(body, path)
        if not is_last:
            raise JournalError(
                f"{path}: {problem}, and later events exist. History is lost: restore the file from a "
                "backup, "
                "or start a search of another name."
            )
        self.torn = path.name
        logger.warning("%s: %s; ignored, as a crash while it was written leaves this", path, problem)
        return None


class Journal:
    """Appends events; the one writer of a search.

    Opening reads everything there is (`history`), and begins a new epoch with the first append.

    Raises:
        JournalError: the journal is damaged.
        StorageError: the directory cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        reader = JournalReader(directory)
        entries = reader.poll_entries()
        self.history: tuple[Event, ...] = tuple(entry.event for entry in entries)
        """Events that were there when the journal was opened."""
        self.torn = reader.torn
        self.epoch = max((epoch for _, epoch, _ in _list(directory)), default=0) + 1
        """This writer's epoch."""
        self._number = reader.length
        self._seen = {_delivery(event) for event in self.history}

    def append(self, event: Event, *, now: float | None = None) -> Event | None:
        """Make the event durable and give it back as written, or None: this delivery is in the journal
        already.

        `now` (unix seconds) is written as its time. An event without a source of its own is numbered by the
        journal.

        Raises:
            JournalError: another coordinator has taken over since, or files have vanished.
            StorageError: the file could not be written.
        """
        if event.source == "coordinator":
            event = dataclasses.replace(event, attempt=self.epoch, sequence=self._number + 1)
        if _delivery(event) in self._seen:
            return None
        self._check_still_ours()
        event = dataclasses.replace(event, time=time.time() if now is None else now)
        data = to_json(event)
        number = self._number + 1
        body = {
            "format": FORMAT,
            "number": number,
            "epoch": self.epoch,
            "checksum": _checksum(data),
            "event": data,
        }
        replace_file(
            self.directory / f"{number:08d}.e{self.epoch:03d}.json", json.dumps(body, indent=1) + "\n"
        )
        self._number = number
        self._seen.add(_delivery(event))
        return event

    def _check_still_ours(self) -> None:
        listed = _list(self.directory)
        newest = max((epoch for _, epoch, _ in listed), default=0)
        if newest > self.epoch:
            raise JournalError(
                f"{self.directory}: another coordinator (epoch {newest}) has taken over from this one (epoch "
                f"{self.epoch}); this one must end. Follow the search with `llmzero status`."
            )
        if self._number and all(number != self._number for number, _, _ in listed):
            raise JournalError(
                f"{self.directory}: event {self._number} has vanished; somebody removes files of a running "
                "search. History is lost: restore it from a backup, or start a search of another name."
            )


def read_all(directory: Path) -> tuple[Event, ...]:
    """All events of a journal, oldest first; none when it does not exist.

    Raises:
        JournalError: an event is missing, damaged, or of a version that this one cannot read.
    """
    return JournalReader(directory).poll()


def active_seconds(events: tuple[Event, ...], now: float | None = None) -> float:
    """Seconds in which a coordinator was at work: from each one's first to its last sign of life, the newest
    one up to `now`."""
    if not events:
        return 0.0
    total, begun, last = 0.0, events[0].time, events[0].time
    for event in events:
        if isinstance(event, CoordinatorStarted):
            total += max(last, min(event.previous_alive or last, event.time)) - begun
            begun = event.time
        last = event.time
    return total + max(0.0, (last if now is None else now) - begun)


def _delivery(event: Event) -> tuple[str, int, int]:
    return event.source, event.attempt, event.sequence


def _list(directory: Path) -> list[tuple[int, int, Path]]:
    """(number, epoch, file) of everything that looks like an event, in order."""
    if not directory.is_dir():
        return []
    found = []
    for path in directory.iterdir():
        match = _NAME.match(path.name)
        if match:
            found.append((int(match[1]), int(match[2]), path))
    return sorted(found)


def _effective(
    files: list[tuple[int, int, Path]], *, from_number: int, epoch: int
) -> list[tuple[int, int, Path]]:
    """Files from `from_number` on, without those of an epoch that a higher one had ended by then."""
    kept: dict[int, tuple[int, int, Path]] = {}
    highest = epoch
    # Of equal numbers the lower epoch comes first, so that the higher one replaces it.
    for number, file_epoch, path in sorted(files, key=lambda f: (f[0], f[1])):
        if number >= from_number and file_epoch >= highest:
            highest = file_epoch
            kept[number] = (number, file_epoch, path)
    return [kept[number] for number in sorted(kept)]


def _problem(body: Any, number: int, epoch: int) -> str | None:
    if not isinstance(body, dict) or not {"format", "number", "epoch", "checksum", "event"} <= set(body):
        return "is no event file"
    if body["format"] != FORMAT:
        return f"has format {body['format']!r} and this version reads {FORMAT}"
    if (body["number"], body["epoch"]) != (number, epoch):
        return "does not hold the event its name says"
    return None if body["checksum"] == _checksum(body["event"]) else "fails its checksum"


def _event(body: dict[str, Any], path: Path) -> Event:
    try:
        event = from_json(body["event"])
    except JournalError as error:
        raise JournalError(f"{path}: {error}") from error
    if not isinstance(event, Event):
        raise JournalError(f"{path}: holds a {type(event).__name__}, which is no event")
    return event


def _checksum(data: Any) -> str:
    return f"{zlib.crc32(json.dumps(data, sort_keys=True, separators=(',', ':')).encode()):08x}"
