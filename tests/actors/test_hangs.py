"""When a phase counts as hanging: by the silence of its stage, not by the stage's length."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from actors.monitor import HangDetector
from llmzero_ray.records import Event
from llmzero_ray.records import events as ev
from tests.builders import Driver, make_config


class Pool:
    """A pool whose only runner trains node 0 and is in `stage`."""

    def __init__(self, stage: dict[str, Any]) -> None:
        self.stage = stage

    async def health(self, slot: int) -> dict[str, Any]:
        return {"current": (0, 0), "newest": {}, "stage": self.stage}


def found(engine: dict[str, Any], **stage: Any) -> list[Event]:
    """What a check posts about node 0 in this stage."""
    driver = Driver(make_config(engine={"platform": "cpu", **engine}))
    driver.ready(0)
    driver.post(ev.PhaseStarted(node=0, slot=0, phase_attempt=0))
    posted: list[Event] = []

    async def post(event: Event) -> None:
        posted.append(event)

    pool: Any = Pool({"name": "rollout", "since_s": 0.0, "usual_s": None, "quiet_s": None, **stage})
    asyncio.run(HangDetector(driver.core, post, pool).check())
    return posted


@pytest.mark.parametrize(("since_s", "hangs"), [(599.0, False), (601.0, True)])
def test_a_stage_without_progress_hangs_after_its_limit(since_s: float, hangs: bool) -> None:
    assert bool(found({}, since_s=since_s)) is hangs
    assert bool(found({}, since_s=since_s, quiet_s=since_s)) is hangs


def test_a_rollout_whose_answers_keep_coming_does_not_hang_however_long_it_takes() -> None:
    assert found({}, since_s=90_000.0, quiet_s=5.0) == []


def test_a_stage_that_usually_takes_long_has_more_time() -> None:
    assert found({}, since_s=900.0, usual_s=200.0) == []
    (silent,) = found({}, since_s=1001.0, usual_s=200.0)
    assert isinstance(silent, ev.RunnerSilent)
    assert (silent.stage, silent.since_s, silent.limit_s) == ("rollout", 1001.0, 1000.0)


def test_the_limit_that_is_given_counts() -> None:
    assert found({"hang_min_s": 2000.0}, since_s=1999.0) == []
    assert found({"hang_min_s": 2.0}, since_s=3.0) != []


def test_on_gpus_the_limit_follows_the_model_and_the_phase() -> None:
    model = {"platform": "gpu", "max_response_length": 8192, "max_prompt_length": 2048}
    driver = Driver(make_config(engine=model, model={"path": "Qwen3-8B"}))
    driver.ready(0)
    driver.post(ev.PhaseStarted(node=0, slot=0, phase_attempt=0))
    posted: list[Event] = []

    async def post(event: Event) -> None:
        posted.append(event)

    async def seen(since_s: float) -> list[Event]:
        pool: Any = Pool({"name": "update", "since_s": since_s, "usual_s": None, "quiet_s": None})
        await HangDetector(driver.core, post, pool).check()
        return posted

    assert asyncio.run(seen(700.0)) == []
    (silent,) = asyncio.run(seen(1e6))
    assert isinstance(silent, ev.RunnerSilent) and silent.limit_s > 700.0


def test_a_runner_that_never_answers_while_it_scores_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def __init__(self) -> None:
            self.killed: list[int] = []

        async def health(self, slot: int) -> None:
            await asyncio.sleep(60)

        def kill(self, slot: int) -> None:
            self.killed.append(slot)

    clock = [0.0]  # of the detector alone: a loaded machine may stand still for a second
    monkeypatch.setattr("actors.monitor.time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr("actors.monitor._ANSWER_S", 0.05)
    config = make_config(engine={"platform": "cpu", "hang_min_s": 60.0}, final={"default_recipe": False})
    driver = Driver(config)
    driver.search_to_end([0.5, 0.6, 0.4, 0.3])
    scored = driver.core.slots[0].scoring
    assert scored is not None
    pool: Any = Silent()
    detector = HangDetector(driver.core, None, pool)  # type: ignore[arg-type]
    asyncio.run(detector.check())
    assert pool.killed == []  # it may answer yet
    clock[0] = 61.0
    asyncio.run(detector.check())
    assert pool.killed == [0]
    driver.core.slots[0].scoring = None
    asyncio.run(detector.check())
    clock[0], driver.core.slots[0].scoring = 122.0, scored
    asyncio.run(detector.check())
    assert pool.killed == [0]  # the same policy's next scoring has its own time
