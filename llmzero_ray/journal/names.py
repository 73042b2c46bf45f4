"""Names of the objects of a journal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

_EVENT = re.compile(r"(\d{8,})\.e(\d{3,})\.json")
_SEGMENT = re.compile(r"(\d{8,})-(\d{8,})\.segment")


class EventName(NamedTuple):
    """Position of an event and the epoch in which it was written. Sorts by position."""

    number: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.number:08d}.e{self.epoch:03d}.json"


class SegmentName(NamedTuple):
    """Numbers of the first and last event of a segment. Sorts by the first."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first:08d}-{self.last:08d}.segment"


@dataclass(frozen=True)
class Listing:
    """Names of a journal's objects, parsed and sorted."""

    events: tuple[EventName, ...] = ()
    segments: tuple[SegmentName, ...] = ()

    @property
    def epoch(self) -> int:
        """Highest epoch of a single event, or 0 if there is none."""
        return max((event.epoch for event in self.events), default=0)

    @property
    def last(self) -> int:
        """Highest number of an event, or 0 if there is none."""
        return max((*(one.number for one in self.events), *(one.last for one in self.segments)), default=0)

    def segment_of(self, number: int) -> SegmentName | None:
        """Segment that contains an event: of several, the one that ends last. None if there is none."""
        held = [segment for segment in self.segments if segment.first <= number <= segment.last]
        return max(held, key=lambda segment: segment.last, default=None)

    def effective(self, *, from_number: int, epoch: int) -> list[EventName]:
        """Single events from `from_number` on, without those that a superseded epoch wrote after its end.
        `epoch` is the epoch of the event before them."""
        kept: dict[int, EventName] = {}
        highest = epoch
        # Among equal numbers, the lower epoch comes first and the higher one replaces it.
        for event in self.events:
            if event.number >= from_number and event.epoch >= highest:
                highest = event.epoch
                kept[event.number] = event
        return [kept[number] for number in sorted(kept)]


def read_names(names: Iterable[str]) -> Listing:
    """Listing of a journal from the names in its store. Other names, such as those of copies, are skipped."""
    events: list[EventName] = []
    segments: list[SegmentName] = []
    for name in names:
        if match := _EVENT.fullmatch(name):
            event = EventName(int(match[1]), int(match[2]))
            events += [event] if name == str(event) else []
        elif match := _SEGMENT.fullmatch(name):
            segments.append(SegmentName(int(match[1]), int(match[2])))
    return Listing(tuple(sorted(events)), tuple(sorted(segments)))
