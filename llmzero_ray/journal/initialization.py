"""Keeps only the initialization of a journal, when a search that has trained nothing starts over."""

from __future__ import annotations

from llmzero_ray.journal.names import read_names
from llmzero_ray.journal.reader import JournalReader, Where
from llmzero_ray.records.events import SearchStarted


def keep_initialization(where: Where) -> bool:
    """Remove the events from `SearchStarted` on, newest first. Returns False, without removing anything, if
    there is nothing before it.

    A kill in between leaves a shorter, consistent journal.

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
        listing = read_names(reader.store.names(), place=str(reader.store))
        for name in reversed([event for event in listing.events if event.number > kept]):
            reader.store.remove(str(name))
    return kept > 0
