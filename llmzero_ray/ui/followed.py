"""A search that the server follows: its view, built again when journal, metrics or processes have changed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from llmzero_ray.coordinator import not_started
from llmzero_ray.coordinator.follow import Follower, run_status
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.storage import SearchStorage
from llmzero_ray.ui.view import Live, view
from llmzero_ray.utils.text import one_line

_TICK_S = 5.0
"""Seconds after which a search at work is shown again, as its budgets and its time left go on."""
_REST = 40.0
"""Times as long as a processor made a view, new metrics alone make no other."""


class Followed:
    """One search. Calls of several threads wait for each other."""

    def __init__(self, root: Path, *, steering: bool) -> None:
        self.storage = SearchStorage.at(root)
        self.follower = Follower(self.storage)
        self._steering, self._lock = steering, threading.Lock()
        self._facts: SearchFacts | None = None
        self._events: object = None
        self._seen: object = None
        self._again = 0.0
        self._view: dict[str, Any] = {}

    def view(self) -> dict[str, Any]:
        """The view as of now; the same object while nothing has changed."""
        with self._lock:
            try:
                self._refresh()
            except Exception as error:  # noqa: BLE001 - one damaged search hides no other
                why = str(error) if isinstance(error, LlmzeroError) else f"{type(error).__name__}: {error}"
                self._keep({"name": self.storage.name, "stage": "unreadable", "sentence": one_line(why, 500)})
            return self._view

    def _refresh(self) -> None:
        self.follower.poll()
        core, now, begun = self.follower.core, time.time(), time.thread_time()
        status = run_status(self.follower)
        training = [run.node for run in core.runs.values() if run.active and run.started]
        sizes = [
            part.stat().st_size
            for node in training
            if (parts := self.storage.paths.parts(node)).is_dir()
            for part in parts.iterdir()
        ]
        at_work = status.stage not in ("finished", "interrupted", "never begun")
        tick = int(now / _TICK_S) if at_work else 0
        events, seen = (len(self.follower.events), status.stage), (sizes, tick)
        if events == self._events and (seen == self._seen or now < self._again):
            return
        if core.started is None:
            sentence = not_started(core, self.storage.paths.root)
            self._keep({"name": self.storage.name, "stage": status.stage, "sentence": sentence})
        else:
            self._facts = SearchFacts(self.follower, before=self._facts)
            self._view = view(self._facts, Live(now=now, status=status, steering=self._steering))
        self._events, self._seen = events, seen
        self._again = now + _REST * (time.thread_time() - begun)

    def _keep(self, found: dict[str, Any]) -> None:
        if found != self._view:
            self._view = found
