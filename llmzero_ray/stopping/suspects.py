"""Which new steps of a phase a rule could end it at, found without going over its whole curve again.

A watch looks at each new step once and keeps what it needs of the past: running levels, sorted moves, the
last values. It may suspect a step at which its rule then says nothing; it never passes over one at which the
rule would say STOP. Only suspected steps are judged by the rule itself.

Not here: the rules (rules.py, signals.py).
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Protocol

from llmzero_ray.stopping.phase_log import PhaseLog

LAST = 10
"""Values from which `Series.last` and `Series.first` of dynamics.py are made, at most."""


class Watch(Protocol):
    """One rule's eye on one phase."""

    def suspects(self) -> list[int]:
        """Numbers of the suspected steps among those that came since the last call, in order."""
        ...


class NotFinite:
    """Steps at which one of some metrics is NaN or infinite."""

    def __init__(self, log: PhaseLog, names: Sequence[str]) -> None:
        self._log, self._names, self._block = log, names, 0

    def suspects(self) -> list[int]:
        """See `Watch`."""
        found, self._block = self._log.not_finite(self._names, self._block)
        return found


class Fallen:
    """Steps at which the level of a metric has lost a share of its best while another one has risen by a
    factor: the collapse detector's conditions, each kept up to date value by value.

    `rewards` and `kls` name metrics in order of preference; `window`, `kl_factor`, `drop` and `quiet` are the
    rule's.
    """

    def __init__(
        self,
        log: PhaseLog,
        *,
        rewards: Sequence[str],
        kls: Sequence[str],
        window: int,
        kl_factor: float,
        drop: float,
        quiet: float,
    ) -> None:
        self._log, self._drop, self._window = log, drop, window
        self._levels = [_Level(log, name, window) for name in rewards]
        self._spikes = [_Spike(log, name, window, kl_factor, quiet) for name in kls]
        self._n = 0

    def suspects(self) -> list[int]:
        """See `Watch`."""
        begin, self._n = self._n, len(self._log.steps)
        return [i for i in range(begin, self._n) if self._suspicious(i)]

    def _suspicious(self, i: int) -> bool:
        for level in self._levels:
            if level.read_to(i) > 2 * self._window:
                break
        else:
            return False
        if not level.lost(self._drop):
            return False
        peak = level.peak_step
        return any(spike.since(peak, i) for spike in self._spikes) and level.stands_out()


class _Level:
    """A metric's best mean over a window, and how far its last values are below it."""

    def __init__(self, log: PhaseLog, name: str, window: int) -> None:
        self._log, self._name, self._window = log, name, window
        self._read = 0
        self._steps: list[int] = []
        self._values: list[float] = []
        self._peak = -math.inf
        self.peak_step = 0
        self._moves: list[float] = []  # sorted; filled when it is needed
        self._n_moves = 0

    def read_to(self, i: int) -> int:
        """Take note of the values up to step number `i`; how many were finite."""
        column, w = self._log.column(self._name), self._window
        for at in range(self._read, i + 1):
            value = column[at]
            if value is None or not math.isfinite(value):
                continue
            self._steps.append(self._log.steps[at])
            self._values.append(value)
            end = len(self._values) - w
            if end >= w and (level := fmean(self._values[end - w : end])) > self._peak:
                self._peak, self.peak_step = level, self._steps[end - 1]
        self._read = max(self._read, i + 1)
        return len(self._values)

    def lost(self, share: float) -> bool:
        """Whether all of the last values lie below the best level by this share of it."""
        gone = self._peak - max(self._values[-self._window :])
        return self._peak > 0 and gone / self._peak >= share

    def stands_out(self) -> bool:
        """Whether that fall is three times the scatter of the values before."""
        values = self._values
        end = len(values) - self._window
        for at in range(self._n_moves + 1, end):
            insort(self._moves, abs(values[at] - values[at - 1]))
        self._n_moves = max(self._n_moves, end - 1)
        scatter = 1.05 * median(self._moves) if self._moves else 0.0
        return self._peak - max(values[-self._window :]) >= 3 * scatter


class _Spike:
    """How far a metric has risen since the best step of another one."""

    def __init__(self, log: PhaseLog, name: str, window: int, factor: float, quiet: float) -> None:
        self._log, self._name = log, name
        self._window, self._factor, self._quiet = window, factor, quiet
        self._peak_step: int | None = None
        self._read = 0
        self._before = math.inf
        self._highest = -math.inf

    def since(self, peak_step: int, i: int) -> bool:
        """Whether it reached its factor between that step and step number `i`."""
        column, steps = self._log.column(self._name), self._log.steps
        if peak_step != self._peak_step:
            self._peak_step, self._highest, self._read = peak_step, -math.inf, 0
            before = []
            while self._read <= i and steps[self._read] <= peak_step:
                value = column[self._read]
                if value is not None and math.isfinite(value):
                    before.append(abs(value))
                self._read += 1
            self._before = median(before) if len(before) >= self._window else math.inf
        for at in range(self._read, i + 1):
            value = column[at]
            if value is not None and math.isfinite(value):
                self._highest = max(self._highest, abs(value))
        self._read = max(self._read, i + 1)
        return self._highest / max(self._before, self._quiet) >= self._factor


class Tail:
    """Steps at which the last finite values of some metrics meet a condition.

    A source is a metric's name, or a pair of names for the difference between the two. `met` is given their
    `Ends`, in the order of `sources`.
    """

    def __init__(
        self,
        log: PhaseLog,
        sources: Sequence[str | tuple[str, str]],
        met: Callable[[Sequence[Ends]], bool],
    ) -> None:
        self._log, self._met = log, met
        self._sources = [(source,) if isinstance(source, str) else source for source in sources]
        self._ends = [Ends() for _ in sources]
        self._n = 0

    def suspects(self) -> list[int]:
        """See `Watch`."""
        begin, self._n = self._n, len(self._log.steps)
        columns = [[self._log.column(name) for name in names] for names in self._sources]
        found = []
        for i in range(begin, self._n):
            for ends, source in zip(self._ends, columns, strict=True):
                ends.add([column[i] for column in source])
            if self._met(self._ends):
                found.append(i)
        return found


class Ends:
    """The first and the last finite values of a source, `LAST` of each at most."""

    def __init__(self) -> None:
        self.first: list[float] = []
        self.last: deque[float] = deque(maxlen=LAST)

    def add(self, reported: Sequence[float | None]) -> None:
        """Take note of one step."""
        finite = [value for value in reported if value is not None and math.isfinite(value)]
        if len(finite) < len(reported):
            return
        value = finite[0] - sum(finite[1:])
        if len(self.first) < LAST:
            self.first.append(value)
        self.last.append(value)
