"""Searches on slots that another process holds, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
import ray

from actors.names import coordinator_name, end_actor, group_name, runner_name
from actors.runner_pool import HELD_SLOTS_ENV, RunnerPool
from llmzero_ray.records import events as ev
from tests.builders import make_config

from .conftest import Search, left_over

pytestmark = pytest.mark.slow
MakeSearch = Callable[..., Search]
SLOTS = "held"


@pytest.fixture
def held(head: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One slot for the searches that start meanwhile. Nothing of it is left afterwards."""
    config = make_config(name=SLOTS)
    holder = RunnerPool(SLOTS, config.storage, lambda: config, fixed_capacity=False, holder=True)
    asyncio.run(holder.reserve())
    monkeypatch.setenv(HELD_SLOTS_ENV, SLOTS)
    yield
    assert there() == [runner_name(SLOTS, 0), group_name(SLOTS, 0, 0)]
    asyncio.run(holder.close_all(at_once=False))
    assert there() == []


def there() -> list[str]:
    """Actors and placement groups of the held slots."""
    names = [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)]
    groups = ray.util.placement_group_table().values()
    names += [group["name"] for group in groups if group["state"] != "REMOVED"]
    return [name for name in names if f"-{SLOTS}-" in name]


@pytest.mark.usefixtures("held")
def test_a_hopeless_phase_is_stopped_there_and_the_next_search_begins_warm(make_search: MakeSearch) -> None:
    first, second = (
        make_search(
            {"sink": [1], "step_s": 0.3, "slow": [1]},
            budget={"runs": 2},
            phase={"n_steps": 100, "max_steps": 100, "test_freq": 2},
            stopper={"interval_steps": 2, "min_steps": 4, "collapse": False},
            final={"test": True, "default_recipe": False},
        )
        for _ in range(2)
    )
    for search, warm in ((first, False), (second, True)):
        core = search.start().wait()
        assert core.finished.reason == "budget", search.log()
        assert core.runs[0].outcome.warm is warm
        hopeless = core.runs[1]
        assert hopeless.status == "early_stopped", search.log()
        assert hopeless.outcome.stop_reason.startswith("verdict: early_stopper")
        assert hopeless.outcome.steps_done < hopeless.spec.n_steps
        assert any(event.decision.stop for event in search.events(ev.VerdictPosted))
        assert list(search.storage.paths.agents(1).glob("early_stopper-*.json"))  # what was compared
        assert left_over(search) == []


@pytest.mark.usefixtures("held")
def test_a_runner_with_the_phase_of_a_search_that_is_gone_is_replaced(make_search: MakeSearch) -> None:
    first = make_search({"hold": [0]}, phase={"n_steps": 40}).start()
    first.until_step(0, 3)
    end_actor(coordinator_name(first.root))
    second = make_search(budget={"runs": 2})
    core = second.start().wait()
    assert (core.runs[0].status, core.runs[0].outcome.warm) == ("completed", False), second.log()
