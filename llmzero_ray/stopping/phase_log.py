"""What a running phase has reported so far, as columns that grow; curves are made of them on demand.

Taking a batch costs a little per batch, nothing per metric: a column is filled only when somebody reads it.
`curves()` gives what `series.curves_of` would make of the same points. Not here: who looks at what
(suspects.py, phase_watch.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from llmzero_ray.agents.base import Curves
from llmzero_ray.stopping.stream import N_FIXED, Layout, PointBatch

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
_STEP, _GLOBAL_STEP = 0, 1


@cache
def _layout(text: str) -> tuple[Layout, Mapping[str, int]]:
    """A layout and the place of each metric in its rows; a search meets a handful."""
    layout = Layout.from_text(text)
    return layout, {name: layout.first_metric + i for i, name in enumerate(layout.names)}


@dataclass(frozen=True, slots=True)
class _Block:
    """The steps of a batch that report the same metrics."""

    rows: FloatArray
    """Shape (n_steps, width)."""
    places: Mapping[str, int]
    at: IntArray
    """Their numbers among all steps, growing."""


@dataclass(slots=True)
class _Column:
    values: list[float | None] = field(default_factory=list)
    n_blocks: int = 0
    """Blocks of the log that are in it."""


class PhaseLog:
    """The points of one attempt at a phase; steps grow from point to point. Step 0, the continuity check, is
    no step of it."""

    def __init__(self) -> None:
        self.n_points = 0
        """Points taken, step 0 included: the cursor of the next batch."""
        self.steps: list[int] = []
        self._base_step = 0
        self._start_score: float | None = None
        self._started = False
        self._val_steps: list[int] = []
        self._val_scores: list[float] = []
        self._blocks: list[_Block] = []
        self._columns: dict[str, _Column] = {}
        self._since: dict[str, int] = {}  # metric -> number of the first step that reported it
        self._layouts: set[str] = set()

    def take(self, batch: PointBatch) -> None:
        """Add the points that follow those taken so far."""
        numbers = np.frombuffer(batch.values)
        offset = 0
        # Validations lie between other steps, so that runs are short: one block for all of a kind.
        kinds: dict[str, tuple[list[FloatArray], list[IntArray]]] = {}
        for text, n in batch.runs:
            layout, _ = _layout(text)
            end = offset + n * layout.width
            rows = self._take_rows(numbers[offset:end].reshape(n, layout.width), layout)
            offset = end
            if len(rows):
                if text not in self._layouts:
                    self._layouts.add(text)
                    for name in layout.names:
                        self._since.setdefault(name, len(self.steps) - len(rows))
                matrices, numbered = kinds.setdefault(text, ([], []))
                matrices.append(rows)
                numbered.append(np.arange(len(self.steps) - len(rows), len(self.steps)))
        for text, (matrices, numbered) in kinds.items():
            rows, at = np.concatenate(matrices), np.concatenate(numbered)
            self._blocks.append(_Block(rows, _layout(text)[1], at))

    def _take_rows(self, rows: FloatArray, layout: Layout) -> FloatArray:
        """Note steps and scores of points that report the same; their rows, without the one before the
        first step."""
        if not self.n_points:
            self._base_step = int(rows[0, _GLOBAL_STEP] - rows[0, _STEP])
        self.n_points += len(rows)
        if rows[0, _STEP] <= 0:
            rows = self._without_start(rows, layout)
        steps = [int(step) for step in rows[:, _STEP].tolist()]
        if layout.validated:
            self._val_steps += steps
            self._val_scores += rows[:, N_FIXED].tolist()
        self.steps += steps
        return rows

    def _without_start(self, rows: FloatArray, layout: Layout) -> FloatArray:
        if not self._started:
            self._started = True
            self._start_score = float(rows[0, N_FIXED]) if layout.validated else None
        kept: FloatArray = rows[rows[:, _STEP] > 0]
        return kept

    def column(self, name: str) -> Sequence[float | None]:
        """One value per step, None where a step did not report the metric."""
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = _Column()
        values = column.values
        values += [None] * (len(self.steps) - len(values))
        for block in self._blocks[column.n_blocks :]:
            place = block.places.get(name)
            if place is not None:
                for i, value in zip(block.at.tolist(), block.rows[:, place].tolist(), strict=True):
                    values[i] = value
        column.n_blocks = len(self._blocks)
        return values

    def not_finite(self, names: Iterable[str], first_block: int) -> tuple[list[int], int]:
        """Numbers of the steps in which one of these metrics is NaN or infinite, and how many blocks were
        looked at: the `first_block` of the next call."""
        found: list[int] = []
        for block in self._blocks[first_block:]:
            places = [block.places[name] for name in names if name in block.places]
            finite = np.isfinite(block.rows[:, places])
            if not finite.all():
                found += block.at[~finite.all(axis=1)].tolist()
        return sorted(found), len(self._blocks)

    def curves(self, n_steps: int | None = None, names: Iterable[str] | None = None) -> Curves:
        """Curves of the first `n_steps` steps (default: all), with only these metrics (default: all)."""
        n = len(self.steps) if n_steps is None else n_steps
        steps = tuple(self.steps[:n])
        wanted = self._since if names is None else [name for name in names if name in self._since]
        n_val = bisect_right(self._val_steps, steps[-1]) if steps else 0
        return Curves(
            steps=steps,
            base_step=self._base_step,
            metrics=self._series(n, [name for name in wanted if self._since[name] < n]),
            val_steps=tuple(self._val_steps[:n_val]),
            val_scores=tuple(self._val_scores[:n_val]),
            start_score=self._start_score,
        )

    def _series(self, n: int, names: Sequence[str]) -> dict[str, tuple[float | None, ...]]:
        """The first n values of these metrics, layout by layout: blocks may be as many as steps."""
        pieces: dict[int, tuple[Mapping[str, int], list[FloatArray], list[IntArray]]] = {}
        for block in self._blocks:
            if block.at[0] >= n:
                continue
            k = len(block.at) if block.at[-1] < n else int(np.searchsorted(block.at, n))
            _, matrices, numbered = pieces.setdefault(id(block.places), (block.places, [], []))
            matrices.append(block.rows[:k])
            numbered.append(block.at[:k])
        layouts = [
            (places, np.concatenate(matrices), np.concatenate(numbered))
            for places, matrices, numbered in pieces.values()
        ]
        found = {}
        for name in names:
            values = np.full(n, None, dtype=object)
            for places, matrix, at in layouts:
                if name in places:
                    values[at] = matrix[:, places[name]]
            found[name] = tuple(values.tolist())
        return found
