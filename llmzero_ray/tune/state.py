"""One search under Tune: the tree, its phases, and the records that determine both.

Every change is a record that is written, then applied. Equal records give equal searches, so a restored
experiment continues where it was. Loads no Ray.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from llmzero_ray.config.strategy_file import TUNE_FORMAT, TuneStrategy, TuneStrategyPhase
from llmzero_ray.errors import ConfigError
from llmzero_ray.records import (
    Diagnosis,
    FailureClass,
    Hyperparameters,
    MetricPoint,
    NodeKind,
    PhaseFailure,
    PhaseStatus,
    ResumeFrom,
    as_number,
    from_json,
    to_json,
)
from llmzero_ray.records.agents import NodeView
from llmzero_ray.records.metrics import curves_of
from llmzero_ray.search import SearchRules, TreeSearch
from llmzero_ray.search.tree_search import MAX_SCORE
from llmzero_ray.tune.phase_start import PhaseStart
from llmzero_ray.tune.record_log import RecordLog
from llmzero_ray.tune.trial_space import TrialSpace
from llmzero_ray.utils.files import replace_file
from llmzero_ray.utils.text import nearest

Mode = Literal["max", "min"]
_MOST_SHOWN = 80
"""Maximum shown characters of a metric that is not a number."""
STRATEGY_FILE = "strategy.yaml"
"""File in the experiment's directory with the best strategy so far."""


@dataclass(frozen=True, kw_only=True)
class ReportedStep:
    """One result of a trial."""

    step: int
    """Tune's `training_iteration`, which counts inside the phase, from 1."""
    score: float | None
    """Value of the metric (larger is better), or None if the result did not have it."""
    metrics: Mapping[str, Any]
    """Every plain value of the result."""


@dataclass(kw_only=True)
class TunePhase:
    """One node of the search, trained by Tune trials."""

    node: int
    kind: NodeKind
    on: int | None
    configuration: Hyperparameters | None = None
    """Configuration of the phase, or None while it is being proposed."""
    n_steps: int | None = None
    resume_from: ResumeFrom | None = None
    base_step: int = 0
    diagnosis: Diagnosis | None = None
    rationale: str = ""
    trials: list[str] = field(default_factory=list)
    """Ids of the trials that trained it: one, unless a state of Ray's was lost."""
    steps: dict[int, ReportedStep] = field(default_factory=dict)
    """Steps by number. A trial that continues from a checkpoint reports later steps again."""
    checkpoints: dict[int, str] = field(default_factory=dict)
    """Step -> path relative to the experiment's directory."""
    status: Literal["running"] | PhaseStatus = "running"
    reason: str = ""
    """Why it ended early or failed."""

    @property
    def best(self) -> ReportedStep | None:
        """Step with the highest score (the earliest one in a tie), or None without scores."""
        scored = [step for step in self.steps.values() if step.score is not None]
        return max(scored, key=lambda step: (step.score, -step.step), default=None)

    @property
    def newest(self) -> tuple[int, str] | None:
        """(step, path) of its last checkpoint."""
        return max(self.checkpoints.items(), default=None)

    @property
    def start(self) -> PhaseStart:
        """Phase description for its trial."""
        return PhaseStart(
            node=self.node,
            kind=self.kind,
            resume_from=self.resume_from,
            base_step=self.base_step,
            n_steps=self.n_steps,
        )

    def lineage(self) -> dict[str, int | str]:
        """Its place in the tree for trackers, without missing values."""
        found: dict[str, int | str | None] = {
            "node": self.node,
            "kind": self.kind,
            "parent": self.on,
            "resume_node": None if self.resume_from is None else self.resume_from.node,
            "resume_step": None if self.resume_from is None else self.resume_from.step,
            "base_step": self.base_step,
            "state": None if self.diagnosis is None else self.diagnosis.state,
            "rationale": self.rationale or None,
        }
        return {name: value for name, value in found.items() if value is not None}


class TuneSearch:
    """The search of one experiment.

    `metric` and `mode` name what is optimized, `phase_steps` the usual length of a phase in results (if None,
    trainables end by themselves). Scores are larger-is-better throughout: with mode `min` they are negated.
    """

    def __init__(
        self,
        *,
        search_id: str,
        metric: str,
        mode: Mode,
        trials: TrialSpace,
        rules: SearchRules,
        budget: int,
        phase_steps: int | None,
    ) -> None:
        self.search_id = search_id
        self.metric, self.mode = metric, mode
        self.trials, self.space, self.root = trials, trials.space, trials.root
        self.rules, self.budget, self.phase_steps = rules, budget, phase_steps
        self.records: list[dict[str, Any]] = []
        """All records so far, including those in the log."""
        self._log: RecordLog | None = None
        self.fatal: ConfigError | None = None
        """Error that makes the search pointless, raised by the next hook."""
        self._reset()

    def _reset(self) -> None:
        self.tree = TreeSearch(self.rules, self.budget)
        self.phases: dict[int, TunePhase] = {}
        self._views: dict[int, NodeView] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_log": None, "_views": {}}

    # --- records --------------------------------------------------------------------------------------------

    @property
    def has_log(self) -> bool:
        """Whether records are kept in a file."""
        return self._log is not None

    def open_log(self, directory: Path) -> None:
        """Keep the records in a file of this directory, and restore its existing records.

        Raises:
            StorageError: the file is damaged or cannot be written.
        """
        self._log = RecordLog(directory / f"llmzero-{self.search_id}.jsonl")
        earlier = self._log.records
        if len(earlier) > len(self.records) or earlier != self.records[: len(earlier)]:
            self.replay(earlier)
        for record in self.records[len(earlier) :]:
            self._log.append(record)

    def replay(self, records: list[dict[str, Any]]) -> None:
        """Restore, in place, the search that wrote these records."""
        self._reset()
        self.records = list(records)
        for record in records:
            self._apply(record)

    def _post(self, **record: Any) -> None:
        if self._log is not None:
            self._log.append(record)
        self.records.append(record)
        self._apply(record)

    def _apply(self, record: Mapping[str, Any]) -> None:
        values = {name: value for name, value in record.items() if name not in ("kind", "node")}
        getattr(self, f"_apply_{record['kind']}")(record["node"], **values)

    # --- what happens ---------------------------------------------------------------------------------------

    def begin(self, action: NodeKind, on: int | None) -> TunePhase:
        """Begin a decided node, which has no configuration yet."""
        node = max(self.phases, default=-1) + 1
        self._post(kind="begin", node=node, action=action, on=on)
        return self.phases[node]

    def _apply_begin(self, node: int, action: NodeKind, on: int | None) -> None:
        self.tree.create(action, on, node)
        self.phases[node] = TunePhase(node=node, kind=action, on=on)

    def plan(
        self,
        node: int,
        configuration: Hyperparameters,
        n_steps: int | None,
        resume_from: ResumeFrom | None = None,
        diagnosis: Diagnosis | None = None,
        rationale: str = "",
    ) -> None:
        """Give a begun node its configuration."""
        self._post(
            kind="plan",
            node=node,
            configuration=dict(configuration),
            n_steps=n_steps,
            source=None if resume_from is None else [resume_from.node, resume_from.step],
            diagnosis=to_json(diagnosis),
            rationale=rationale,
        )

    def _apply_plan(
        self, node: int, configuration: Any, n_steps: Any, source: Any, diagnosis: Any, rationale: str
    ) -> None:
        phase = self.phases[node]
        # A sequence comes back from JSON as a list.
        phase.configuration = {
            key: tuple(value) if isinstance(value, list) else value for key, value in configuration.items()
        }
        phase.n_steps = n_steps
        phase.diagnosis, phase.rationale = from_json(diagnosis), rationale
        if source is not None:
            phase.resume_from = ResumeFrom(node=source[0], step=source[1])
            phase.base_step = self.phases[source[0]].base_step + source[1]
            self.tree.set_resume_from(node, *source)

    def assign(self, node: int, trial_id: str) -> None:
        """Note which trial trains a node."""
        self._post(kind="trial", node=node, trial=trial_id)

    def _apply_trial(self, node: int, trial: str) -> None:
        self.phases[node].trials.append(trial)

    def report(self, node: int, step: int, result: Mapping[str, Any], checkpoint: str | None) -> None:
        """Record a result of a running node. `result` is flat."""
        texts = {key: value for key, value in result.items() if isinstance(value, str)}
        if as_number(value := result.get(self.metric)) is None and value is not None:
            texts[self.metric] = str(value)[:_MOST_SHOWN]
        metrics = {**texts, **numbers_of(result)}
        # Tune repeats the configuration in every result.
        kept = {key: value for key, value in metrics.items() if not key.startswith("config/")}
        self._post(kind="result", node=node, step=step, metrics=kept, checkpoint=checkpoint)

    def _apply_result(self, node: int, step: int, metrics: dict[str, Any], checkpoint: str | None) -> None:
        phase = self.phases[node]
        for later in [known for known in phase.steps if known >= step]:
            # It was trained again from an earlier checkpoint: what was known of these steps is gone.
            del phase.steps[later]
            phase.checkpoints.pop(later, None)
        value = as_number(metrics.get(self.metric))
        score = None
        if value is not None and abs(value) <= MAX_SCORE:
            score = float(value) if self.mode == "max" else -float(value)
        phase.steps[step] = ReportedStep(step=step, score=score, metrics=metrics)
        if checkpoint is not None:
            phase.checkpoints[step] = checkpoint

    def saved(self, node: int, step: int, checkpoint: str) -> None:
        """Record a checkpoint of a step that was reported before."""
        self._post(kind="checkpoint", node=node, step=step, checkpoint=checkpoint)

    def _apply_checkpoint(self, node: int, step: int, checkpoint: str) -> None:
        self.phases[node].checkpoints[step] = checkpoint

    def end(self, node: int, status: PhaseStatus, reason: str = "") -> None:
        """Finish a running node. It has failed if its last metric cannot be compared."""
        before = self.tree.best
        if status == "completed" and (broken := self.not_finite(node)):
            status, reason = "failed", broken
        self._post(kind="end", node=node, status=status, reason=reason)
        if self._log is not None and self.tree.best is not before:
            replace_file(self._log.path.with_name(STRATEGY_FILE), self.strategy() or "")
        self._check_outcome(self.phases[node])

    def not_finite(self, node: int) -> str | None:
        """Why the metric of a node's newest step cannot be compared. None if it can, or if the step has
        none."""
        steps = self.phases[node].steps
        newest = steps[max(steps)] if steps else None
        value = None if newest is None else as_number(newest.metrics.get(self.metric))
        if newest is None or value is None or abs(value) <= MAX_SCORE:
            return None
        return f"not finite: {self.metric} is {value} at step {newest.step}"

    def _apply_end(self, node: int, status: PhaseStatus, reason: str) -> None:
        phase = self.phases[node]
        phase.status, phase.reason = status, reason
        best = phase.best
        score, step = (None, None) if best is None else (best.score, best.step)
        self.tree.tell(node, status, score, step)

    def _check_outcome(self, phase: TunePhase) -> None:
        """Check whether a successful phase shows that the search is pointless."""
        if phase.status == "failed" or not phase.steps:
            return
        if phase.best is not None:
            self._check_checkpoints(phase)
        elif not any(other.best for other in self.phases.values()):
            self.fatal = self._no_metric(phase)

    def _no_metric(self, phase: TunePhase) -> ConfigError:
        values = [step.metrics[self.metric] for step in phase.steps.values() if self.metric in step.metrics]
        if values:
            return ConfigError(
                f"metric {self.metric!r} of trial {phase.trials[-1]} is no number but {values[-1]!r}; report "
                "a number with tune.report, or name another metric in tree_search(metric=...)."
            )
        reported = sorted({name for step in phase.steps.values() for name in numbers_of(step.metrics)})
        near = nearest(self.metric, reported)
        hint = f" Did you mean {near!r}?" if near else ""
        return ConfigError(
            f"metric {self.metric!r} is in none of the {len(phase.steps)} results of trial "
            f"{phase.trials[-1]}, which have {', '.join(reported)}.{hint} Report it with tune.report, or "
            "name another one in tree_search(metric=...)."
        )

    def _check_checkpoints(self, phase: TunePhase) -> None:
        if self.rules.multi_stage and not any(p.checkpoints for p in self.phases.values()):
            self.fatal = ConfigError(
                f"trial {phase.trials[-1]} ended without a checkpoint, so that no phase can go on from it. "
                "A function trainable reports one with tune.report(..., checkpoint=...); a class trainable "
                "needs RunConfig(checkpoint_config=CheckpointConfig(checkpoint_frequency=1)). For a search "
                "that always starts from scratch pass rules=SearchRules(multi_stage=False)."
            )

    # --- reading --------------------------------------------------------------------------------------------

    def running(self) -> Iterator[TunePhase]:
        """Phases that have begun and not ended, by number."""
        return (phase for phase in self.phases.values() if phase.status == "running")

    def view(self, node: int) -> NodeView:
        """The agents' view of a node."""
        known = self._views.get(node)
        if known is not None:
            return known
        phase = self.phases[node]
        best, at = phase.best, phase.resume_from
        curves = curves_of(
            MetricPoint(
                node=node,
                attempt=0,
                step=step.step,
                global_step=phase.base_step + step.step,
                wall_s=0.0,
                metrics={name: float(value) for name, value in numbers_of(step.metrics).items()},
                val_score=step.score,
            )
            for step in self._with_start(phase)
        )
        view = NodeView(
            node=node,
            kind=phase.kind,
            status="pending" if phase.configuration is None else phase.status,
            hyperparameters=phase.configuration or {},
            n_steps=phase.n_steps or max(phase.steps, default=0),
            base_step=phase.base_step,
            score=None if best is None else best.score,
            best_step=None if best is None else best.step,
            stop_reason=phase.reason if phase.status == "early_stopped" else "",
            curves=curves,
            failure=None if phase.status != "failed" else _failure(phase),
            diagnosis=phase.diagnosis,
            parent=phase.on,
            resume_from=at,
        )
        if phase.status != "running":
            self._views[node] = view
        return view

    def _with_start(self, phase: TunePhase) -> Iterator[ReportedStep]:
        """Steps of a phase, preceded by the score of its start checkpoint as step 0."""
        at = phase.resume_from
        if at is not None:
            found = self.phases[at.node].steps.get(at.step)
            if found is not None:
                yield ReportedStep(step=0, score=found.score, metrics={})
        yield from phase.steps.values()

    def strategy(self) -> str | None:
        """Best strategy so far as the text of a strategy.yaml for `StrategyReplay`. None if there is no score
        yet.

        Steps count inside a phase; a phase is left at its `cut_step`.
        """
        best = self.tree.best
        if best is None or best.score is None:
            return None
        phases = tuple(
            TuneStrategyPhase(
                node=cut.node,
                trial=self.phases[cut.node].trials[-1],
                cut_step=cut.step or 0,
                config=self.trials.trial_config(self.phases[cut.node].configuration or {}),
            )
            for cut in self.tree.recipe(best.id)
        )
        value = best.score if self.mode == "max" else -best.score
        return TuneStrategy(
            format=TUNE_FORMAT, metric=self.metric, mode=self.mode, value=value, phases=phases
        ).to_yaml()


def numbers_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and switches of a result as Python values."""
    found = {key: as_number(value) for key, value in result.items()}
    return {key: value for key, value in found.items() if value is not None}


def failed_text(failure: PhaseFailure) -> str:
    """Last line of a trial's error, from which the search determines the failure class."""
    return f"the phase failed ({failure.failure_class}): {failure.cause}"


_FAILED = re.compile(r"the phase failed \((\w+)\): (.*)")


def _failure(phase: TunePhase) -> PhaseFailure:
    best = phase.best
    lines = phase.reason.strip().splitlines()
    cause = lines[-1] if lines else "the trial ended with an error"
    named = _FAILED.search(cause)
    failure_class: Any = "nan" if "not finite" in phase.reason else "engine"
    if named is not None and named[1] in get_args(FailureClass):
        failure_class, cause = named.groups()
    return PhaseFailure(
        node=phase.node,
        failure_class=failure_class,
        cause=cause,
        log_tail=phase.reason,
        steps_done=max(phase.steps, default=0),
        best_score=None if best is None else best.score,
        best_step=None if best is None else best.step,
    )
