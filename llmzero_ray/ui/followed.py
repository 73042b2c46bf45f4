"""A search that the server follows. Its view is rebuilt when journal, metrics or processes have changed."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from pathlib import Path
from typing import Any

from llmzero_ray.cli.listing import summary
from llmzero_ray.coordinator import not_started
from llmzero_ray.coordinator.follow import Follower, run_status
from llmzero_ray.errors import JournalError, LlmzeroError
from llmzero_ray.records.events import PhaseFinished
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import part_stats
from llmzero_ray.ui.view import Live, view
from llmzero_ray.utils.text import one_line

_TICK_S = 5.0
"""Seconds after which the view of a running search is rebuilt, because budgets and time left change."""
_REST = 40.0
"""For this many times the processor time of a view, new metrics alone cause no new view."""


class Followed:
    """One search. Safe to use from several threads."""

    def __init__(self, root: Path, *, steering: bool) -> None:
        self.storage = SearchStorage.at(root)
        self._steering, self._lock = steering, threading.Lock()
        self._view: dict[str, Any] = {}
        self._damaged = False
        self._begin()

    def _begin(self) -> None:
        """Forget what was read, and start over."""
        self._follower = Follower(self.storage)
        self._facts: SearchFacts | None = None
        self._events: object = None
        self._seen: object = None
        self._again = 0.0

    def row(self) -> dict[str, Any]:
        """The search's row on the page that lists searches, with its best score after each phase."""
        with self._lock:
            with contextlib.suppress(LlmzeroError, OSError):  # `summary` reports the error
                self._poll()
            row = summary(self.storage.paths.root, self._follower)
            readable = not row["stage"].startswith("unreadable")
            return {**row, "scores": _best_so_far(self._follower) if readable else []}

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
        self._poll()
        follower = self._follower
        core, now, begun = follower.core, time.time(), time.thread_time()
        status = run_status(follower)
        training = [run.node for run in core.runs.values() if run.active and run.started]
        sizes = [part.st_size for node in training for part in part_stats(self.storage, node)]
        at_work = status.stage not in ("finished", "interrupted", "never begun")
        tick = int(now / _TICK_S) if at_work else 0
        events, seen = (len(follower.events), status.stage), (sizes, tick)
        if events == self._events and (seen == self._seen or now < self._again):
            return
        if core.started is None:
            sentence = not_started(core, self.storage.paths.root)
            self._keep({"name": self.storage.name, "stage": status.stage, "sentence": sentence})
        else:
            self._facts = SearchFacts(follower, before=self._facts)
            self._view = view(self._facts, Live(now=now, status=status, steering=self._steering))
        self._events, self._seen = events, seen
        self._again = now + _REST * (time.thread_time() - begun)

    def _poll(self) -> None:
        """Read what is new, or start over if another search of the same name took its place.

        Raises:
            JournalError: the journal is damaged.
        """
        follower = self._follower
        try:
            follower.poll()
            if not follower.replaced:
                self._damaged = False
                return
        except JournalError:
            if self._damaged or not follower.events:
                raise
            self._damaged = True  # unless it can be read from its beginning
        self._begin()
        self._follower.poll()
        self._damaged = False

    def _keep(self, found: dict[str, Any]) -> None:
        if found != self._view:
            self._view = found


def _best_so_far(follower: Follower) -> list[float]:
    """The best validation score after each phase that has one, in the order in which they ended."""
    ends = (event for event in follower.events if isinstance(event, PhaseFinished) and event.node >= 0)
    runs = [run for event in ends if (run := follower.core.runs[event.node]).ended_with(event)]
    scores = [run.score for run in runs if run.score is not None]
    return list(itertools.accumulate(scores, max))
