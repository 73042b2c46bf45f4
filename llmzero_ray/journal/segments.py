"""Segments: old events of a journal in one object. After a header line, each line is an event as in its
single file.

A segment is durable before its single files are deleted, so a reader may find both. It is built from the
stored bytes of the files, so that two writers would build the same segment.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from llmzero_ray.errors import JournalError, StorageError
from llmzero_ray.journal.base import JournalStore
from llmzero_ray.journal.event_file import (
    Body,
    BodyError,
    OtherVersionError,
    TornBodyError,
    as_line,
    decode,
    unpack,
)
from llmzero_ray.journal.names import EventName, SegmentName, read_names

SEGMENT_EVENTS = 512
"""Events per segment. Every reader opens each segment and each single file, so this is a compromise between
the two."""
SEGMENT_FORMAT = 1


def read_many(store: JournalStore, names: Sequence[str]) -> Iterator[bytes]:
    """Contents of several objects in order, read ahead in parallel if the store supports it.

    Raises:
        FileNotFoundError: one does not exist, or no longer exists.
        StorageError: one cannot be read.
    """
    if store.n_parallel <= 1 or len(names) <= 1:
        yield from map(store.read, names)
        return
    pool = ThreadPoolExecutor(max_workers=store.n_parallel)
    try:
        yield from pool.map(store.read, names)
    finally:
        pool.shutdown(cancel_futures=True)


def write_segment(store: JournalStore, segment: SegmentName) -> None:
    """Write the events of `segment` into one object and delete their single files. Can be repeated after any
    crash.

    Raises:
        JournalError: an event is missing or damaged; nothing was deleted.
        StorageError: the segment cannot be written (nothing was deleted), or a file cannot be deleted.
    """
    listing = read_names(store.names())
    if segment not in listing.segments or not _is_whole(store, segment):
        held = listing.effective(from_number=segment.first, epoch=0)
        held = [event for event in held if event.number <= segment.last]
        if [event.number for event in held] != list(range(segment.first, segment.last + 1)):
            raise JournalError(f"{store}: events are missing between {segment.first} and {segment.last}.")
        content = _content(store, segment, held)
        if segment in listing.segments:  # torn: the store does not write atomically
            store.remove(str(segment))
        with contextlib.suppress(FileExistsError):
            store.create(str(segment), content)
        if store.read(str(segment)) != content:
            raise StorageError(f"{store}/{segment}: is not what was written; the single files were kept.")
    remove_events(store, [e for e in listing.events if segment.first <= e.number <= segment.last])


def remove_events(store: JournalStore, events: Sequence[EventName]) -> None:
    """Delete single files whose events are in a segment.

    Raises:
        StorageError: one cannot be deleted.
    """
    names = [str(event) for event in events]
    if store.n_parallel <= 1:
        for name in names:
            store.remove(name)
    else:
        with ThreadPoolExecutor(max_workers=store.n_parallel) as pool:
            list(pool.map(store.remove, names))


def read_segment(content: bytes, segment: SegmentName, *, from_number: int = 1) -> Iterator[Body]:
    """Events of a segment from `from_number` on.

    Raises:
        TornBodyError: the segment is truncated or was changed; the first damaged event is named.
        BodyError: an event cannot be read by this version.
    """
    header, _, rest = content.partition(b"\n")
    whole = _check_header(header, segment, rest)
    begin = max(from_number, segment.first)
    lines = rest.splitlines()[begin - segment.first :]
    # Parsing all lines in one call is faster. If one is damaged, parsing each on its own finds it.
    parsed = json.loads(b"[" + b",".join(lines) + b"]") if whole else None
    for at in range(segment.last + 1 - begin):
        number, line = begin + at, begin + at - segment.first + 2
        if at >= len(lines):
            raise TornBodyError(f"ends before event {number}")
        try:
            body = decode(lines[at], None) if parsed is None else unpack(parsed[at], None, trusted=True)
        except BodyError as error:
            raise type(error)(f"line {line} (event {number}) {error}") from error
        if body.name.number != number:
            raise BodyError(f"holds event {body.name.number} where event {number} belongs (line {line})")
        yield body


def _check_header(header: bytes, segment: SegmentName, rest: bytes) -> bool:
    """Whether the content matches the checksum in the header.

    Raises:
        BodyError: the header is unreadable, of a newer version, or names other events.
    """
    try:
        found = json.loads(header)
        written, first, last, checksum = (found[key] for key in ("segment", "first", "last", "checksum"))
    except (ValueError, KeyError, TypeError) as error:
        raise TornBodyError("has no header of a segment") from error
    if isinstance(written, int) and written > SEGMENT_FORMAT:
        raise OtherVersionError(f"has segment format {written} and this version reads {SEGMENT_FORMAT}")
    if (first, last) != segment:
        raise BodyError(f"does not hold the events its name says but {first} to {last}")
    return bool(checksum == _checksum(rest))


def _is_whole(store: JournalStore, segment: SegmentName) -> bool:
    header, _, rest = store.read(str(segment)).partition(b"\n")
    try:
        return _check_header(header, segment, rest)
    except BodyError:
        return False


def _content(store: JournalStore, segment: SegmentName, held: Sequence[EventName]) -> bytes:
    lines = []
    for name, body in zip(held, read_many(store, [str(name) for name in held]), strict=True):
        try:
            decode(body, name)
        except BodyError as error:
            raise JournalError(f"{store}/{name}: {error}") from error
        lines.append(as_line(body))
    rest = b"".join(lines)
    header = {
        "segment": SEGMENT_FORMAT,
        "first": segment.first,
        "last": segment.last,
        "checksum": _checksum(rest),
    }
    return json.dumps(header).encode() + b"\n" + rest


def _checksum(rest: bytes) -> str:
    return f"{zlib.crc32(rest):08x}"
