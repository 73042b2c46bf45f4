"""Scheduler of the pair: sees every result of every trial of Ray Tune, and starts and ends trials.

It passes results and checkpoints to the search, ends phases, starts a phase from another trial's checkpoint,
and brings a restored experiment to the state of the search's journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import SHOULD_CHECKPOINT
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from llmzero_ray.errors import ConfigError
from llmzero_ray.tune import internals
from llmzero_ray.tune.early_stop import EarlyStops
from llmzero_ray.tune.phase_start import LINEAGE_KEY, PhaseStart
from llmzero_ray.tune.searcher import TreeSearcher
from llmzero_ray.tune.state import TunePhase

STEP = "training_iteration"
_LOG_TAIL = 4000
"""Maximum stored characters of an error."""


class TreeScheduler(FIFOScheduler):
    """Scheduler of a `TreeSearcher`'s trials. `tree_search` creates both."""

    def __init__(self, searcher: TreeSearcher, stops: EarlyStops) -> None:
        super().__init__()
        self._searcher, self._stops = searcher, stops
        self._search = searcher.search
        self._to_close: list[Any] = []
        self._directory: Path | None = None
        self._releases = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_to_close": [], "_directory": None, "_releases": False}

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Check the Tuner's other arguments.

        Raises:
            ConfigError: another metric or mode.
        """
        self._searcher.check_metric(metric, mode)
        return bool(super().set_search_properties(metric, mode, **spec))

    # --- trials come and go ---------------------------------------------------------------------------------

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Give a new trial its start checkpoint, and a restored one the data that Ray's state lacks.

        Raises:
            ConfigError: Ray would delete checkpoints, or the trial is not of this search.
        """
        start = PhaseStart.of(trial.config)
        if start is None:
            raise ConfigError(
                f"trial {trial.trial_id} was not suggested by this search; give the Tuner both halves: "
                "TuneConfig(search_alg=search_alg, scheduler=scheduler)."
            )
        if not self._releases:
            self._releases = True
            release_at_end(tune_controller, trial)
        self._check_kept(trial)
        self._check_samples(tune_controller)
        self._open_journal(trial)
        phase = self._search.phases.get(start.node)
        if phase is None:
            raise ConfigError(
                f"trial {trial.trial_id} trains node {start.node}, which the search's journal does not have; "
                f"the journal in {self._directory or 'the experiment'} is older than Ray's state."
            )
        if trial.trial_id in phase.trials[:-1]:  # another trial took its place
            if not trial.is_finished():
                self._to_close.append(trial)
            return
        if phase.run.active and trial.is_finished():
            self._finish_as_saved(trial, phase)
        elif phase.run.active and (self._has_last_result(phase) or phase.run.stop_reason):
            # The driver died between the trial's last result and its end.
            self._search.end(phase.run.node)
        if not phase.run.active:
            if not trial.is_finished():
                self._restore(trial, phase)
                self._to_close.append(trial)
            return
        self._search.assign(phase.run.node, trial.trial_id)
        self._searcher.live[trial.trial_id] = trial
        self._restore(trial, phase)
        self._set_start(trial, phase)
        _show_lineage(trial, phase)
        internals.save_soon(tune_controller)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """The trial that has waited longest, as chosen by Tune's FIFO scheduler.

        Raises:
            ConfigError: the search cannot continue.
        """
        self._searcher.check()
        while self._to_close:
            # Ray's state was saved before these trials ended. The journal has their outcome.
            tune_controller.stop_trial(self._to_close.pop())
        for trial in self._searcher.live.values():
            self._take_checkpoints(trial)
        return super().choose_trial_to_run(tune_controller)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Record a result. Returns STOP at the phase's end, if the stopper says so, or if the metric is not
        finite; otherwise CONTINUE."""
        phase = self._phase(trial)
        if phase is None or not phase.run.active:
            return str(TrialScheduler.STOP)
        self._take(trial, phase, result)
        step = int(result[STEP])
        if self._search.not_finite(phase.run.node) or self._has_last_result(phase):
            return str(TrialScheduler.STOP)
        reason = self._early_stop(trial, phase, result)
        if reason is not None:
            self._search.stop(phase.run.node, step, reason)
            return str(TrialScheduler.STOP)
        return str(TrialScheduler.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Record the last result. A result that ends its trial arrives only here."""
        phase = self._phase(trial)
        if phase is not None and phase.run.active and result.get(STEP):
            if int(result[STEP]) not in phase.steps:
                self._take(trial, phase, result)
            self._take_checkpoints(trial)
        self._leave(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """Note the error for the node's record. Ray may retry the trial or end it."""
        self._take_checkpoints(trial)
        text = internals.error_text(trial) or "the trial failed"
        self._searcher.failed_with(trial.trial_id, text[-_LOG_TAIL:])
        self._leave(tune_controller, trial)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """Handle a waiting trial that was stopped."""
        self._leave(tune_controller, trial)

    def debug_string(self) -> str:
        """One line for Tune's tables."""
        search = self._search
        best = search.tree.best
        score = "" if best is None or best.score is None else f", best node {best.id}"
        return f"TreeScheduler: {len(search.phases)} of {search.config.budget.runs} nodes{score}"

    # --- parts ----------------------------------------------------------------------------------------------

    def _phase(self, trial: Any) -> TunePhase | None:
        start = PhaseStart.of(trial.config)
        if start is None or start.node not in self._search.core.runs:
            return None
        return self._search.phase(start.node)

    @staticmethod
    def _has_last_result(phase: TunePhase) -> bool:
        n_steps = phase.start.n_steps
        return n_steps is not None and phase.last_step >= n_steps

    def _check_kept(self, trial: Any) -> None:
        limit = internals.checkpoint_limit(trial)
        if limit is not None and self._search.config.search.multi_stage:
            raise ConfigError(
                f"CheckpointConfig(num_to_keep={limit}) deletes checkpoints that other trials start from; "
                "leave num_to_keep out, or pass rules=SearchRules(multi_stage=False)."
            )

    def _check_samples(self, tune_controller: Any) -> None:
        samples, budget = tune_controller.search_alg.total_samples, self._search.config.budget.runs
        if samples < budget:
            raise ConfigError(
                f"TuneConfig(num_samples={samples}) ends the search after {samples} of its {budget} trials; "
                "write num_samples=-1, the budget of tree_search ends it."
            )

    def _open_journal(self, trial: Any) -> None:
        """Keep the journal next to Ray's state if the storage is a local or mounted directory. Otherwise
        Ray's own state carries the events, up to its last save."""
        if self._search.has_journal or trial.storage.storage_filesystem.type_name != "local":
            return
        self._directory = Path(internals.experiment_dir(trial))
        self._search.open_directory(self._directory)

    def _take(self, trial: Any, phase: TunePhase, result: Mapping[str, Any]) -> None:
        self._take_checkpoints(trial)
        checkpoint = internals.reported_checkpoint(trial, result)
        self._search.report(phase.run.node, int(result[STEP]), result, checkpoint)

    def _take_checkpoints(self, trial: Any) -> None:
        """Record the newest checkpoint of a class trainable, which Ray saves after the result. Skip it if the
        result says that its step has none, because Ray always saves at the end of a trial."""
        phase, newest = self._phase(trial), internals.latest_checkpoint(trial)
        if phase is None or newest is None or not phase.run.active:
            return
        path, metrics = newest
        step = metrics.get(STEP)
        if metrics.get(SHOULD_CHECKPOINT) is False:
            return
        if step in phase.steps and phase.checkpoints.get(step) != path:
            self._search.saved(phase.run.node, step, path)

    def _early_stop(self, trial: Any, phase: TunePhase, result: Mapping[str, Any]) -> str | None:
        search = self._search
        if not self._stops.reads_curves:
            return self._stops.reason(trial.trial_id, result, None, None)
        best = search.tree.best
        incumbent = None if best is None else search.view(best.id)
        return self._stops.reason(trial.trial_id, result, search.view(phase.run.node), incumbent)

    def _finish_as_saved(self, trial: Any, phase: TunePhase) -> None:
        """Finish a node whose trial has ended according to Ray but not according to the journal."""
        result = trial.last_result or {}
        if result.get(STEP) and int(result[STEP]) not in phase.steps:
            self._take(trial, phase, result)
        self._take_checkpoints(trial)
        self._search.end(phase.run.node, "it failed" if trial.status == Trial.ERROR else None)

    def _restore(self, trial: Any, phase: TunePhase) -> None:
        """Register with Ray what the search knows and Ray's saved state lacks."""
        known = {path for path, _ in internals.saved_checkpoints(trial)}
        for step, path in sorted(phase.checkpoints.items()):
            own = path.split("/", 1)[0] == trial.storage.trial_dir_name
            if own and path not in known:
                internals.add_checkpoint(trial, path, phase.steps[step].metrics)
        last = phase.steps.get(phase.last_step)
        if last is not None and last.step and int((trial.last_result or {}).get(STEP, 0)) < last.step:
            trial.update_last_result({**last.metrics, "config": trial.config})

    def _set_start(self, trial: Any, phase: TunePhase) -> None:
        """Let a trial without its own checkpoint start from the phase's newest one, or from its source's."""
        if internals.latest_checkpoint(trial) is not None:
            return
        if phase.newest is not None:  # from an earlier trial of this node, which Ray's state has lost
            step, path = phase.newest
            internals.start_from(trial, path, phase.steps[step].metrics)
        elif (at := phase.start.resume_from) is not None:
            source = self._search.phases[at.node]
            internals.start_from(trial, source.checkpoints[at.step], {})

    def _leave(self, tune_controller: Any, trial: Any) -> None:
        self._searcher.live.pop(trial.trial_id, None)
        internals.save_soon(tune_controller)


def release_at_end(tune_controller: Any, trial: Any) -> None:
    """Release, at the end, what a trial's trainable reserved outside Tune (verl_trainable.py)."""
    release = getattr(trial.get_trainable_cls(), "release_slots", None)
    if release is not None:
        internals.at_end(tune_controller, release)


def _show_lineage(trial: Any, phase: TunePhase) -> None:
    """Put the phase's place in the tree where Tune's trackers look for it.

    W&B and MLflow log a trial's configuration, TensorBoard its evaluated parameters. Call it once the trial
    has its folder, which is named after the evaluated parameters.
    """
    lineage = phase.lineage()
    trial.set_config({**trial.config, LINEAGE_KEY: lineage})
    trial.evaluated_params = {
        **(trial.evaluated_params or {}),
        **{f"{LINEAGE_KEY}/{name}": value for name, value in lineage.items()},
    }
