"""Search methods that plan their runs, on real actors with the scripted engine: root and all are proposed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from llmzero_ray.coordinator import check_decisions
from llmzero_ray.records import events as ev
from llmzero_ray.storage.strategy import load_strategy

from .conftest import Search, left_over

MakeSearch = Callable[..., Search]


@pytest.mark.slow
def test_a_population_killed_half_way_goes_on_and_writes_its_outcome(
    make_search: MakeSearch, tmp_path: Path
) -> None:
    search = make_search(
        {"hold": [2], "hold_until": str(tmp_path / "released")},
        budget={"runs": 5},
        search={"method": "pbt", "population": 2},
        stopper={"enabled": False},
        final={"test": True, "default_recipe": False},
    ).start()
    search.until_step(2, 3)
    os.kill(search.events(ev.CoordinatorStarted)[-1].pid, signal.SIGKILL)
    (tmp_path / "released").touch()
    core = search.wait()
    assert core.finished.reason == "budget"
    assert core.problem is None, core.problem
    assert [run.proposal.agent for run in core.runs.values()] == ["pbt"] * 5
    assert [run.plan["recipe"] for run in core.runs.values()][:2] == ["default", "draw"]
    checks = list(check_decisions(search.follower.events, search.root))
    assert [check.differences for check in checks if check.differences] == []
    assert load_strategy(search.storage.paths.strategy).phases[0].resume_from is None
    assert "search.method" not in search.log()
    assert left_over(search) == []
