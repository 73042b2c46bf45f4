"""An observer of a search from outside, through its files, which records states with their times.

Not here: judging it (checks.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from llmzero_ray.coordinator import CoordinatorCore
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.records import Event, PhaseFailure, PhaseResult
from llmzero_ray.storage import SearchStorage

from .lab import until

Outcome: TypeAlias = PhaseResult | PhaseFailure


class Witness:
    """Follows one search; `look` as often as possible."""

    def __init__(self, storage: SearchStorage) -> None:
        self.storage = storage
        self.follower = Follower(storage)
        self.seen: dict[int, Outcome] = {}
        """Node -> its outcome when it was first seen."""
        self.notes: list[str] = []
        """What should not have been seen."""

    @property
    def core(self) -> CoordinatorCore:
        """State as of the last look."""
        return self.follower.core

    @property
    def over(self) -> bool:
        """Whether the search has ended."""
        return self.follower.finished is not None

    def look(self) -> tuple[Event, ...]:
        """Read what is new; the events."""
        try:
            new = self.follower.poll()
        except LlmzeroError as error:
            if str(error) not in self.notes:
                self.notes.append(str(error))
            return ()
        for node, run in self.core.runs.items():
            if run.outcome is not None:
                self.seen.setdefault(node, run.outcome)
        return new

    def until(self, happened: Callable[[], bool], *, within_s: float, look_s: float = 0.05) -> bool:
        """Follow the search until something has happened; whether it did in time."""

        def look() -> bool:
            self.look()
            return happened()

        return until(look, within_s=within_s, look_s=look_s)

    def training(self) -> list[PhaseRun]:
        """Phases under way."""
        return [run for run in self.core.runs.values() if run.active and run.started]

    def step(self, node: int) -> int:
        """Newest step of a phase under way that is on the disk; 0: none yet."""
        point, _ = self.follower.newest(node)
        return 0 if point is None else point.step

    def has_ended(self, node: int) -> bool:
        """Whether a node has an outcome."""
        run = self.core.runs.get(node)
        return run is not None and run.outcome is not None
