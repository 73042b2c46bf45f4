"""Points between a runner and its readers: none is lost, wherever and whenever a reader polls."""

from __future__ import annotations

import dataclasses
import math
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from actors import metric_buffer
from actors.metric_buffer import MetricBuffer
from llmzero_ray.records import MetricPoint
from tests.stopping.reports import published

KEY = (1, 0)
LONG_S = 60.0


def filled(points: list[MetricPoint]) -> MetricBuffer:
    buffer = MetricBuffer()
    buffer.begin(KEY)
    for point in points:
        buffer.publish(point)
    return buffer


def steps_of(*losses: float) -> list[MetricPoint]:
    return [
        MetricPoint(node=1, attempt=0, step=s, global_step=s, wall_s=0.0, metrics={"loss": loss})
        for s, loss in enumerate(losses, start=1)
    ]


@pytest.mark.parametrize("seed", range(10))
def test_a_reader_gets_every_point_from_its_cursor_on(seed: int) -> None:
    points = published(seed)
    buffer = filled(points)
    for cursor in range(len(points)):
        found, over = pickle.loads(pickle.dumps(buffer.poll(KEY, cursor, 0.0, 0.0)))
        assert repr(list(found)) == repr(points[cursor:])
        assert not over


def test_a_phase_is_over_for_a_reader_when_it_has_the_last_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_buffer, "MAX_POINTS", 2)
    points = steps_of(0.1, 0.2, 0.3)
    buffer = filled(points)
    buffer.end()
    assert buffer.poll(KEY, 0, LONG_S, 0.0) == (tuple(points[:2]), False)
    assert buffer.poll(KEY, 2, LONG_S, 0.0) == (tuple(points[2:]), True)
    assert buffer.current is None and buffer.last_step is None


def test_a_phase_that_another_one_followed_is_over() -> None:
    buffer = filled(steps_of(0.1))
    buffer.begin((2, 0))
    assert buffer.poll(KEY, 0, LONG_S, 0.0) == ((), True)
    assert buffer.current == (2, 0)


def test_a_reader_that_waits_is_woken_by_the_first_point() -> None:
    buffer = filled([])
    [point] = steps_of(0.1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(buffer.poll, KEY, 0, LONG_S, 0.0)
        buffer.publish(point)
        assert waiting.result(LONG_S) == ((point,), False)


def test_a_reader_may_ask_about_a_phase_that_has_not_begun() -> None:
    buffer = MetricBuffer()
    assert buffer.poll(KEY, 0, 0.0, 0.0) == ((), False)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(buffer.poll, KEY, 0, LONG_S, 0.0)
        buffer.begin(KEY)
        buffer.publish(steps_of(0.1)[0])
        assert len(waiting.result(LONG_S)[0]) == 1


def test_a_reader_that_gathers_is_woken_by_a_value_that_is_not_finite() -> None:
    sound, broken = steps_of(0.1, math.nan)
    buffer = filled([sound])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(buffer.poll, KEY, 0, LONG_S, 10 * LONG_S)
        buffer.publish(broken)
        assert len(waiting.result(LONG_S)[0]) == 2


def test_values_that_stay_not_finite_wake_no_reader_again() -> None:
    buffer = filled(steps_of(0.1, math.nan))
    assert len(buffer.poll(KEY, 0, 0.0, LONG_S)[0]) == 2
    buffer.publish(dataclasses.replace(steps_of(0.1)[0], step=3, metrics={"loss": math.inf}))
    ended = threading.Timer(0.2, buffer.end)
    ended.start()
    points, over = buffer.poll(KEY, 2, 0.0, LONG_S)  # comes back when the phase ends
    assert [point.step for point in points] == [3] and over
