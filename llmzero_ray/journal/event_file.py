"""Encoding of one event: JSON with writer, position, checksum and format version.

A body of another format version is refused. Not here: the events (events.py), names (names.py).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmzero_ray.errors import JournalError
from llmzero_ray.journal.names import EventName
from llmzero_ray.records import Event, from_json, to_json

FORMAT = 1
"""Format version. Increment it if an older version could misread a newer file. A new field with a default
needs no new version."""

_OLD_KEYS = frozenset({"format", "number", "epoch", "checksum", "event"})
"""Keys of an event before journals and writers had ids, in the same format version."""
_KEYS = _OLD_KEYS | {"journal", "writer"}


class BodyError(JournalError):
    """Problem with a body. The message continues a sentence that begins with the file's name; `fix` is the
    remedy."""

    fix = "History is lost: restore the file from a backup, or start a search of another name."


class TornBodyError(BodyError):
    """The body is truncated or was changed. A crash may leave the last file in this state."""


class OtherVersionError(BodyError):
    """The body is intact, but this version cannot read it."""

    fix = (
        "Another version of llmzero-ray wrote it. If that is a newer one, upgrade; if it is an older one, "
        "start a search of another name."
    )


@dataclass(frozen=True, kw_only=True)
class Body:
    """An event as stored."""

    name: EventName
    event: Event
    journal: str
    """Id of its journal."""
    writer: str
    """Id of the process that wrote it."""


def encode(event: Event, name: EventName, *, journal: str, writer: str) -> bytes:
    """Body of an event, as one line of JSON."""
    data = to_json(event)
    body = {
        "format": FORMAT,
        "number": name.number,
        "epoch": name.epoch,
        "journal": journal,
        "writer": writer,
        "checksum": _checksum(data),
        "event": data,
    }
    return json.dumps(body).encode() + b"\n"


def decode(content: bytes | str, name: EventName | None) -> Body:
    """Decode a body that was read from `name`. If `name` is None, any position is accepted.

    Raises:
        TornBodyError: the body is truncated or was changed.
        OtherVersionError: this version cannot read it.
        BodyError: it has no event, or not the one that its name states.
    """
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise TornBodyError(f"cannot be read ({error})") from error
    return unpack(body, name)


def unpack(body: Any, name: EventName | None, *, trusted: bool = False) -> Body:
    """Like `decode`, for JSON that is already parsed. `trusted` skips the checksum of content that was
    verified before."""
    if not isinstance(body, dict) or not body.keys() >= _OLD_KEYS:
        raise TornBodyError("is not an event file")
    if not body.keys() >= _KEYS:
        raise OtherVersionError("lacks the ids of its journal and its writer")
    if (written := body["format"]) != FORMAT:
        raise OtherVersionError(f"has format {written!r} and this version reads {FORMAT}")
    place = EventName(body["number"], body["epoch"])
    if name is not None and place != name:
        raise BodyError(
            f"does not hold the event its name says but event {place.number} of epoch {place.epoch}"
        )
    if not trusted and body["checksum"] != _checksum(body["event"]):
        raise TornBodyError("fails its checksum")
    return Body(name=place, event=_event(body["event"]), journal=body["journal"], writer=body["writer"])


def as_line(content: bytes) -> bytes:
    """A body that ends with exactly one line break. Its content is not checked."""
    return content.strip() + b"\n"


def _event(data: Mapping[str, Any]) -> Event:
    try:
        event = from_json(data)
    except RecursionError as error:
        raise BodyError("holds an event that is nested too deeply") from error
    except JournalError as error:
        raise OtherVersionError(f"holds an event that this version cannot read ({error})") from error
    if not isinstance(event, Event):
        raise BodyError(f"holds a {type(event).__name__}, which is not an event")
    return event


def _checksum(data: Any) -> str:
    return f"{zlib.crc32(json.dumps(data, sort_keys=True, separators=(',', ':')).encode()):08x}"
