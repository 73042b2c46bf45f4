"""Searches in a real Tuner on a real Ray head."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle, tune

from llmzero_ray.errors import ConfigError
from llmzero_ray.records.agents import NodeView, ProposalRequest
from llmzero_ray.search import SearchRules
from llmzero_ray.tune import StrategyRetraining, tree_search
from tests.tune import trainables
from tests.tune.trainables import Climber, climb, notes

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
                    "reuse_actors": True,
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

    results = experiment.run(proposer=propose, workers=2, tune_config={"reuse_actors": False})
    assert len(results) == 5 and not results.errors
    phases = experiment.search.phases
    assert all(phase.run.status == "completed" and phase.last_step == 3 for phase in phases.values())
    resumed = [phase for phase in phases.values() if phase.start.resume_from is not None]
    assert resumed
    for phase in resumed:
        source = phases[phase.start.resume_from.node].steps[phase.start.resume_from.step]
        start = next(s for s in experiment.starts() if s["trial"] == phase.trials[0])
        assert start["x"] == source.metrics["x"] and start["step"] == source.metrics["depth"]
    # Not one step beyond the phases' ends was run.
    assert len([line for line in experiment.notes if line["event"] == "step"]) == 15


def test_the_search_begins_the_nodes_that_its_rules_begin_without_tune(experiment: Experiment) -> None:
    from llmzero_ray.search import TreeSearch

    experiment.run(workers=1)
    alone = TreeSearch(SearchRules(), 5)
    for phase in experiment.search.phases.values():
        decision = alone.ask()
        assert (decision.action, decision.on) == (phase.run.kind, phase.run.on)
        node = alone.begin(decision)
        if phase.start.resume_from is not None:
            alone.set_resume_from(node, phase.start.resume_from.node, phase.start.resume_from.step)
        alone.tell(node, phase.run.status, phase.best.val_score, phase.best.step)
    assert alone.ask().action == "stop"


def test_a_failed_trial_is_debugged(experiment: Experiment) -> None:
    experiment.run(root={"rate": 8.0}, fixed={"fail_above": 6.0}, budget=2)
    phases = experiment.search.phases
    assert phases[0].run.status == "failed" and "too high" in phases[0].reason
    assert phases[1].run.kind == "debug" and phases[1].run.on == 0


def test_the_stopper_ends_a_phase_early(experiment: Experiment) -> None:
    def worse(running: NodeView, best: NodeView | None) -> str | None:
        return "behind" if best is not None and running.node == 1 else None

    experiment.run(stopper=worse, budget=3)
    phase = experiment.search.phases[1]
    assert (phase.run.status, phase.last_step) == ("early_stopped", 1)
    assert phase.reason.endswith("step 1: behind")


def test_class_trainables_resume_and_reuse_their_actors(experiment: Experiment) -> None:
    experiment.run(
        Climber,
        run_config={"checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=1)},
        budget=4,
    )
    phases = experiment.search.phases
    resumed = [phase for phase in phases.values() if phase.start.resume_from is not None]
    assert resumed and all(sorted(phase.checkpoints) == [1, 2, 3] for phase in phases.values())
    for phase in resumed:
        before = phases[phase.start.resume_from.node].steps[phase.start.resume_from.step].metrics["x"]
        rate = phase.configuration["rate"]
        assert phase.steps[1].metrics["x"] == pytest.approx(before + rate)


def test_a_phase_whose_reused_actor_does_not_end_in_time_gets_another_trial(experiment: Experiment) -> None:
    experiment.run(fixed={"unwind_s": 600.0}, budget=3)
    phases = experiment.search.phases
    assert [phase.run.status for phase in phases.values()] == ["completed"] * 3
    assert [len(phase.trials) for phase in phases.values()] == [1, 2, 2]
    started = [line["trial"] for line in experiment.starts()]
    assert started == [phase.trials[-1] for phase in phases.values()]


def test_a_found_strategy_is_trained_again_as_one_trial(experiment: Experiment, tmp_path: Path) -> None:
    experiment.run(proposer=_double, budget=3)
    best = experiment.search.tree.best
    assert best.score > 3.0
    replay = tune.Tuner(
        climb,
        param_space={"notes": str(tmp_path / "again.jsonl")},
        tune_config=tune.TuneConfig(scheduler=StrategyRetraining(tmp_path / "exp" / "strategy.yaml")),
        run_config=tune.RunConfig(name="again", storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert replay[0].metrics["x"] == pytest.approx(best.score)
    steps = [line["step"] for line in notes(tmp_path / "again.jsonl") if line["event"] == "step"]
    assert steps == list(range(1, len(steps) + 1))


def _double(request: ProposalRequest) -> dict[str, Any]:
    return {"rate": min(2.0 + (request.node or 0), 10.0)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metric": "accuracy"}, r"metric 'accuracy' is in none of the 3 results of trial \w+, which have"),
        ({"fixed": {"saves": False}}, r"trial \w+ ended without a checkpoint"),
        (
            {"run_config": {"checkpoint_config": tune.CheckpointConfig(num_to_keep=1)}},
            r"CheckpointConfig\(num_to_keep=1\) deletes checkpoints that other trials start from",
        ),
        ({"tune_config": {"num_samples": 2}}, r"num_samples=2\) ends the search after 2 of its 5 trials"),
    ],
)
def test_what_cannot_be_searched_is_one_message(
    experiment: Experiment, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment.run(**given)


def test_event_files_of_tensorboard_have_every_trials_curve_and_lineage(experiment: Experiment) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    results = experiment.run(budget=3)
    phases = experiment.search.phases
    seen = set()
    for result in results:
        events = EventAccumulator(result.path)
        events.Reload()
        content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
        shown = HParamsPluginData.FromString(content).session_start_info.hparams
        phase = phases[int(shown["llmzero/node"].number_value)]
        assert shown["llmzero/kind"].string_value == phase.run.kind
        curve = [(point.step, point.value) for point in events.Scalars("ray/tune/x")]
        assert curve == [
            (n, pytest.approx(step.metrics["x"])) for n, step in sorted(phase.steps.items()) if n
        ]
        if phase.start.resume_from is not None:
            assert shown["llmzero/resume_node"].number_value == phase.start.resume_from.node
        seen.add(phase.run.node)
    assert seen == set(phases)
