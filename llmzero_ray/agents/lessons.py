"""What phases of earlier searches changed and gained, as one line each.

Not here: reading them from an archive (archive.py), what a proposer makes of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmzero_ray.hyperparameters import format_value, short
from llmzero_ray.records import HyperparameterValue


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """One finished phase of another search on the same task and model."""

    search: str
    node: int
    changes: Mapping[str, tuple[HyperparameterValue, HyperparameterValue]]
    """Key -> value of the phase it resumed, its own value; empty: it went on unchanged."""
    start_step: int
    """Global step it started from."""
    n_steps: int
    start: float
    """Validation score of its start."""
    gain: float
    """Paired gain over the start, the mean of the later half of its validations."""
    error: float
    """Of rows and runs."""

    @property
    def name(self) -> str:
        """`node 4 of demo`."""
        return f"node {self.node} of {self.search}"

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Lesson:
        """The lesson in plain data, as the journal keeps it."""
        pairs = {key: (old, new) for key, (old, new) in data["changes"].items()}
        return cls(**{**data, "changes": pairs})

    def line(self) -> str:
        """`node 4 of demo, from step 20 at 0.780: lr 1e-3 -> 5e-4, 10 steps: +0.021 ± 0.030`."""
        moves = ", ".join(
            f"{short(key)} {format_value(key, old)} -> {format_value(key, new)}"
            for key, (old, new) in self.changes.items()
        )
        return (
            f"{self.name}, from step {self.start_step} at {self.start:.3f}: {moves or 'unchanged'}, "
            f"{self.n_steps} steps: {self.gain:+.3f} ± {self.error:.3f}"
        )


def nearest_lessons(lessons: Sequence[Lesson], keys: Collection[str], most: int) -> tuple[Lesson, ...]:
    """At most so many lessons: those that changed most of these keys, of equals the clearest ones."""

    def rank(lesson: Lesson) -> tuple[int, float]:
        return -len(lesson.changes.keys() & set(keys)), -abs(lesson.gain) / lesson.error

    return tuple(sorted(lessons, key=rank)[:most])


def lesson_sentences(lessons: Sequence[Lesson], keys: Collection[str], most: int = 3) -> tuple[str, ...]:
    """The lessons nearest to changes of these keys, as sentences of a rationale."""
    return tuple(f"Earlier: {one.line()}." for one in nearest_lessons(lessons, keys, most))
