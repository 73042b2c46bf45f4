"""Protocol of a search's trackers, and the factory for those that `tracking.backends` names.

Not here: VeRL's trackers (llmzero_ray/tracking), an extension that registers their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from llmzero_ray.config import TrackingConfig
from llmzero_ray.storage.search_storage import SearchStorage
from llmzero_ray.utils.plugins import load_factory, make


class Tracker(Protocol):
    """Sends the progress of a search to an external service. Both methods run in a thread of their own."""

    def check(self) -> None:
        """Send what is new. Called every half second; exceptions are logged."""
        ...

    def finish(self) -> None:
        """Send the rest within `tracking.finish_s` seconds. Called once, after the last event."""
        ...


def make_trackers(storage: SearchStorage, settings: TrackingConfig, keys: str | None) -> list[Tracker]:
    """Make the trackers of a search. Each factory is called once, with (storage, settings, keys).

    Args:
        storage: the search's directory.
        settings: `tracking` of search.yaml. In `backends`, each factory gets only its own names.
        keys: path of the file with the trackers' keys, or None.

    Raises:
        ConfigError: a name leads to no factory, or to one that makes no tracker.
    """
    named: dict[Callable[..., Tracker], list[str]] = {}
    for name in settings.backends:
        named.setdefault(load_factory(name, field="tracking.backends"), []).append(name)
    return [
        make(
            names[0],
            storage,
            settings.model_copy(update={"backends": tuple(names)}),
            keys,
            field="tracking.backends",
        )
        for names in named.values()
    ]
