"""Record of the calls that check the agents' model before a search starts.

Each call is written to the search's directory before it is sent, so that the next start counts it even if
this one fails or is killed. The coordinator journals the calls once it runs. The file only grows, by two
lines for each billed call: its worst case and its actual cost. Only servers without an endpoint for models
need such calls.
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
    """Calls of all starts of one search."""

    def __init__(self, paths: SearchPaths) -> None:
        self._file = paths.start_checks

    def book(self, call: AgentCalled) -> None:
        """Append a call to the file. It replaces an earlier one with the same `source`.

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
        """Calls that are not in the search's journal, given its events."""
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
            with contextlib.suppress(ValueError):  # torn: the command was killed while it wrote the line
                found.append(from_json(json.loads(line)))
        latest = {call.source: call for call in found if isinstance(call, AgentCalled)}
        return list(latest.values())
