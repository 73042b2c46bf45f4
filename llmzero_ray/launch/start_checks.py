"""Calls that checking the agents' model took: written down in the search's directory before they are sent, so
that those of a start that fails or is killed are in the books of the next one.

They are journalled by the coordinator, once there is one. The file only grows, by two lines for each message
that a server without an endpoint for models was sent: its worst case, and its bill.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable

from llmzero_ray.records import Event, from_json, to_json
from llmzero_ray.records.events import AgentCalled
from llmzero_ray.storage import SearchPaths
from llmzero_ray.utils.files import storage_error, storage_errors


class StartChecks:
    """The calls of all starts of one search."""

    def __init__(self, paths: SearchPaths) -> None:
        self._file = paths.start_checks

    def book(self, call: AgentCalled) -> None:
        """Write a call down; it takes the place of an earlier one with its `source`.

        Raises:
            StorageError: the directory cannot be written.
        """
        with storage_errors(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(to_json(call)) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def not_journalled(self, events: Iterable[Event]) -> tuple[AgentCalled, ...]:
        """The calls that are not among these events of the search's journal."""
        journalled = {event.source for event in events if isinstance(event, AgentCalled)}
        return tuple(call for call in self._calls() if call.source not in journalled)

    def _calls(self) -> list[AgentCalled]:
        try:
            lines = self._file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise storage_error(self._file, error) from error
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):  # a command that was killed while it wrote
                found.append(from_json(json.loads(line)))
        latest = {call.source: call for call in found if isinstance(call, AgentCalled)}
        return list(latest.values())
