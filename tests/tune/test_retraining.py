"""A found strategy as a schedule of one trial: which files are read, and what each phase trains with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.experiment import Trial

from llmzero_ray import tune
from llmzero_ray.config import parse_config
from llmzero_ray.errors import ConfigError
from llmzero_ray.storage.strategy import load_strategy
from llmzero_ray.tune import StrategyRetraining
from llmzero_ray.tune.phase_start import PhaseStart
from llmzero_ray.tune.verl_trainable import VerlTrainable

RUNS = Path(__file__).parent.parent / "blackbox" / "runs"
TEXT = """\
format: tune-1
metric: x
mode: max
value: 7.0
phases:
- {node: 0, trial: aaaa, cut_step: 2, config: {rate: 1.0}}
- {node: 2, trial: bbbb, cut_step: 3, config: {rate: 5.0}}
"""


class OneTrial:
    """As much of a trial as a scheduler reads."""

    def __init__(self, name: str = "t", saved: int = 0) -> None:
        self.trial_id, self.status, self.config = name, Trial.PENDING, {"data": "here"}
        self.last_result = {"training_iteration": saved}
        self.trainable: Any = None
        self.storage = SimpleNamespace(experiment_fs_path="/exp")
        self.run_metadata = SimpleNamespace(checkpoint_manager=SimpleNamespace(latest_checkpoint_result=None))
        if saved:
            self.save(saved)

    def save(self, step: int) -> None:
        checkpoint = SimpleNamespace(path=f"/exp/t/checkpoint_{step:06d}")
        self.run_metadata.checkpoint_manager.latest_checkpoint_result = SimpleNamespace(
            checkpoint=checkpoint, metrics={"training_iteration": step}
        )

    def is_finished(self) -> bool:
        return self.status == Trial.TERMINATED

    def get_trainable_cls(self) -> Any:
        return self.trainable

    def set_config(self, config: dict[str, Any]) -> None:
        self.config = config


@pytest.fixture
def retraining(tmp_path: Path) -> StrategyRetraining:
    (tmp_path / "strategy.yaml").write_text(TEXT)
    return StrategyRetraining(tmp_path / "strategy.yaml")


def controller(trial: OneTrial) -> Any:
    return SimpleNamespace(get_trials=lambda: [trial])


def result(step: int) -> dict[str, Any]:
    return {"training_iteration": step, "x": 0.0}


def test_a_phase_ends_at_its_cut_and_the_next_one_goes_on_with_its_configuration(
    retraining: StrategyRetraining,
) -> None:
    trial = OneTrial()
    retraining.on_trial_add(None, trial)
    assert trial.config == {"data": "here", "rate": 1.0}
    assert [retraining.on_trial_result(None, trial, result(step)) for step in (1, 2)] == ["CONTINUE", "PAUSE"]
    trial.status, trial.last_result = Trial.PAUSED, result(2)
    trial.save(2)
    assert retraining.choose_trial_to_run(controller(trial)) is trial
    assert trial.config == {"data": "here", "rate": 5.0}
    decisions = [retraining.on_trial_result(None, trial, result(step)) for step in (3, 4, 5)]
    assert decisions == ["CONTINUE", "CONTINUE", "STOP"]


def test_a_restored_trial_has_the_configuration_of_its_newest_checkpoint(
    retraining: StrategyRetraining,
) -> None:
    trial = OneTrial(saved=2)
    retraining.on_trial_add(None, trial)
    assert trial.config["rate"] == 5.0


def test_a_cut_without_a_checkpoint_is_one_message(retraining: StrategyRetraining) -> None:
    trial = OneTrial(saved=1)
    retraining.on_trial_add(None, trial)
    trial.status, trial.last_result = Trial.PAUSED, result(2)
    with pytest.raises(ConfigError, match=r"leaves a phase after step 2, where .* no checkpoint"):
        retraining.choose_trial_to_run(controller(trial))


def test_a_cut_that_the_trainable_did_not_save_is_one_message_although_ray_saved(
    retraining: StrategyRetraining,
) -> None:
    trial = OneTrial(saved=2)
    retraining.on_trial_add(None, trial)
    trial.status, trial.last_result = Trial.PAUSED, {**result(2), "should_checkpoint": False}
    with pytest.raises(ConfigError, match=r"phase\.save_freq must divide that step"):
        retraining.choose_trial_to_run(controller(trial))


def test_a_second_trial_is_refused(retraining: StrategyRetraining) -> None:
    retraining.on_trial_add(None, OneTrial())
    with pytest.raises(ConfigError, match="trains one trial, and the Tuner made more"):
        retraining.on_trial_add(None, OneTrial("u"))


def test_a_strategy_of_a_search_on_verl_gives_verls_keys() -> None:
    path = RUNS / "finished" / "strategy.yaml"
    strategy = load_strategy(path)
    retraining = StrategyRetraining(path)
    assert [phase.end_step for phase in retraining.phases] == [phase.end_step for phase in strategy.phases]
    config = dict(retraining.phases[1].config)
    start = PhaseStart.of(config)
    del config["llmzero_phase"]
    assert config == strategy.phases[1].hyperparameters
    # What a trainable of VeRL's needs to know: schedules run over all steps of a phase, whatever its cut.
    first, second = strategy.phases[:2]
    assert (start.base_step, start.n_steps) == (first.cut_step, second.n_steps)


def test_a_strategy_of_another_rank_than_the_slots_is_one_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trial = OneTrial()
    config = parse_config({"name": "x", "model": {"lora_rank": 4}})
    trial.trainable = type("Slots", (VerlTrainable,), {"slot_use": SimpleNamespace(config=config)})
    retraining = StrategyRetraining(RUNS / "finished" / "strategy.yaml")
    callbacks: list[Any] = []
    runner = SimpleNamespace(_callbacks=SimpleNamespace(_callbacks=callbacks))
    with pytest.raises(ConfigError, match=r"model\.lora_rank is 4; the strategy was found with 16"):
        retraining.on_trial_add(runner, trial)
    trial.trainable.slot_use.config = parse_config({"name": "x", "model": {"path": "/other"}})
    StrategyRetraining(RUNS / "finished" / "strategy.yaml").on_trial_add(runner, trial)
    assert "the base model is /other, the strategy's was " in caplog.text
    assert len(callbacks) == 2  # the slots are given back whatever ends the experiment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "does not exist; name the strategy.yaml of a search"),
        ("format: tune-9\n", "format is 'tune-9'"),
        (TEXT.replace("cut_step: 2", "cut_step: 0"), "cut_step"),
        (TEXT.replace("rate: 1.0}", "rate: 1.0}, colour: red"), "colour"),
    ],
)
def test_a_file_that_holds_no_strategy_is_one_message(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "strategy.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        StrategyRetraining(path)


def test_the_old_name_means_the_new_one_and_a_note_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert tune.StrategyReplay is StrategyRetraining
    note = "StrategyReplay is called StrategyRetraining since 0.2. Rename it: 0.3 refuses the old name."
    assert caplog.messages == [note]
