"""Train a found strategy again as one trial of Ray Tune, in the manner of `PopulationBasedTrainingReplay`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from llmzero_ray.config_text import StrictModel, read_yaml, validated
from llmzero_ray.errors import ConfigError
from llmzero_ray.report.strategy import load_strategy
from llmzero_ray.tune import internals
from llmzero_ray.tune.scheduler import STEP
from llmzero_ray.tune.state import STRATEGY_FORMAT, Mode

log = logging.getLogger(__name__)


class TuneStrategyPhase(StrictModel):
    """One phase of a strategy that was found under Tune."""

    node: int = Field(ge=0)
    """Node of the search that trained it."""
    trial: str
    """Id of that trial."""
    cut_step: int = Field(ge=1)
    """Results of this phase after which the strategy leaves it."""
    config: dict[str, Any]


class TuneStrategy(StrictModel):
    """The strategy.yaml of a search under Tune."""

    format: Literal["tune-1"]
    metric: str
    mode: Mode
    value: float
    """Of the metric, at the end of the last phase."""
    phases: list[TuneStrategyPhase] = Field(min_length=1)


@dataclass(frozen=True, kw_only=True)
class ReplayPhase:
    """A configuration and where it ends."""

    config: Mapping[str, Any]
    end_step: int
    """Results of the whole trial at its end."""


class StrategyReplay(FIFOScheduler):
    """Trains the phases of a strategy.yaml one after the other in one trial.

    At the end of a phase the trial is saved, paused, and goes on from there with the next configuration;
    after the last one it ends. Give it to a Tuner with the same trainable, `num_samples=1`, and no search
    algorithm. What `param_space` holds besides the strategy's names stays. The file is one of a search under
    Tune, or one of a search on VeRL, whose trials get VeRL's own keys.

    Raises:
        ConfigError: there is no such file, or it holds no strategy.
        EngineVersionError: the installed Ray is not one that this was tested with.
    """

    def __init__(self, path: str | Path) -> None:
        internals.check_ray()
        super().__init__()
        self.path = Path(path).expanduser()
        self.phases = _phases(self.path)
        self._trial_id: str | None = None

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Take the one trial.

        Raises:
            ConfigError: there is a second one.
        """
        if self._trial_id not in (None, trial.trial_id):
            raise ConfigError(
                f"StrategyReplay({str(self.path)!r}) trains one trial, and the Tuner made more; leave "
                "num_samples at 1 and domains out of param_space."
            )
        self._trial_id = trial.trial_id
        if not trial.is_finished():
            self._configure(trial, self._phase_after(self._saved_steps(trial)))

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """CONTINUE inside a phase, PAUSE at its end, STOP after the last one."""
        done = int(result[STEP])
        phase = self._phase_after(done - 1)
        if done < phase.end_step:
            return str(TrialScheduler.CONTINUE)
        return str(TrialScheduler.STOP if phase is self.phases[-1] else TrialScheduler.PAUSE)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """The one trial; after a pause with the configuration of its next phase.

        Raises:
            ConfigError: the result at the end of a phase had no checkpoint.
        """
        chosen = super().choose_trial_to_run(tune_controller)
        if chosen is not None and chosen.status == Trial.PAUSED:
            done = int(chosen.last_result[STEP])
            if self._saved_steps(chosen) != done:
                raise ConfigError(
                    f"the strategy leaves a phase after step {done}, where the trainable reported no "
                    "checkpoint; report one with every result: tune.report(..., checkpoint=...)."
                )
            following = self._phase_after(done)
            log.info("trial=%s step=%d next phase: %s", chosen.trial_id, done, dict(following.config))
            self._configure(chosen, following)
        return chosen

    def debug_string(self) -> str:
        """One line for Tune's tables."""
        return f"StrategyReplay: {len(self.phases)} phases of {self.path.name}"

    @staticmethod
    def _saved_steps(trial: Any) -> int:
        """Step of the trial's newest checkpoint; 0 without one."""
        saved = internals.latest_checkpoint(trial)
        return 0 if saved is None else int(saved[1].get(STEP, 0))

    def _phase_after(self, done: int) -> ReplayPhase:
        """The phase of the step that follows `done` steps; the last one after the end."""
        return next((phase for phase in self.phases if done < phase.end_step), self.phases[-1])

    def _configure(self, trial: Any, phase: ReplayPhase) -> None:
        trial.set_config({**trial.config, **phase.config})


def _phases(path: Path) -> list[ReplayPhase]:
    if not path.is_file():
        raise ConfigError(f"strategy file {path} does not exist; name the strategy.yaml of a search.")
    data = read_yaml(path)
    cuts: list[tuple[Mapping[str, Any], int]]
    if data.get("format") == STRATEGY_FORMAT:
        phases = data.get("phases")
        for number, phase in enumerate(phases if isinstance(phases, list) else (), start=1):
            # First, as its messages are nearer.
            validated(TuneStrategyPhase, phase, f"{path.name}: phase {number}")
        strategy = validated(TuneStrategy, data, path.name)
        cuts = [(phase.config, phase.cut_step) for phase in strategy.phases]
    else:
        cuts = [(phase.hyperparameters, phase.cut_step) for phase in load_strategy(path).phases]
    found: list[ReplayPhase] = []
    for config, cut_step in cuts:
        begin = found[-1].end_step if found else 0
        found.append(ReplayPhase(config=config, end_step=begin + cut_step))
    return found
