"""Whole searches with experiment trackers, on real actors and the scripted engine."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import psutil
import pytest

from llmzero_ray.records import events as ev
from llmzero_ray.storage.metric_files import load_points
from tests.waiting import PATIENCE_S

from .conftest import Search, left_over

MakeSearch = Callable[..., Search]


def steps_of(search: Search, run: str) -> list[int]:
    """Steps of a run in all files that the backend `file` wrote, one per opening; a step that stands twice
    is there twice."""
    paths = (search.root / f"tracking/file/{search.config.name}").glob(f"{run}.*")
    return sorted(json.loads(line)["step"] for path in paths for line in path.read_text().splitlines())


def trackers_of(search: Search) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or ()
        if "llmzero_ray.tracking.tracker" in words and str(search.root) in words:
            found.append(process)
    return found


@pytest.mark.slow
def test_a_killed_coordinator_doubles_no_point_and_a_failing_tracker_changes_nothing(
    make_search: MakeSearch,
) -> None:
    # VeRL fails to open ClearML's, whose package is not installed.
    tracking = {"backends": ["clearml", "file"], "finish_s": PATIENCE_S}
    final = {"default_recipe": True}
    search = make_search({"step_s": 0.1}, budget={"runs": 2}, tracking=tracking, final=final).start()
    search.until_step(1, 5)
    os.kill(search.events(ev.CoordinatorStarted)[-1].pid, signal.SIGKILL)
    core = search.wait()
    assert core.finished.reason == "budget"
    for node, run in core.runs.items():
        name = "reference" if node == ev.REFERENCE else f"node-{node:04d}"
        expected = [run.base_step + point.step for point in load_points(search.storage, node)]
        assert steps_of(search, name) == expected, search.log()
    assert steps_of(search, "search") == [1, 2]
    assert "clearml, run " in search.log() and "not everything reached the trackers" in search.log()
    assert left_over(search) == []
    search.until(lambda: trackers_of(search) == [])
