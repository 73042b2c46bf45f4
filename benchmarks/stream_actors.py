"""The two ends of the stream that `benchmarks.stream` measures: runners that only publish, and a stand-in for
the coordinator that forwards verdicts.

To the stopper the runners look real: it polls the `MetricBuffer` of `PhaseRunner` through the same methods.
They train nothing and write nothing to disk.
"""

from __future__ import annotations

import dataclasses
import math
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import ray

from actors.metric_buffer import MetricBuffer, PhaseKey
from actors.names import NAMESPACE, runner_name, stopper_name
from llmzero_ray.engines.base import Slot
from llmzero_ray.records import MetricPoint
from llmzero_ray.records import events as ev
from llmzero_ray.records.agents import NodeView, TaskView
from llmzero_ray.records.metrics import Curves

NODES_PER_SLOT = 100_000
PATIENCE_S = 60.0
BROKEN = {"actor/pg_loss": math.nan}
TASK = TaskView(
    name="stream", n_train=1, phase_steps=1, max_phase_steps=1, max_model_len=1, max_prompt_length=1
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
    """The points that one runner publishes."""

    names: tuple[str, ...]
    points_per_s: float
    tick_s: float
    """Seconds between bursts of points; with one wake-up per point, the wake-ups would dominate the
    measurement."""
    test_freq: int
    phase_s: tuple[float, float]
    """Minimum and maximum seconds that a phase streams before its loss is NaN."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Window:
    """The time window of the measurement."""

    begin: float
    """Unix seconds."""
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of one runner within the measured window."""

    published: int
    ingested: int
    """Points that the stopper has received, by the cursors of its polls, and those handed out before a
    stop."""
    n_polls: int
    stop_s: tuple[float, ...]
    """Seconds from the publication of a NaN loss to the call of `stop`."""


class StreamingRunner:
    """A runner whose phases stream until they are stopped."""

    def __init__(self, slot: Slot, root: Path) -> None:
        self._slot, self._root = slot, root
        self._buffer = MetricBuffer()
        self._heard = threading.Event()
        self._heard_at = 0.0
        self._phase = 0
        self._taken: Counter[PhaseKey] = Counter()
        self._handed: Counter[PhaseKey] = Counter()
        self._since, self._until = math.inf, math.inf
        self._published = self._ingested = self._polls = 0

    def poll(
        self, node: int, attempt: int, cursor: int, wait_s: float = 10.0, gather_s: float = 0.0
    ) -> tuple[tuple[MetricPoint, ...], bool]:
        """Same as `PhaseRunner.poll`; also records what the stopper has received so far."""
        key = node, attempt
        self._polls += self._counts()
        self._has_taken(key, cursor)
        answer = self._buffer.poll(key, cursor, wait_s, gather_s)
        self._handed[key] = cursor + len(answer[0])
        return answer

    def stop(self, node: int, attempt: int, reason: str) -> None:  # noqa: ARG002 - as the stopper calls it
        """Record the time of the first stop, which the last polled batch has caused."""
        if (node, attempt) == self._buffer.current and not self._heard.is_set():
            self._heard_at = time.perf_counter()
            self._has_taken((node, attempt), self._handed[node, attempt])
            self._heard.set()

    def _has_taken(self, key: PhaseKey, cursor: int) -> None:
        if self._counts():
            self._ingested += cursor - self._taken[key]
        self._taken[key] = cursor

    def health(self) -> dict[str, Any]:
        """Answers once the actor is up."""
        return {"slot": self._slot.index}

    def prepare(self, load: Load) -> None:
        """Make the points of a phase, and look up the stopper."""
        self._load, self._points = load, points_of(load, seed=self._slot.index)
        self._stopper = ray.get_actor(stopper_name(self._root), namespace=NAMESPACE)

    def stream(self, window: Window) -> Outcome:
        """Stream phases until the time is over."""
        self._since, self._until = window.begin, window.begin + window.seconds
        self._published = self._ingested = self._polls = 0
        stops = []
        # Runners that were asked at the same moment must not beat in time.
        time.sleep(random.uniform(0, self._load.tick_s))
        while time.time() < self._until:
            latency = self._stream_phase()
            if latency is not None:
                stops.append(latency)
        return Outcome(
            published=self._published, ingested=self._ingested, n_polls=self._polls, stop_s=tuple(stops)
        )

    def _stream_phase(self) -> float | None:
        """Stream until the stopper ends the phase. Returns the seconds to the stop if it is within the
        window."""
        load, points = self._load, self._points
        self._phase += 1
        key = (self._slot.index * NODES_PER_SLOT + self._phase, 0)
        self._heard.clear()
        self._taken, self._handed = Counter(), Counter()
        self._buffer.begin(key)
        view = NodeView(
            node=key[0],
            kind="evolve",
            status="pending",
            hyperparameters={},
            n_steps=len(points),
            base_step=0,
            curves=Curves(),
        )
        me = ray.get_runtime_context().current_actor
        self._stopper.watch.remote(self._slot.index, me, 0, view, TASK)
        begun, length = time.perf_counter(), random.uniform(*load.phase_s)
        broken_at, counts, n = math.inf, False, 0
        while not self._heard.is_set():
            elapsed = time.perf_counter() - begun
            if elapsed > length + PATIENCE_S:
                raise TimeoutError(f"node {key[0]} was not stopped within {PATIENCE_S} s")
            due = points[n : int(elapsed * load.points_per_s)]
            n += len(due)
            for point in due:
                self._buffer.publish(point)
            self._published += len(due) * self._counts()
            if elapsed > length and broken_at == math.inf:
                broken_at, counts = time.perf_counter(), self._counts()
                self._buffer.publish(dataclasses.replace(points[-1], step=len(points), metrics=BROKEN))
            self._heard.wait(load.tick_s)
        self._buffer.end()
        return self._heard_at - broken_at if counts else None

    def _counts(self) -> bool:
        return self._since <= time.time() < self._until


def points_of(load: Load, *, seed: int) -> list[MetricPoint]:
    """Points for the longest phase and its end. They share dictionaries, which the stopper cannot notice."""
    steady = random.Random(seed)
    reports = [{name: steady.uniform(0.45, 0.55) for name in load.names} for _ in range(50)]
    scored = [{**report, "val-core/task/acc/mean@1": 0.5} for report in reports]
    n = int(load.points_per_s * (load.phase_s[1] + 1)) + 2
    return [
        MetricPoint(
            node=0,
            attempt=0,
            step=step,
            global_step=step,
            wall_s=float(step),
            metrics=(reports if step % load.test_freq else scored)[step % len(reports)],
            val_score=None if step % load.test_freq else 0.5,
        )
        for step in range(1, n + 1)
    ]


class StandIn:
    """Stand-in for the coordinator: takes verdicts and stops the phase at once."""

    def __init__(self, slots: str) -> None:
        self._slots = slots
        self._runners: dict[int, Any] = {}

    async def post(self, verdict: ev.VerdictPosted) -> None:
        """Forward a STOP to the runner."""
        slot = verdict.node // NODES_PER_SLOT
        if slot not in self._runners:
            self._runners[slot] = ray.get_actor(runner_name(self._slots, slot), namespace=NAMESPACE)
        stop = self._runners[slot].stop.options(concurrency_group="ctl")
        stop.remote(verdict.node, verdict.phase_attempt, verdict.decision.reason)
