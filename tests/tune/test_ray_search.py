"""Searches in a real Tuner on a real Ray head."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle, tune

from llmzero_ray.agents.base import ProposalRequest
from llmzero_ray.search import SearchRules
from llmzero_ray.tune import tree_search
from tests.tune import trainables
from tests.tune.trainables import climb, notes

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("head")]
cloudpickle.register_pickle_by_value(trainables)
cloudpickle.register_pickle_by_value(sys.modules[__name__])
SPACE = {"rate": tune.uniform(0.1, 10.0)}


class Experiment:
    """Runs one search in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.notes_path = folder, folder / "notes.jsonl"
        self.search: Any = None

    def run(
        self,
        trainable: Any = climb,
        *,
        fixed: dict[str, Any] | None = None,
        workers: int = 1,
        run_config: dict[str, Any] | None = None,
        tune_config: dict[str, Any] | None = None,
        **given: Any,
    ) -> Any:
        searcher, scheduler = tree_search(
            **{"metric": "x", "space": SPACE, "root": {"rate": 1.0}, "budget": 5, "phase_steps": 3, **given}
        )
        self.search = searcher.search
        tuner = tune.Tuner(
            trainable,
            param_space={"notes": str(self.notes_path), **(fixed or {})},
            tune_config=tune.TuneConfig(
                **{
                    "search_alg": searcher,
                    "scheduler": scheduler,
                    "num_samples": -1,
                    "max_concurrent_trials": workers,
                    **(tune_config or {}),
                }
            ),
            run_config=tune.RunConfig(
                name="exp", storage_path=str(self.folder), verbose=0, **(run_config or {})
            ),
        )
        return tuner.fit()

    @property
    def notes(self) -> list[dict[str, Any]]:
        return notes(self.notes_path)

    def starts(self) -> list[dict[str, Any]]:
        return [line for line in self.notes if line["event"] == "start"]


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return Experiment(tmp_path)


def test_phases_go_on_from_earlier_checkpoints_of_other_trials_and_end_in_time(
    experiment: Experiment,
) -> None:
    def propose(request: ProposalRequest) -> dict[str, Any]:
        assert request.node is not None
        return {"rate": 1.0 + request.node}

    results = experiment.run(proposer=propose, workers=2)
    assert len(results) == 5 and not results.errors
    phases = experiment.search.phases
    assert all(phase.status == "completed" and sorted(phase.steps) == [1, 2, 3] for phase in phases.values())
    resumed = [phase for phase in phases.values() if phase.resume_from is not None]
    assert resumed
    for phase in resumed:
        source = phases[phase.resume_from.node].steps[phase.resume_from.step]
        start = next(s for s in experiment.starts() if s["trial"] == phase.trials[0])
        assert start["x"] == source.metrics["x"] and start["step"] == source.metrics["depth"]
    # Not one step beyond the phases' ends was run.
    assert len([line for line in experiment.notes if line["event"] == "step"]) == 15


def test_the_search_begins_the_nodes_that_its_rules_begin_without_tune(experiment: Experiment) -> None:
    from llmzero_ray.search import TreeSearch

    experiment.run(workers=1, budget=6)
    alone = TreeSearch(SearchRules(), 6)
    for phase in experiment.search.phases.values():
        decision = alone.ask()
        assert (decision.action, decision.on) == (phase.kind, phase.on)
        node = alone.begin(decision)
        if phase.resume_from is not None:
            alone.set_resume_from(node, phase.resume_from.node, phase.resume_from.step)
        alone.tell(node, phase.status, phase.best.score, phase.best.step)
    assert alone.ask().action == "stop"
