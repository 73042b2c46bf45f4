"""Runners are started for what is left to train or to score, and for nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from pathlib import Path
from unittest.mock import AsyncMock, MagicMock

import pytest

from actors.executor import CommandExecutor
from actors.final_evaluation import FinalEvaluator
from actors.runner_pool import RunnerPool
from actors.runner_recovery import RunnerRecovery
from llmzero_ray.coordinator import CoordinatorCore
from llmzero_ray.records import Event
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.storage import SearchStorage
from tests.builders import Driver, make_config, make_result, make_scored


class Pool(RunnerPool):
    """Starts every runner at once, and finds those in `alive`. A close lasts until `closed` is set."""

    def __init__(self, alive: Container[int] = ()) -> None:
        super().__init__("demo", "runs", make_config, fixed_capacity=True)
        self.alive = alive
        self.started: list[int] = []
        self.closed = asyncio.Event()

    async def find(self, slot: int) -> bool:
        return slot in self.alive

    async def start(self, slot: int) -> bool:
        self.started.append(slot)
        return True

    async def close(self, slot: int) -> None:
        await self.closed.wait()


def started_after(core: CoordinatorCore, root: Path) -> list[int]:
    """Slots that get a runner after every one was lost."""
    pool = Pool()

    async def post(event: Event) -> None:
        """The core is not told."""

    recovery = RunnerRecovery(core, post, pool, SearchStorage(root, "demo"))

    async def whole() -> None:
        await recovery.fill()
        await asyncio.gather(*(recovery.replace(slot.index) for slot in core.slots))

    asyncio.run(whole())
    return sorted(set(pool.started))


def test_a_search_that_was_stopped_at_once_gets_no_new_runners(tmp_path: Path) -> None:
    search = Driver(make_config(slots={"count": 2}))
    search.ready()
    search.start(0)
    search.post(ev.UserStop(reason="enough", deadline_s=0.0))
    search.lose()
    assert search.core.stage == "writing"
    assert started_after(search.core, tmp_path) == []


def test_a_runner_that_is_lost_while_a_winner_is_scored_is_replaced(tmp_path: Path) -> None:
    search = Driver()
    search.search_to_end([0.5, 0.6, 0.4, 0.3])
    search.lose()
    assert search.core.stage == "measuring"
    assert started_after(search.core, tmp_path) == [0]


def test_a_search_that_goes_on_gets_a_runner_in_every_slot(tmp_path: Path) -> None:
    search = Driver(make_config(slots={"count": 2}))
    assert started_after(search.core, tmp_path) == [0, 1]


def test_an_end_that_the_attempt_before_a_pause_wrote_counts_when_the_next_runner_is_lost(
    tmp_path: Path,
) -> None:
    search, storage, posted = Driver(), SearchStorage(tmp_path, "demo"), list[Event]()
    search.ready()
    search.start(0)
    storage.write_result(0, 0, make_result(0))
    search.post(ev.SearchPaused(reason="pause"), ev.CoordinatorStarted(epoch=2, host="here", pid=2))
    search.ready()
    search.start(0)

    async def post(event: Event) -> None:
        posted.append(event)

    asyncio.run(RunnerRecovery(search.core, post, Pool(), storage).lost(0, 0, 1, "gone"))
    ended, lost, _ = posted
    assert isinstance(ended, ev.PhaseFinished) and ended.result == make_result(0)
    assert isinstance(lost, ev.RunnerLost) and lost.node is None


def scoring_on_one_of_two(scored: ev.FinalWhat) -> Driver:
    """A search in its final evaluation: one of its two slots scored `scored` and is surplus, the other one
    still scores."""
    search = Driver(
        make_config(budget={"runs": 2}, slots={"count": 2}, final={"default_recipe": False, "test": True})
    )
    search.ready(0, 1)
    search.train(0)
    search.propose(1)
    search.train(1)
    search.post(make_scored(scored))
    return search


def recovery_of(search: Driver, pool: Pool, root: Path) -> RunnerRecovery:
    async def post(event: Event) -> None:
        search.post(event)

    return RunnerRecovery(search.core, post, pool, SearchStorage(root, "demo"))


@pytest.mark.parametrize("scored", ["base", "best"])
def test_a_final_evaluation_goes_on_after_every_process_died_while_a_surplus_slot_closed(
    tmp_path: Path, scored: ev.FinalWhat
) -> None:
    search, pool = scoring_on_one_of_two(scored), Pool()
    search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2))
    pool.closed.set()
    recovery = recovery_of(search, pool, tmp_path)

    async def take_over() -> None:
        assert not await recovery.attach()
        await recovery.fill()

    asyncio.run(take_over())
    assert [slot.ready for slot in search.core.slots].count(True) == len(pool.started) == 1
    assert search.only(cmd.Evaluate).slot == pool.started[0]


@pytest.mark.parametrize("scored", ["base", "best"])
def test_a_surplus_runner_that_outlived_the_one_that_scored_is_closed_first(
    tmp_path: Path, scored: ev.FinalWhat
) -> None:
    search = scoring_on_one_of_two(scored)
    surplus = search.only(cmd.CloseSlot).slot
    search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2))
    pool = Pool(alive={surplus})
    pool.closed.set()
    recovery = recovery_of(search, pool, tmp_path)

    async def take_over() -> None:
        await recovery.attach()
        await recovery.fill()

    asyncio.run(take_over())
    assert pool.started == [search.only(cmd.Evaluate).slot]
    assert search.none(cmd.CloseSlot)


@pytest.mark.parametrize("scored", ["base", "best"])
def test_a_scoring_runner_that_is_lost_while_a_surplus_slot_closes_is_replaced(
    tmp_path: Path, scored: ev.FinalWhat
) -> None:
    search, pool = scoring_on_one_of_two(scored), Pool()
    recovery = recovery_of(search, pool, tmp_path)
    close, scoring = search.only(cmd.CloseSlot), search.only(cmd.Evaluate).slot

    async def lose_while_closing() -> None:
        closing = asyncio.create_task(recovery.close(close))
        await asyncio.sleep(0)
        await recovery.lost(scoring, None, 0, "its process died")
        pool.closed.set()
        await closing

    asyncio.run(lose_while_closing())
    assert search.only(cmd.Evaluate).slot == pool.started[0]


def test_work_on_a_slot_that_is_being_closed_waits_for_its_next_runner(tmp_path: Path) -> None:
    """It ended the search: the pool forgets a runner at once, and its slot is free a minute later."""
    training, scoring = Driver(), Driver(make_config(final={"default_recipe": False}))
    training.ready()
    scoring.search_to_end([0.5, 0.6, 0.4, 0.3])
    run_phase, evaluate = training.only(cmd.RunPhase), scoring.only(cmd.Evaluate)
    posted: list[Event] = []

    async def post(event: Event) -> None:
        posted.append(event)

    pool, storage, others = Pool(), SearchStorage(tmp_path, "demo"), MagicMock()
    others.make_room = AsyncMock()
    executor = CommandExecutor(
        training.core, post, storage, agents=others, stopper=others, pool=pool, recovery=others,
        checkpoints=others, finals=others, end=AsyncMock(),
    )  # fmt: skip
    finals = FinalEvaluator(scoring.core, post, storage, pool=pool, recovery=others, test="test.parquet")
    asyncio.run(executor.execute(run_phase))
    asyncio.run(finals.evaluate(evaluate))
    assert posted == []
    others.lost.assert_not_called()
