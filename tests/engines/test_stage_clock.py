"""The clock of stages: what is going on, since when, and how long it usually takes in this phase."""

from __future__ import annotations

import threading

import pytest

from llmzero_ray.engines.verl import stage_clock
from llmzero_ray.engines.verl.stage_clock import StageClock


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [100.0]
    monkeypatch.setattr(stage_clock.time, "monotonic", lambda: time[0])
    return time


def test_an_idle_clock_says_nothing(now: list[float]) -> None:
    clock = StageClock()
    assert clock.read() is None
    clock.enter("start")
    clock.idle()
    assert clock.read() is None


def test_a_stage_counts_from_its_own_beginning_and_has_the_median_of_its_earlier_ones(
    now: list[float],
) -> None:
    clock = StageClock()
    for name, at in (
        ("rollout", 0.0),
        ("update", 3.0),
        ("rollout", 10.0),
        ("update", 14.0),
        ("rollout", 20.0),
    ):
        clock.enter(name, at)
    now[0] = 21.5
    stage = clock.read()
    assert stage is not None
    assert (stage.name, stage.since_s, stage.usual_s) == ("rollout", 1.5, 3.5)
    clock.enter("save", 22.0)
    stage = clock.read()
    assert stage is not None and (stage.name, stage.usual_s) == ("save", None)


def test_progress_ends_the_silence_of_its_own_stage_alone(now: list[float]) -> None:
    clock = StageClock()
    clock.enter("rollout", 10.0)
    clock.progress(95.0)
    stage = clock.read()
    assert stage is not None and (stage.since_s, stage.quiet_s) == (90.0, 5.0)
    clock.enter("update", 98.0)
    stage = clock.read()
    assert stage is not None and (stage.since_s, stage.quiet_s) == (2.0, 2.0)


def test_a_new_phase_knows_no_durations(now: list[float]) -> None:
    clock = StageClock()
    clock.enter("rollout", 0.0)
    clock.enter("update", 5.0)
    clock.reset()
    assert clock.read() is None
    clock.enter("rollout", 100.0)
    stage = clock.read()
    assert stage is not None and stage.usual_s is None


def test_it_may_be_read_while_another_thread_sets_it() -> None:
    clock, done = StageClock(), threading.Event()

    def work() -> None:
        for step in range(5000):
            clock.enter(("rollout", "update")[step % 2])
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        stage = clock.read()
        assert stage is None or (stage.name in ("rollout", "update") and stage.since_s >= 0)
    thread.join()
