"""Searches that have ended are extended on real actors, and processes die meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import ray
import yaml

from actors.names import group_name
from llmzero_ray.coordinator import check_decisions
from llmzero_ray.records import events as ev
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.storage.metric_files import load_curves
from llmzero_ray.storage.presence import is_extension_requested, request

from .conftest import Search, left_over

MakeSearch = Callable[..., Search]


def more_runs(search: Search, n_runs: int) -> Search:
    """As `resume --set budget.runs=...` does it."""
    request(search.root, "set", changes={"budget.runs": n_runs})
    return search.start()


@pytest.mark.slow
def test_a_finished_search_goes_on_twice_and_its_outcome_is_made_anew(make_search: MakeSearch) -> None:
    search = make_search(budget={"runs": 2}, final={"test": True, "default_recipe": True}).start()
    search.wait()
    first = search.storage.paths.report.read_text()
    for n_runs in (3, 5):
        core = more_runs(search, n_runs).wait()
        assert (core.finished.reason, core.config.budget.runs) == ("budget", n_runs), search.log()
        assert [run.status for node, run in core.runs.items() if node != REFERENCE] == ["completed"] * n_runs
        assert all(job.score is not None for job in core.final.jobs.values())
    assert core.n_extensions == 2
    n_reference = len(load_curves(search.storage, REFERENCE).steps)
    assert n_reference == core.runs[REFERENCE].spec.n_steps
    strategy = yaml.safe_load(search.storage.paths.strategy.read_text())
    assert strategy["search"]["runs"] == 5
    assert strategy["phases"][-1]["node"] == core.best.node
    report = search.storage.paths.report.read_text()
    assert report != first
    assert "5 of at most 5 runs" in report
    assert "It was extended 2 times" in report
    assert search.events(ev.RunnerLost) == []
    assert [
        check for check in check_decisions(search.follower.events, search.root) if check.differences
    ] == []
    assert not is_extension_requested(search.root)
    request(search.root, "set", changes={"slots.count": 2})  # which does not extend it
    assert search.start().wait().finished is not None
    assert "would not extend the search" in search.events(ev.RequestRefused)[-1].message
    assert left_over(search) == []


@pytest.mark.slow
def test_what_the_whole_compute_buys_the_default_recipe_is_measured_afterwards(
    make_search: MakeSearch,
) -> None:
    search = make_search(budget={"runs": 3}, final={"test": True, "default_recipe": "compute"}).start()
    before = search.wait()
    at_strategy = before.final.jobs["reference"]
    assert "llmzero resume" in search.storage.paths.report.read_text()
    request(search.root, "set", changes={"final.default_recipe": "whole"})
    core = search.start().wait()
    assert core.finished.reason == "budget", search.log()
    assert [run.spec for node, run in core.runs.items() if node != REFERENCE] == [
        run.spec for node, run in before.runs.items() if node != REFERENCE
    ]
    whole, limit = core.final.jobs["reference-whole"], core.runs[REFERENCE].spec.compute
    assert whole.score is not None and core.final.jobs["reference"].score is not None
    assert at_strategy.score is not None and limit is not None
    assert limit.amount == pytest.approx(core.compute)
    assert "default recipe at the whole search's compute" in search.storage.paths.report.read_text()
    assert [
        check for check in check_decisions(search.follower.events, search.root) if check.differences
    ] == []
    assert left_over(search) == []


@pytest.mark.slow
def test_a_coordinator_killed_in_an_extension_comes_back_to_it(
    make_search: MakeSearch, tmp_path: Path
) -> None:
    released = tmp_path / "released"
    search = make_search({"hold": [2], "hold_until": str(released)}, budget={"runs": 2}).start()
    search.wait()
    more_runs(search, 3).until_step(2, 3)
    os.kill(search.events(ev.CoordinatorStarted)[-1].pid, signal.SIGKILL)
    released.touch()
    core = search.wait()
    assert (core.finished.reason, len(core.search.nodes), core.n_extensions) == ("budget", 3, 1)
    assert [run.attempt for run in core.runs.values()] == [0, 0, 0]


@pytest.mark.slow
def test_an_idle_slot_is_given_back_while_the_reference_trains_alone(
    make_search: MakeSearch, tmp_path: Path
) -> None:
    """Its hardware too."""
    search = make_search(
        {"hold": [REFERENCE], "hold_until": str(tmp_path / "released")},
        budget={"runs": 2},
        slots={"count": 2},
        final={"test": True, "default_recipe": True},
    ).start()
    search.until(lambda: bool(search.events(ev.SlotClosed)))
    core = search.core
    assert core.stage == "measuring" and core.runs[REFERENCE].active
    closed = search.events(ev.SlotClosed)[0].slot
    assert closed != core.runs[REFERENCE].slot
    created = [
        entry["name"] for entry in ray.util.placement_group_table().values() if entry["state"] == "CREATED"
    ]
    assert group_name(search.on_cluster, closed, 0) not in created
    assert group_name(search.on_cluster, core.runs[REFERENCE].slot, 0) in created
    (tmp_path / "released").touch()
    core = search.wait()
    assert all(job.score is not None for job in core.final.jobs.values())
    assert [event.slot for event in search.events(ev.SlotClosed)] == [closed]
    assert left_over(search) == []


@pytest.mark.slow
def test_a_slot_that_the_root_does_not_need_is_reserved_when_it_has_ended(
    make_search: MakeSearch, tmp_path: Path
) -> None:
    search = make_search(
        {"hold": [0, 1], "hold_until": str(tmp_path / "released-{node}")},
        budget={"runs": 4},
        slots={"count": 2, "reserve": "when_needed"},
    ).start()
    search.until_step(0, 3)
    second = group_name(search.on_cluster, 1, 0)
    assert second not in [entry["name"] for entry in ray.util.placement_group_table().values()]
    (tmp_path / "released-0").touch()
    search.until(lambda: any(run.slot == 1 for run in search.core.runs.values()))  # node 1 trains until then
    (needed,) = search.events(ev.SlotsNeeded)
    (ready,) = [event for event in search.events(ev.SlotReady) if event.slot == 1]
    assert search.core.runs[0].outcome is not None and search.core.runs[1].slot == 0
    assert ready.time > needed.time
    request(search.root, "stop", "seen", deadline_s=0.0)
    search.wait()
    assert left_over(search) == []
