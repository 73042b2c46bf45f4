"""Follow a search through its files: the growing journal, the newest metrics of running phases, the stage.

It only reads files, so it works during a search, after it, and on a copy.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from llmzero_ray.coordinator import CoordinatorCore, apply_recorded, not_started
from llmzero_ray.coordinator.proposals import waiting
from llmzero_ray.errors import ConfigError
from llmzero_ray.journal import JournalReader, active_seconds
from llmzero_ray.records import Event, MetricPoint
from llmzero_ray.records.events import REFERENCE, PhaseStarted, SearchFinished
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.locate import missing
from llmzero_ray.storage.metric_files import last_points
from llmzero_ray.storage.presence import last_heartbeat, owner, start_of


class Follower:
    """Reader of one search. `core` is the state as of the last `poll`."""

    def __init__(self, storage: SearchStorage) -> None:
        self.storage = storage
        self.core = CoordinatorCore(storage.paths)
        self.events: tuple[Event, ...] = ()
        self._reader: JournalReader | None = None

    @classmethod
    def of(cls, storage: SearchStorage, *, started: bool = True) -> Follower:
        """Follower of an existing search, after a first `poll`.

        Raises:
            ConfigError: the search does not exist, or `started` is set and it has not started.
            JournalError: its journal is damaged.
        """
        follower = cls(storage)
        root = storage.paths.root
        if not follower.poll() and not (storage.config() or start_of(root)):
            raise missing(root)
        if started and follower.core.started is None:
            raise ConfigError(not_started(follower.core, root))
        return follower

    @property
    def torn(self) -> str | None:
        """Name of a torn last file of the journal, if there is one."""
        return None if self._reader is None else self._reader.torn

    @property
    def replaced(self) -> bool:
        """Whether the journal that was read has been deleted or replaced by another."""
        return self._reader is not None and self._reader.replaced

    @property
    def finished(self) -> SearchFinished | None:
        """The last event of a search that has ended."""
        return self.core.finished

    @property
    def has_trained(self) -> bool:
        """Whether any phase has started. Until then, the search has no results to lose."""
        return any(isinstance(event, PhaseStarted) for event in self.events)

    def poll(self) -> tuple[Event, ...]:
        """Events that are new since the last call, already applied to `core`.

        Raises:
            JournalError: the journal is damaged.
        """
        if self._reader is None:
            if self.storage.config() is None and not self.storage.paths.journal.is_dir():
                return ()  # the address of the journal is in the configuration, which is not written yet
            self._reader = JournalReader(self.storage.journal_to_read())
        try:
            new = self._reader.poll()
            for number, event in enumerate(new, start=len(self.events) + 1):
                apply_recorded(self.core, event, number)
            self.events += new
        except KeyboardInterrupt:  # events may be read but not applied, so the next call starts over
            self.core, self.events, self._reader = CoordinatorCore(self.storage.paths), (), None
            raise
        return new

    def worked_s(self, now: float | None = None) -> float:
        """Seconds with a live coordinator, up to `now` while the search runs."""
        return active_seconds(self.events, now)

    def newest(self, node: int) -> tuple[MetricPoint | None, float | None]:
        """A training node's newest point, and its best validation score so far."""
        return last_points(self.storage, node, self.core.runs[node].attempt)


def stage_now(core: CoordinatorCore, root: Path) -> str:
    """Stage of `core`, corrected by the search's directory: only the directory tells whether an unfinished
    search is running or its coordinator has died."""
    someone = owner(root)
    if core.stage == "new":
        start = start_of(root)
        return "starting" if someone or (start and start.alive is not False) else "never begun"
    unfinished = core.stage in ("searching", "measuring", "writing")
    return "interrupted" if unfinished and someone is None else core.stage


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """Snapshot of a search."""

    stage: str
    """starting, never begun, initializing, searching, measuring, writing, finished, or interrupted (paused,
    aborted, or its coordinator died)."""
    runs: int
    """Phases begun so far, the root included."""
    max_runs: int | None
    """Maximum number of runs. None before the search has started."""
    training: tuple[int, ...]
    """Nodes whose phases train now."""
    waiting: tuple[int, ...]
    """Nodes whose proposals wait for a person's approval."""
    best: int | None
    """Node with the best score; None without one."""
    best_score: float | None
    """Its best validation score."""
    gpu_hours: float
    """GPU hours for which slots were reserved, busy or idle."""
    dollars: float
    """Cost of the agents' calls."""
    seconds: float
    """Seconds with a live coordinator, up to now."""
    last_alive: float | None
    """Unix seconds of the last sign of life, by the clock of the coordinator's machine. None without one."""


def run_status(follower: Follower) -> RunStatus:
    """Status of a search as of the follower's last poll."""
    core, root = follower.core, follower.storage.paths.root
    best = core.best
    started = core.started is not None
    now = time.time() if owner(root) is not None else None
    stage = stage_now(core, root)
    alive = now or max(
        filter(None, (last_heartbeat(root), *(e.time for e in follower.events[-1:]))), default=None
    )
    if alive is None and (start := start_of(root)) is not None:
        alive = start.time
    return RunStatus(
        stage=stage,
        runs=len(core.search.nodes) if started else 0,
        max_runs=core.config.budget.runs if started else None,
        training=tuple(
            run.node
            for run in core.runs.values()
            if run.started and run.active and run.node != REFERENCE and stage != "interrupted"
        ),
        waiting=tuple(run.node for run in waiting(core)),
        best=None if best is None else best.node,
        best_score=None if best is None else best.score,
        gpu_hours=core.meter.gpu_hours(core.now if now is None else now) if started else 0.0,
        dollars=core.dollars,
        seconds=follower.worked_s(now),
        last_alive=alive,
    )
