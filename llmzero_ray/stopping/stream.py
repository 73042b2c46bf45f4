"""Metric points on their way from a runner to whoever watches its phase: numbers packed by row.

A runner appends to a `PointLog` and hands over `PointBatch`es. The reader owns the cursor: the number of
points it has, so one that begins again at 0 misses nothing. It may let points gather before it takes them,
since every batch costs a call: what cannot wait sets `PointLog.pressing`. A point of 90 metrics takes 750
bytes here and is copied, not rebuilt, at every border.

Not here: what the numbers mean (phase_log.py), points on the disk (series.py).
"""

from __future__ import annotations

import math
import struct
import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from llmzero_ray.records import MetricPoint

_SEPARATOR = "\0"
N_FIXED = 3
"""Numbers at the front of every row: step, global step, seconds since the phase began to train."""
MAX_NUMBERS = 10 * 1024
"""Numbers in a batch of more than one point. Ray sends results below 100 KiB with the reply; larger ones take
the way through the object store, which costs several times as much."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What the numbers of a row are."""

    validated: bool
    """Whether a validation score stands after the fixed numbers."""
    names: tuple[str, ...]
    """Metrics, in the order of their numbers."""

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return self.first_metric + len(self.names)

    @property
    def first_metric(self) -> int:
        """Place of the first metric in a row."""
        return N_FIXED + self.validated

    def to_text(self) -> str:
        """One string: it is pickled faster than its names, and once however often it occurs."""
        return _SEPARATOR.join(("1" if self.validated else "0", *self.names))

    @classmethod
    def from_text(cls, text: str) -> Layout:
        """What `to_text` wrote."""
        validated, *names = text.split(_SEPARATOR)
        return cls(validated == "1", tuple(names))


@dataclass(frozen=True, slots=True)
class PointBatch:
    """Points of one phase in the order in which they were published, without their items."""

    runs: tuple[tuple[str, int], ...] = ()
    """(`Layout.to_text()`, number of points) of consecutive points that report the same metrics."""
    values: bytes = b""
    """All rows, one after the other, float64 in the byte order of the machine."""

    def __len__(self) -> int:
        return sum(n for _, n in self.runs)

    def points(self, node: int, attempt: int) -> Iterator[MetricPoint]:
        """The points again; integers that VeRL logged come back as floats."""
        numbers = array("d", self.values).tolist()
        at = 0
        for text, n in self.runs:
            layout = Layout.from_text(text)
            for _ in range(n):
                row, at = numbers[at : at + layout.width], at + layout.width
                yield MetricPoint(
                    node=node,
                    attempt=attempt,
                    step=int(row[0]),
                    global_step=int(row[1]),
                    wall_s=row[2],
                    metrics=dict(zip(layout.names, row[layout.first_metric :], strict=True)),
                    val_score=row[N_FIXED] if layout.validated else None,
                )


@dataclass(slots=True)
class _Run:
    """Consecutive points of one layout, from number `first` on; their numbers begin at `offset`."""

    layout: Layout
    text: str
    pack: struct.Struct
    first: int
    offset: int


class PointLog:
    """Every point that a phase has published. Not safe for threads, but for `pressing`: its owner locks."""

    def __init__(self) -> None:
        self._layouts: dict[tuple[bool, tuple[str, ...]], tuple[Layout, str, struct.Struct]] = {}
        self._runs: list[_Run] = []
        self._firsts: list[int] = []
        self._values = array("d")
        self._n = 0
        self.last_step: int | None = None
        """Step of the newest point; None before the first one."""
        self.pressing = threading.Event()
        """Set while there is something to be read at once: a full batch, or a value that is not finite after
        a point without any."""
        self._read = 0  # numbers handed over
        self._finite = True
        self._alarm = 0  # numbers up to and with the last point that pressed

    def __len__(self) -> int:
        return self._n

    def append(self, point: MetricPoint) -> None:
        """Take note of a point.

        Raises:
            TypeError: a metric is no number; nothing was taken.
        """
        metrics, score = point.metrics, point.val_score
        names, validated = tuple(metrics), score is not None
        run = self._runs[-1] if self._runs else None
        if run is None or run.layout.names != names or run.layout.validated != validated:
            layout, text, pack = self._layout(validated, names)
            run = _Run(layout, text, pack, self._n, len(self._values))
        scores = () if score is None else (score,)
        try:
            row = run.pack.pack(point.step, point.global_step, point.wall_s, *scores, *metrics.values())
        except struct.error as error:
            raise TypeError(f"step {point.step} reports something else than numbers: {error}") from error
        if run.first == self._n:
            self._runs.append(run)
            self._firsts.append(self._n)
        self._values.frombytes(row)
        self._n += 1
        self.last_step = point.step
        self._press(math.isfinite(sum(metrics.values())))

    def _press(self, finite: bool) -> None:
        if self._finite and not finite:
            self._alarm = len(self._values)
        self._finite = finite
        if self._alarm > self._read or len(self._values) - self._read >= MAX_NUMBERS:
            self.pressing.set()

    def _layout(self, validated: bool, names: tuple[str, ...]) -> tuple[Layout, str, struct.Struct]:
        found = self._layouts.get((validated, names))
        if found is None:
            layout = Layout(validated, names)
            found = layout, layout.to_text(), struct.Struct(f"{layout.width}d")
            self._layouts[validated, names] = found
        return found

    def since(self, cursor: int) -> PointBatch:
        """Points from number `cursor` on, as many as fit into `MAX_NUMBERS` (one at least); an empty batch
        when there are none yet."""
        if cursor >= self._n:
            return PointBatch()
        at = bisect_right(self._firsts, cursor) - 1
        begin = end = self._runs[at].offset + (cursor - self._runs[at].first) * self._runs[at].layout.width
        taken: list[tuple[str, int]] = []
        while at < len(self._runs):
            run = self._runs[at]
            at += 1
            last = self._runs[at].first if at < len(self._runs) else self._n
            room = (MAX_NUMBERS - (end - begin)) // run.layout.width
            n = min(last - cursor, max(room, 0 if taken else 1))
            if n:
                taken.append((run.text, n))
            cursor, end = cursor + n, end + n * run.layout.width
            if cursor < last:
                break
        self._read = end
        self.pressing.clear()
        self._press(self._finite)
        with memoryview(self._values) as numbers:
            return PointBatch(tuple(taken), numbers[begin:end].tobytes())
