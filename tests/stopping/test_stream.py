"""Packed points: nothing is lost between a runner and whoever watches it, wherever the reader begins."""

from __future__ import annotations

import math
import pickle

import pytest

from llmzero_ray.records import MetricPoint
from llmzero_ray.series import curves_of
from llmzero_ray.stopping import stream
from llmzero_ray.stopping.phase_log import PhaseLog
from llmzero_ray.stopping.stream import N_FIXED, PointLog
from tests.stopping.reports import LEVELS, drained, logged, polled, published

SEEDS = range(30)


def same(a: object, b: object) -> bool:
    """Equality in which NaN equals itself."""
    return repr(a) == repr(b)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reader_gets_every_point_from_its_cursor_on(seed: int) -> None:
    points = published(seed)
    log = logged(points)
    for cursor in range(len(points) + 1):
        batch = pickle.loads(pickle.dumps(log.since(cursor)))
        assert len(batch) == len(points) - cursor
        assert same(list(batch.points(1, 0)), points[cursor:])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reader_that_keeps_its_cursor_gets_nothing_twice(seed: int) -> None:
    points = published(seed)
    batches = polled(points, seed)
    assert len(batches) > 1 or len(points) < 20
    assert same([point for batch in batches for point in batch.points(1, 0)], points)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_holds_as_many_points_in_order_as_are_allowed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = published(seed)
    log = logged(points)
    monkeypatch.setattr(stream, "MAX_NUMBERS", 40)
    batches = drained(log)
    assert same([point for batch in batches for point in batch.points(1, 0)], points)
    assert all(len(batch.values) <= 8 * 40 for batch in batches)
    widest = 8 * (N_FIXED + 1 + len(LEVELS))
    assert all(len(batch.values) > 8 * 40 - widest for batch in batches[:-1])


def test_points_larger_than_a_batch_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    points = published(4)
    monkeypatch.setattr(stream, "MAX_NUMBERS", 2)
    assert [len(batch) for batch in drained(logged(points))] == [1] * len(points)


def test_a_log_without_news_gives_an_empty_batch() -> None:
    log = PointLog()
    assert not log.since(0)
    assert log.last_step is None
    log.append(published(3)[0])
    assert not log.since(1)


def test_a_point_that_holds_something_else_than_numbers_is_refused_whole() -> None:
    log = logged(published(1)[:2])
    step = log.last_step
    bad = MetricPoint(node=1, attempt=0, step=99, global_step=99, wall_s=0.0, metrics={"a": 1.0, "b": "x"})  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        log.append(bad)
    assert (len(log), log.last_step) == (2, step)
    assert same(list(log.since(0).points(1, 0)), published(1)[:2])


@pytest.mark.parametrize("seed", SEEDS)
def test_columns_that_grew_batch_by_batch_make_the_curves_of_all_points(seed: int) -> None:
    points = published(seed)
    log = PhaseLog()
    taken = 0
    for batch in polled(points, seed):
        log.take(batch)
        taken += len(batch)
        log.column("actor/kl_loss")  # filled now and then, as rules do
        assert log.n_points == taken
        assert same(
            vars(log.curves()) | {"metrics": None}, vars(curves_of(points[:taken])) | {"metrics": None}
        )
    metrics = curves_of(points).metrics
    assert same(sorted(log.curves().metrics.items()), sorted(metrics.items()))


@pytest.mark.parametrize("seed", SEEDS)
def test_curves_of_the_first_steps_are_those_of_the_time(seed: int) -> None:
    points = [point for point in published(seed) if point.step > 0]
    log = PhaseLog()
    log.take(logged(points).since(0))
    for n in range(len(points) + 1):
        then, whole = log.curves(n), curves_of(points[:n])
        base = {} if n else {"base_step": then.base_step}
        assert same(sorted(then.metrics.items()), sorted(whole.metrics.items()))
        assert same({**vars(then), "metrics": None}, {**vars(whole), **base, "metrics": None})


def test_only_the_named_metrics_are_in_a_view_for_rules() -> None:
    log = PhaseLog()
    log.take(logged(published(5)).since(0))
    assert set(log.curves(names=("actor/kl_loss", "unknown")).metrics) <= {"actor/kl_loss"}


def test_values_that_are_not_finite_are_found_once_and_in_their_steps() -> None:
    points = [
        MetricPoint(node=1, attempt=0, step=s, global_step=s, wall_s=0.0, metrics={"a": a, "b": b})
        for s, (a, b) in enumerate([(1.0, 1.0), (math.nan, 1.0), (1.0, math.inf), (1.0, 1.0)], start=1)
    ]
    log = PhaseLog()
    log.take(logged(points).since(0))
    assert log.not_finite(("a", "c"), 0) == ([1], 1)
    assert log.not_finite(("a", "b"), 0) == ([1, 2], 1)
    assert log.not_finite(("a", "b"), 1) == ([], 1)


def steps_of(*losses: float) -> list[MetricPoint]:
    return [
        MetricPoint(node=1, attempt=0, step=s, global_step=s, wall_s=0.0, metrics={"loss": loss})
        for s, loss in enumerate(losses, start=1)
    ]


def test_a_value_that_is_not_finite_presses_until_it_is_read() -> None:
    log = logged(steps_of(0.1, 0.2))
    assert not log.pressing.is_set()
    for point in steps_of(0.1, 0.2, math.nan, 0.4)[2:]:
        log.append(point)
    assert log.pressing.is_set()
    assert len(log.since(0)) == 4
    assert not log.pressing.is_set()


def test_a_metric_that_is_never_finite_presses_once() -> None:
    log = logged(steps_of(math.nan, math.nan))
    log.since(0)
    log.append(steps_of(0.1, 0.1, math.nan)[2])
    assert not log.pressing.is_set()


def test_a_full_batch_presses_and_so_does_what_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_NUMBERS", 8)  # two points of four numbers
    log = logged(steps_of(0.1))
    assert not log.pressing.is_set()
    log.append(steps_of(0.1, 0.2)[1])
    assert log.pressing.is_set()
    for point in steps_of(0.1, 0.2, 0.3, 0.4, 0.5)[2:]:
        log.append(point)
    assert (len(log.since(0)), log.pressing.is_set()) == (2, True)
    assert (len(log.since(2)), log.pressing.is_set()) == (2, False)


def test_a_value_that_is_not_finite_still_presses_when_it_did_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "MAX_NUMBERS", 8)
    log = logged(steps_of(0.1, 0.2, math.nan))
    assert (len(log.since(0)), log.pressing.is_set()) == (2, True)
    assert (len(log.since(2)), log.pressing.is_set()) == (1, False)
