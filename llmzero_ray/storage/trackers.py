"""Trackers of a search: what each must offer, and the making of those that `tracking.backends` names.

Not here: VeRL's trackers (llmzero_ray/tracking), an extension that registers their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from llmzero_ray.config import TrackingConfig
from llmzero_ray.storage.search_storage import SearchStorage
from llmzero_ray.utils.plugins import load_factory


class Tracker(Protocol):
    """A follower of a search's files that shows them elsewhere. Both methods run in a thread of their own."""

    def check(self) -> None:
        """Show what is new; called every few seconds. An exception is logged."""
        ...

    def finish(self) -> None:
        """Show the rest within `tracking.finish_s` seconds; called once, after the last event."""
        ...


def make_trackers(storage: SearchStorage, settings: TrackingConfig, keys: str | None) -> list[Tracker]:
    """The trackers of a search, one per factory; each is called with (storage, settings, keys).

    Args:
        storage: the search's directory.
        settings: `tracking` of search.yaml; a factory gets its own names in `backends`.
        keys: path of the file with the trackers' keys, None if there is none.

    Raises:
        ConfigError: a name leads to no factory.
    """
    named: dict[Callable[..., Tracker], list[str]] = {}
    for name in settings.backends:
        named.setdefault(load_factory(name, field="tracking.backends"), []).append(name)
    return [
        factory(storage, settings.model_copy(update={"backends": tuple(names)}), keys)
        for factory, names in named.items()
    ]
