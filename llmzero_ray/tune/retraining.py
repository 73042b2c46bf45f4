"""Train a found strategy again as one trial of Ray Tune, in the manner of `PopulationBasedTrainingReplay`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import SHOULD_CHECKPOINT
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from llmzero_ray.config.strategy_file import (
    Strategy,
    StrategyPhase,
    TuneStrategy,
    TuneStrategyPhase,
    read_strategy,
)
from llmzero_ray.config.yaml_text import expanded
from llmzero_ray.errors import ConfigError
from llmzero_ray.tune import internals
from llmzero_ray.tune.phase_start import CONFIG_KEY, PhaseStart
from llmzero_ray.tune.scheduler import STEP, release_at_end

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrialPhase:
    """Configuration of a phase, and its end."""

    config: Mapping[str, Any]
    end_step: int
    """Number of results of the whole trial when the phase ends."""


class StrategyRetraining(FIFOScheduler):
    """Trains the phases of a strategy.yaml one after the other in one trial.

    At the end of a phase the trial is saved, paused, and continued with the next configuration. After the
    last phase it ends. Pass it to a Tuner with the same trainable, `num_samples=1`, and no search algorithm.
    Other values of `param_space` are kept. The file may come from a search under Tune or from a search on
    VeRL; the latter's phases have VeRL's own keys.

    Raises:
        ConfigError: there is no such file, or it holds no strategy.
        EngineVersionError: the installed Ray is not one that this was tested with.
    """

    def __init__(self, path: str | Path) -> None:
        internals.check_ray()
        super().__init__()
        self.path = expanded(path)
        self.strategy = read_strategy(self.path)
        self.phases = _phases(self.strategy)
        self._trial_id: str | None = None

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Take the one trial.

        Raises:
            ConfigError: there is a second one, or the strategy is for another LoRA rank than the slots'.
        """
        if self._trial_id not in (None, trial.trial_id):
            raise ConfigError(
                f"StrategyRetraining({str(self.path)!r}) trains one trial, and the Tuner made more; leave "
                "num_samples at 1 and domains out of param_space."
            )
        if self._trial_id is None:
            release_at_end(tune_controller, trial)
            check = getattr(trial.get_trainable_cls(), "check_strategy", None)
            if check is not None:
                check(self.strategy)
        self._trial_id = trial.trial_id
        if not trial.is_finished():
            self._configure(trial, self._phase_after(self._saved_steps(trial)))

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Decision: CONTINUE inside a phase, PAUSE at its end, STOP after the last one."""
        done = int(result[STEP])
        phase = self._phase_after(done - 1)
        if done < phase.end_step:
            return str(TrialScheduler.CONTINUE)
        return str(TrialScheduler.STOP if phase is self.phases[-1] else TrialScheduler.PAUSE)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """The only trial. After a pause it gets the configuration of its next phase.

        Raises:
            ConfigError: the result at the end of a phase had no checkpoint.
        """
        chosen = super().choose_trial_to_run(tune_controller)
        if chosen is not None and chosen.status == Trial.PAUSED:
            done = int(chosen.last_result[STEP])
            # Ray saves at a pause even if the trainable says that the step has no checkpoint.
            says_no = chosen.last_result.get(SHOULD_CHECKPOINT) is False
            if self._saved_steps(chosen) != done or says_no:
                raise ConfigError(
                    f"the strategy leaves a phase after step {done}, where the trainable reported no "
                    "checkpoint; report one with every result: tune.report(..., checkpoint=...). On VeRL's "
                    "slots phase.save_freq must divide that step."
                )
            following = self._phase_after(done)
            log.info("trial=%s step=%d next phase: %s", chosen.trial_id, done, dict(following.config))
            self._configure(chosen, following)
        return chosen

    def debug_string(self) -> str:
        """One line for Tune's tables."""
        return f"StrategyRetraining: {len(self.phases)} phases of {self.path.name}"

    @staticmethod
    def _saved_steps(trial: Any) -> int:
        """Step of the trial's newest checkpoint; 0 without one."""
        saved = internals.latest_checkpoint(trial)
        return 0 if saved is None else int(saved[1].get(STEP, 0))

    def _phase_after(self, done: int) -> TrialPhase:
        """The phase of the step that follows `done` steps; the last one after the end."""
        return next((phase for phase in self.phases if done < phase.end_step), self.phases[-1])

    def _configure(self, trial: Any, phase: TrialPhase) -> None:
        trial.set_config({**trial.config, **phase.config})


def _phases(strategy: Strategy | TuneStrategy) -> list[TrialPhase]:
    found: list[TrialPhase] = []
    phases: tuple[StrategyPhase | TuneStrategyPhase, ...] = strategy.phases
    for number, phase in enumerate(phases):
        begin = found[-1].end_step if found else 0
        if isinstance(phase, TuneStrategyPhase):
            config = phase.config
        else:
            start = PhaseStart(
                node=number,
                kind="evolve" if number else "root",
                resume_from=None,
                base_step=begin,
                n_steps=phase.n_steps,
            )
            config = {**phase.hyperparameters, CONFIG_KEY: str(start)}
        found.append(TrialPhase(config=config, end_step=begin + phase.cut_step))
    return found
