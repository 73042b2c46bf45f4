"""One whole search on the disk, written once and only read by tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from llmzero_ray.records import StopDecision
from llmzero_ray.records import events as ev
from llmzero_ray.records.commands import RunPhase
from llmzero_ray.report import Outcome, write_outcome
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.render import report_text
from tests.builders import make_config
from tests.report.builder import Phase, SearchBuilder, items, proposal

METRICS = {
    "critic/score/mean": [0.3 + 0.01 * i for i in range(20)],
    "actor/kl_loss": [0.002 * i for i in range(20)],
    "actor/entropy": [0.7 - 0.01 * i for i in range(20)],
    "response_length/mean": [9.0] * 20,
    "actor/grad_norm": [0.5] * 20,
}
VERDICT = StopDecision(stop=True, rule="plateau", reason="rose 0.00 over 10 steps (needs 0.01)")


def scripted(directory: Path, runs: int = 6) -> SearchBuilder:
    """A search of up to 6 runs: 0 root, 1 and 2 on the best path, 3 fails, 4 fixes it, 5 is stopped early."""
    search = SearchBuilder(directory, config=make_config(budget={"runs": runs}, search={"rho_min": 0.0}))
    search.answers = {
        1: proposal(resume=(0, 20), lr=5e-4),
        2: proposal(resume=(1, 10), lr=2e-4, temperature=0.9),
        3: proposal(resume=(2, 20), n=8),
        4: proposal(resume=(2, 20), n=6),
        5: proposal(resume=(2, 10), lr=1e-4),
    }
    search.phases = {
        0: Phase(val={0: 40, 10: 50, 20: 60}, metrics=METRICS, warm=False, setup_s=40.0, wall_s=160.0),
        1: Phase(val={0: 60, 10: 70, 20: 66}, metrics=METRICS),
        2: Phase(val={0: 70, 10: 72, 20: 78}, metrics=METRICS),
        3: Phase(
            val={0: 78}, metrics=METRICS, steps=7, fails="oom", cause="out of memory | 4 GiB\nasked", saves=()
        ),
        4: Phase(val={0: 78, 10: 77, 20: 76}, metrics=METRICS),
        5: Phase(val={0: 72, 10: 71}, metrics=METRICS, steps=12, status="early_stopped", stop=VERDICT),
        -1: Phase(val={0: 40, 10: 55, 20: 65, 30: 77, 40: 76, 50: 74}, wall_s=250.0),
    }
    search.finals = {"base": items(30), "best": items(80), "reference": items(75, first=20)}
    return search


def ended_late(directory: Path) -> SearchBuilder:
    """A search whose node 0 ended when it was paused: its outcome comes after the pause, and again for its
    next attempt."""
    search = SearchBuilder(directory, config=make_config(budget={"runs": 2}, search={"rho_min": 0.0})).ready()
    search.play(phases=0)
    (first,) = (one for one in search.waiting.values() if isinstance(one, RunPhase))
    phase = Phase(val={0: 40, 10: 50, 20: 60})
    search.start(first)
    search.write_points(first.spec, phase)
    search.now += phase.wall_s
    search.post(ev.SearchPaused(reason="user"))
    search.post(ev.phase_ended(0, 0, search.outcome(first.spec, phase)))
    search.waiting.clear()
    search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2))
    search.ready().play(phases=0)
    (again,) = (one for one in search.waiting.values() if isinstance(one, RunPhase))
    assert again.spec.attempt == 1
    search.start(again)
    search.post(ev.phase_ended(0, 1, search.outcome(again.spec, phase)))
    return search


@dataclass(frozen=True)
class Written:
    """A search with its outcome."""

    search: SearchBuilder
    outcome: Outcome
    report: str

    @property
    def root(self) -> Path:
        return self.search.root


def written(search: SearchBuilder) -> Written:
    outcome = write_outcome(search.root)
    return Written(search, outcome, (search.root / "report.md").read_text())


def report_of(search: SearchBuilder) -> str:
    """The text of report.md alone."""
    return report_text(SearchFacts(search.storage), (), has_adapter=True)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The whole search, played to its end."""
    return written(scripted(tmp_path_factory.mktemp("finished")).ready().play())
