"""The scheduler with Ray's own trials and a controller that only notes: starts, results, restored states."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray import cloudpickle, tune
from ray.train._internal.storage import StorageContext
from ray.tune.experiment import Trial

from llmzero_ray.errors import ConfigError
from llmzero_ray.tune import tree_search
from llmzero_ray.tune.scheduler import TreeScheduler
from llmzero_ray.tune.searcher import TreeSearcher
from tests.waiting import wait_until


class NotingController:
    """What the scheduler calls of Tune's controller."""

    def __init__(self, searcher: TreeSearcher, scheduler: TreeScheduler) -> None:
        self._searcher, self._scheduler = searcher, scheduler
        self.trials: list[Trial] = []
        self.search_alg = type("Samples", (), {"total_samples": 100})()
        self._checkpoint_manager = type("Manager", (), {"_should_force_sync_up": False})()

    def get_trials(self) -> list[Trial]:
        return self.trials

    def add(self, trial: Trial) -> None:
        self.trials.append(trial)
        self._scheduler.on_trial_add(self, trial)

    def stop_trial(self, trial: Trial) -> None:
        """As Ray's ends a waiting trial."""
        self._scheduler.on_trial_remove(self, trial)
        self._searcher.on_trial_complete(trial.trial_id)
        trial.status = Trial.TERMINATED


class Driver:
    """A pair in a folder, as one driver process has it."""

    def __init__(self, folder: Path, pickled: bytes | None = None, **given: Any) -> None:
        values: dict[str, Any] = {
            "metric": "x",
            "space": {"rate": tune.uniform(0.1, 10.0)},
            "root": {"rate": 1.0},
            "proposer": _propose,
            "budget": 4,
            "phase_steps": 3,
        }
        pair = tree_search(**{**values, **given}) if pickled is None else cloudpickle.loads(pickled)
        self.searcher, self.scheduler = pair
        self.pickled = pickled or cloudpickle.dumps(pair)
        self.searcher.set_max_concurrency(1)
        self.folder = folder
        self.controller = NotingController(*pair)

    def new_trial(self, **given: Any) -> Trial:
        """The next trial, as Tune makes it of a suggestion."""
        name = Trial.generate_id()
        found: list[Any] = []
        wait_until(lambda: found.append(self.searcher.suggest(name)) or found[-1] is not None)
        trial = self.make_trial(name, found[-1], **given)
        self.controller.add(trial)
        return trial

    def make_trial(self, name: str, config: dict[str, Any], **given: Any) -> Trial:
        storage = StorageContext(
            storage_path=str(self.folder), experiment_dir_name="exp", trial_dir_name=f"train_{name}"
        )
        return Trial("train", stub=True, trial_id=name, config=config, storage=storage, **given)

    def report(self, trial: Trial, step: int, x: float) -> str:
        """A result with a checkpoint, as a function trainable reports it."""
        place = Path(trial.storage.trial_fs_path) / f"checkpoint_{step - 1:06d}"
        place.mkdir(parents=True)
        result = {"training_iteration": step, "x": x, "checkpoint_dir_name": place.name}
        decision = self.scheduler.on_trial_result(self.controller, trial, result)
        trial.run_metadata.last_result = result
        return str(decision)

    def finish(self, trial: Trial, xs: list[float]) -> None:
        for step, x in enumerate(xs, start=1):
            self.report(trial, step, x)
        self.scheduler.on_trial_complete(self.controller, trial, trial.last_result)
        self.searcher.on_trial_complete(trial.trial_id)
        trial.status = Trial.TERMINATED


def _propose(request: Any) -> dict[str, Any]:
    return {"rate": 1.0 + request.node}


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


def start_path(trial: Trial) -> str:
    found = trial.latest_checkpoint_result
    assert found is not None
    return str(found.checkpoint.path)


def test_a_new_trial_starts_from_another_trials_best_checkpoint_and_counts_from_one(driver: Driver) -> None:
    first = driver.new_trial()
    driver.finish(first, [1.0, 5.0, 3.0])
    second = driver.new_trial()
    assert start_path(second) == f"{first.storage.trial_fs_path}/checkpoint_000001"
    assert second.latest_checkpoint_result.metrics == {}


TEXTS = ("nan", "inf", "-inf")


def test_the_phase_ends_at_its_length(driver: Driver) -> None:
    trial = driver.new_trial()
    assert [driver.report(trial, step, 1.0) for step in (1, 2, 3)] == ["CONTINUE", "CONTINUE", "STOP"]


BROKEN = [
    *(
        kind(text)
        for kind in (float, np.float16, np.float32, np.float64, np.longdouble, Decimal)
        for text in TEXTS
    ),
    *(wrap(float(text)) for wrap in (np.array, torch.tensor) for text in TEXTS),
    *(torch.tensor([math.nan], dtype=torch.bfloat16), np.array([[math.inf]]), Decimal("sNaN")),
    *(Decimal("1e400"), Fraction(10**400), 10**400, -(10**400), 1e200),
]


@pytest.mark.parametrize("value", BROKEN, ids=lambda value: f"{type(value).__name__} {value}"[:40])
def test_a_metric_that_is_not_finite_fails_the_phase_whatever_its_type(driver: Driver, value: Any) -> None:
    trial = driver.new_trial()
    assert driver.report(trial, 1, value) == "STOP"
    driver.scheduler.on_trial_complete(driver.controller, trial, trial.last_result)
    driver.searcher.on_trial_complete(trial.trial_id)
    phase = driver.searcher.search.phases[0]
    assert phase.run.status == "failed" and phase.reason.startswith("not finite: x is")
    assert driver.searcher.search.view(0).failure.failure_class == "nan"


@pytest.mark.parametrize("last", [math.nan, np.float32("inf")])
def test_a_last_result_that_is_not_finite_fails_the_phase_too(driver: Driver, last: Any) -> None:
    trial = driver.new_trial()
    driver.report(trial, 1, 1.0)
    driver.scheduler.on_trial_complete(driver.controller, trial, {"training_iteration": 2, "x": last})
    driver.searcher.on_trial_complete(trial.trial_id)
    phase = driver.searcher.search.phases[0]
    assert phase.run.status == "failed" and phase.best is not None and phase.best.val_score == 1.0


@pytest.mark.parametrize(
    "value",
    [
        *(kind(0.5) for kind in (np.float16, np.float32, np.array, torch.tensor, Decimal, Fraction)),
        np.array([0.5]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_number_of_any_type_is_a_score(driver: Driver, value: Any) -> None:
    driver.finish(driver.new_trial(), [value] * 3)
    phase = driver.searcher.search.phases[0]
    assert (phase.run.status, phase.best.val_score) == ("completed", 0.5)


@pytest.mark.parametrize(
    ("value", "score"), [(np.int64(3), 3.0), (True, 1.0), (np.bool_(True), 1.0), (7, 7.0)]
)
def test_whole_numbers_and_switches_are_scores(driver: Driver, value: Any, score: float) -> None:
    driver.finish(driver.new_trial(), [value] * 3)
    assert driver.searcher.search.phases[0].best.val_score == score


@pytest.mark.parametrize("value", ["nan", "0.5", [0.5], np.array([0.5, 0.6]), 1j])
def test_a_metric_that_is_no_number_is_shown_as_it_is(driver: Driver, value: Any) -> None:
    driver.finish(driver.new_trial(), [value] * 3)
    with pytest.raises(ConfigError, match=r"metric 'x' of trial \w+ is not a number but"):
        driver.searcher.check()


def test_a_result_that_ends_its_trial_is_taken_in(driver: Driver) -> None:
    trial = driver.new_trial()
    driver.scheduler.on_trial_complete(driver.controller, trial, {"training_iteration": 1, "x": 2.0})
    driver.searcher.on_trial_complete(trial.trial_id)
    assert driver.searcher.search.phases[0].best.val_score == 2.0


def test_deleted_checkpoints_and_few_samples_are_refused(driver: Driver, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"num_to_keep=2\) deletes checkpoints"):
        driver.new_trial(checkpoint_config=tune.CheckpointConfig(num_to_keep=2))
    other = Driver(tmp_path / "other")
    other.controller.search_alg.total_samples = 1
    with pytest.raises(ConfigError, match=r"num_samples=1\) ends the search after 1 of its 4"):
        other.new_trial()


def test_a_trial_of_another_search_algorithm_is_refused(driver: Driver) -> None:
    with pytest.raises(ConfigError, match="was not suggested by this search"):
        driver.controller.add(driver.make_trial("a", {"rate": 1.0}))


# --- restored: a driver that was killed, and a new one from its pickle --------------------------------------


def restored(driver: Driver) -> Driver:
    return Driver(driver.folder, driver.pickled)


def test_a_running_trial_goes_on_from_the_checkpoint_that_rays_state_does_not_have(driver: Driver) -> None:
    trial = driver.new_trial()
    driver.report(trial, 1, 1.0)
    driver.report(trial, 2, 2.0)
    again = restored(driver)
    old = again.make_trial(trial.trial_id, trial.config)
    again.controller.add(old)
    assert start_path(old).endswith("checkpoint_000001")
    assert old.latest_checkpoint_result.metrics["training_iteration"] == 2
    # The next one does not overwrite it.
    assert old.storage.current_checkpoint_index == 1
    assert again.scheduler.choose_trial_to_run(again.controller) is old
    assert again.report(old, 3, 3.0) == "STOP"


def test_a_running_trial_goes_on_after_every_further_restart(driver: Driver) -> None:
    trial = driver.new_trial()
    for step in (1, 2):
        assert driver.report(trial, step, 1.0) == "CONTINUE"
        driver = restored(driver)
        trial = driver.make_trial(trial.trial_id, trial.config)
        driver.controller.add(trial)
        assert driver.scheduler.choose_trial_to_run(driver.controller) is trial
    assert driver.report(trial, 3, 1.0) == "STOP"


def test_a_trial_that_had_ended_is_ended_again_with_its_results(driver: Driver) -> None:
    trial = driver.new_trial()
    driver.finish(trial, [1.0, 5.0, 3.0])
    again = restored(driver)
    old = again.make_trial(trial.trial_id, trial.config)
    again.controller.add(old)
    assert again.scheduler.choose_trial_to_run(again.controller) is None
    assert old.status == Trial.TERMINATED and old.last_result["x"] == 3.0
    assert again.searcher.search.phases[0].run.status == "completed"
    assert len(old.run_metadata.checkpoint_manager.best_checkpoint_results) == 3


def test_a_trial_whose_driver_died_after_its_last_result_trains_no_further_step(driver: Driver) -> None:
    trial = driver.new_trial()
    for step in (1, 2, 3):
        driver.report(trial, step, 1.0)
    again = restored(driver)
    old = again.make_trial(trial.trial_id, trial.config)
    again.controller.add(old)
    assert again.scheduler.choose_trial_to_run(again.controller) is None
    assert old.status == Trial.TERMINATED
    assert again.searcher.search.phases[0].run.status == "completed"


def test_a_running_trial_that_rays_state_has_lost_is_begun_again_from_its_checkpoint(driver: Driver) -> None:
    first = driver.new_trial()
    driver.finish(first, [1.0, 5.0, 3.0])
    second = driver.new_trial()
    driver.report(second, 1, 7.0)
    again = restored(driver)
    again.controller.add(again.make_trial(first.trial_id, first.config))
    again.scheduler.choose_trial_to_run(again.controller)
    third = again.new_trial()
    assert third.config == second.config
    assert start_path(third) == f"{second.storage.trial_fs_path}/checkpoint_000000"
    assert third.latest_checkpoint_result.metrics["training_iteration"] == 1


def test_without_any_state_of_rays_the_records_alone_are_enough(driver: Driver) -> None:
    first = driver.new_trial()
    driver.finish(first, [1.0, 5.0, 3.0])
    again = restored(driver)
    repeated = again.new_trial()  # Ray begins the experiment again: the root is asked for
    assert again.searcher.search.phases[0].steps == driver.searcher.search.phases[0].steps
    assert again.scheduler.choose_trial_to_run(again.controller) is None
    assert repeated.status == Trial.TERMINATED
    assert again.new_trial().config["llmzero_phase"] == "node1-evolve-from0at2-base2-steps3"


def test_a_proposal_that_was_under_way_is_asked_for_again(driver: Driver) -> None:
    first = driver.new_trial()
    driver.finish(first, [1.0, 5.0, 3.0])
    assert driver.searcher.search.phases[1].run.status == "pending"
    again = restored(driver)
    again.controller.add(again.make_trial(first.trial_id, first.config))
    assert again.new_trial().config["rate"] == 2.0


def test_a_trial_that_ray_knows_to_have_ended_ends_its_node(driver: Driver) -> None:
    trial = driver.new_trial()
    driver.report(trial, 1, 1.0)
    again = restored(driver)
    old = again.make_trial(trial.trial_id, trial.config)
    old.status = Trial.ERROR
    again.controller.add(old)
    assert again.searcher.search.phases[0].run.status == "failed"


def test_a_new_search_of_the_same_name_does_not_take_over_the_old_one(driver: Driver) -> None:
    driver.finish(driver.new_trial(), [1.0, 5.0, 3.0])
    fresh = Driver(driver.folder)
    fresh.new_trial()
    assert [phase.run.status for phase in fresh.searcher.search.phases.values()] == ["running"]


def test_a_trials_place_in_the_tree_stands_in_its_configuration_and_parameters(driver: Driver) -> None:
    first = driver.new_trial()
    assert first.config["llmzero"] == {"node": 0, "kind": "root", "base_step": 0}
    driver.finish(first, [1.0, 5.0, 3.0])
    second = driver.new_trial()
    shown = second.config["llmzero"]
    place = {"node": 1, "kind": "evolve", "parent": 0, "resume_node": 0, "resume_step": 2, "base_step": 2}
    assert place.items() <= shown.items()
    assert second.evaluated_params["llmzero/resume_step"] == 2


def test_tensorboard_has_the_curve_and_the_lineage_of_a_trial(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.tune.logger import TBXLoggerCallback
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    driver.finish(driver.new_trial(), [1.0, 5.0, 3.0])
    trial = driver.new_trial()
    # Ray's own place for it is below the session of a head.
    monkeypatch.setattr(StorageContext, "experiment_driver_staging_path", str(tmp_path / "staging"))
    callback = TBXLoggerCallback()
    callback.log_trial_start(trial)
    for step, x in enumerate((6.0, 7.0), start=1):
        callback.log_trial_result(step, trial, {"training_iteration": step, "x": x})
    callback.log_trial_end(trial)
    events = EventAccumulator(trial.local_path)
    events.Reload()
    assert [(point.step, point.value) for point in events.Scalars("ray/tune/x")] == [(1, 6.0), (2, 7.0)]
    started = HParamsPluginData.FromString(
        events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    )
    shown = started.session_start_info.hparams
    assert shown["llmzero/node"].number_value == 1 and shown["llmzero/resume_step"].number_value == 2
    assert shown["llmzero/kind"].string_value == "evolve"
