"""One search under Tune: the coordinator's core and journal. Tune's trials are the attempts at its runs.

The events are those of any search, so `llmzero report` opens the directory `llmzero-ID` of an experiment. A
restored experiment replays its journal. Loads no Ray.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from llmzero_ray.config import SearchConfig
from llmzero_ray.config.strategy_file import TUNE_FORMAT, TuneStrategy, TuneStrategyPhase
from llmzero_ray.coordinator import CoordinatorCore, apply_recorded, build_request, node_view
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters import Space
from llmzero_ray.journal import Journal
from llmzero_ray.records import (
    Checkpoint,
    Event,
    FailureClass,
    Hyperparameters,
    MetricPoint,
    PhaseFailure,
    PhaseResult,
    ResumeFrom,
    StopDecision,
    adapter_name,
    as_number,
    read_adapter_name,
)
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.agents import ErrorRequest, NodeView, ProposalRequest
from llmzero_ray.records.metrics import Curves, curves_of
from llmzero_ray.search import SearchMethod, SearchNode
from llmzero_ray.search.base import MAX_SCORE
from llmzero_ray.storage import SearchPaths, SearchStorage
from llmzero_ray.storage.metric_files import MetricWriter, load_points
from llmzero_ray.tune.phase_start import PhaseStart
from llmzero_ray.tune.trial_space import TrialSpace
from llmzero_ray.utils.files import replace_file
from llmzero_ray.utils.text import nearest

log = logging.getLogger(__name__)
Mode = Literal["max", "min"]
NO_LIMIT = 1_000_000
"""Limit of rows, tokens and steps that no trainable reaches. Only the space's bounds apply."""
STRATEGY_FILE = "strategy.yaml"
"""File in the experiment's directory with the best strategy so far."""
_MOST_SHOWN = 80
"""Maximum shown characters of a metric that is not a number."""
_TRIAL = "trial-"
"""Prefix of the source of an event that a trial caused."""


@dataclass(frozen=True, kw_only=True)
class TunePhase:
    """A node of the search, with what its trials have reported so far."""

    run: PhaseRun
    """Its state in the core."""
    trials: list[str]
    """Ids of the trials that trained it. More than one only if Ray's state of a trial was lost."""
    steps: dict[int, MetricPoint]
    """Results by step inside the phase, from 1; step 0 is the checkpoint that it starts from."""
    checkpoints: dict[int, str]
    """Step -> path relative to the experiment's directory."""

    @property
    def configuration(self) -> Hyperparameters:
        """Configuration of the phase, empty while it is being proposed."""
        return {} if self.run.spec is None else self.run.spec.hyperparameters

    @property
    def last_step(self) -> int:
        """Step of the newest result, or 0."""
        return max(self.steps, default=0)

    @property
    def best(self) -> MetricPoint | None:
        """Step with the highest score (the earliest one in a tie), or None without scores."""
        scored = [one for one in self.steps.values() if one.step and one.val_score is not None]
        return max(scored, key=lambda one: (one.val_score or 0.0, -one.step), default=None)

    @property
    def newest(self) -> tuple[int, str] | None:
        """(step, path) of its last checkpoint."""
        return max(self.checkpoints.items(), default=None)

    @property
    def reason(self) -> str:
        """Reason why it ended early or failed."""
        outcome = self.run.outcome
        return outcome.log_tail if isinstance(outcome, PhaseFailure) else self.run.stop_reason or ""

    @property
    def start(self) -> PhaseStart:
        """Phase description for its trial. `n_steps` is None if the trainable ends by itself."""
        spec = self.run.spec
        return PhaseStart(
            node=self.run.node,
            kind=self.run.kind,
            resume_from=None if spec is None else spec.resume_from,
            base_step=self.run.base_step,
            n_steps=None if spec is None or spec.n_steps == NO_LIMIT else spec.n_steps,
        )

    def lineage(self) -> dict[str, int | str]:
        """Its place in the tree for trackers, without missing values."""
        start, proposal = self.start, self.run.proposal
        at = start.resume_from
        found: dict[str, int | str | None] = {
            "node": start.node,
            "kind": start.kind,
            "parent": self.run.on,
            "resume_node": None if at is None else at.node,
            "resume_step": None if at is None else at.step,
            "base_step": start.base_step,
            "state": None if proposal is None else proposal.diagnosis.state,
            "rationale": self.run.note if proposal is None else proposal.rationale,
        }
        return {name: value for name, value in found.items() if value not in (None, "")}


class TuneSearch:
    """The search of one experiment.

    `metric` and `mode` name what is optimized, `phase_steps` the usual length of a phase in results (if None,
    trainables end by themselves). Scores are larger-is-better throughout: with mode `min` they are negated.
    """

    def __init__(
        self, *, config: SearchConfig, metric: str, mode: Mode, trials: TrialSpace, phase_steps: int | None
    ) -> None:
        self.config, self.metric, self.mode = config, metric, mode
        self.trials, self.phase_steps = trials, phase_steps
        self.fatal: ConfigError | None = None
        """Error that makes the search pointless, raised by the next hook."""
        self._storage: SearchStorage | None = None
        self._begin(())

    def _begin(
        self,
        events: Iterable[Event],
        points: Mapping[int, dict[int, MetricPoint]] | None = None,
        checkpoints: Mapping[int, dict[int, str]] | None = None,
    ) -> None:
        """Set the state to the one after `events`, with these results."""
        self._lock = threading.RLock()
        self._journal: Journal | None = None
        self._writers: dict[int, tuple[int, MetricWriter]] = {}
        self._curves: dict[int, Curves] = {}
        self.events: list[Event] = []
        """All events so far, those in the journal included."""
        self.to_ask: list[cmd.Propose | cmd.Analyze] = []
        """Proposals and repairs that the search waits for and that have not been requested yet."""
        self.trial_ids: dict[int, list[str]] = defaultdict(list)
        self.points = defaultdict(dict, points or {})
        self.checkpoints = defaultdict(dict, checkpoints or {})
        root = Path(self.config.name) if self._storage is None else self._storage.paths.root
        self.core = CoordinatorCore(SearchPaths(root=root), self.space)
        for number, event in enumerate(events, start=1):
            apply_recorded(self.core, event, number)
            self._note(event)

    def __getstate__(self) -> dict[str, Any]:
        names = ("config", "metric", "mode", "trials", "phase_steps", "fatal")
        return {**{name: getattr(self, name) for name in names}, "results": self.results()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        results = state.pop("results")
        self.__dict__.update(state)
        self._storage = None
        self._begin(*results)

    # --- the journal ----------------------------------------------------------------------------------------

    @property
    def has_journal(self) -> bool:
        """Whether events are kept in files."""
        return self._journal is not None

    def results(self) -> tuple[list[Event], dict[int, dict[int, MetricPoint]], dict[int, dict[int, str]]]:
        """(events, results, checkpoints) so far, for `restore`."""
        return self.events, dict(self.points), dict(self.checkpoints)

    def open_directory(self, directory: Path) -> None:
        """Keep events and results in this directory, and restore those that are there.

        Raises:
            JournalError: the journal is damaged.
            StorageError: a file cannot be written.
        """
        self._storage = storage = SearchStorage(directory, self.config.name)
        journal = Journal(storage.paths.journal)
        if journal.history:
            self._begin(journal.history)
            self._journal = journal
            for node in self.core.runs:
                self.points[node] = {point.step: point for point in load_points(storage, node)}
                self.checkpoints[node] = self._stored_checkpoints(node)
            self._take_over(journal.epoch)
        else:
            self.core.paths = storage.paths
            storage.write_config(self.core.config)
            for event in self.events:
                journal.append(event)
            self._journal = journal

    def restore(self, results: Any) -> None:
        """Restore what `results` returned in another process."""
        self._begin(*results)
        self._take_over(0)

    def _take_over(self, epoch: int) -> None:
        """Begin another attempt at each phase that an earlier driver was training."""
        if self.core.stage != "finished":
            self.post(ev.SearchPaused(reason="its driver ended"))
            self.post(ev.CoordinatorStarted(epoch=epoch, host=socket.gethostname(), pid=os.getpid()))
            if not self.core.runs:  # the driver died before the root was recorded
                self.offer_slots(1)

    def post(self, event: Event) -> None:
        """Make an event durable and act on it. May be called from any thread.

        Raises:
            StorageError: it cannot be written.
        """
        with self._lock:
            for command in _finished(self.core.record(event, self._append)):
                if isinstance(command, cmd.Propose | cmd.Analyze):
                    self.to_ask.append(command)
                elif isinstance(command, cmd.PushIncumbent) and self._storage is not None:
                    path = self._storage.paths.root.with_name(STRATEGY_FILE)
                    replace_file(path, self.strategy() or "")
                elif isinstance(command, cmd.WriteOutcome):
                    self.post(ev.OutcomeWritten())

    async def _append(self, event: Event) -> Event | None:
        if self._journal is None:
            written: Event | None = dataclasses.replace(event, time=time.time())
        else:
            written = self._journal.append(event)
        if written is not None:
            self._note(written)
        return written

    def _note(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, ev.PhaseStarted):
            trial, known = event.source.removeprefix(_TRIAL), self.trial_ids[event.node]
            if trial not in known[-1:]:  # otherwise the same trial begins another attempt
                known.append(trial)
        elif isinstance(event, ev.ProposalRefused):
            log.warning("node=%d proposal %d refused: %s", event.node, event.tries, event.message[:500])

    def _stored_checkpoints(self, node: int) -> dict[int, str]:
        assert self._storage is not None
        found = {}
        for file in self._storage.paths.checkpoints(node).glob("step_*"):
            step, attempt = read_adapter_name(file.name) or (0, 0)
            if step in self.points[node] and self.points[node][step].attempt == attempt:
                found[step] = file.read_text()
        return {step: path for step, path in sorted(found.items()) if path}  # an empty file: its writer died

    # --- what happens ---------------------------------------------------------------------------------------

    def offer_slots(self, limit: int | None) -> None:
        """Allow `limit` phases at once. If None, allow one more than there are."""
        if self.core.started is None:
            count = limit or self.config.budget.runs
            slots = self.config.slots.model_copy(update={"count": count})
            self.config = self.config.model_copy(update={"slots": slots})
            facts = {"name": self.metric, "n_train": NO_LIMIT}
            self.post(
                ev.SearchStarted(config=self.config.to_json(), task=facts, root=self.trials.root, versions={})
            )
        closed = [slot for slot in self.core.open_slots if not slot.ready]
        if limit is None:
            idle = any(slot.ready and slot.idle for slot in self.core.open_slots)
            closed = [slot for slot in closed if slot.node is not None] or closed[: not idle]
        for slot in closed:
            self.post(ev.SlotReady(slot=slot.index))

    def assign(self, node: int, trial_id: str) -> None:
        """Note which trial trains a planned node."""
        run = self.core.runs[node]
        if not run.started:
            self.post(
                ev.PhaseStarted(
                    node=node,
                    slot=run.slot,
                    phase_attempt=run.attempt,
                    source=f"{_TRIAL}{trial_id}",
                    attempt=run.attempt,
                    sequence=node,
                )
            )

    def begin_again(self, node: int) -> None:
        """Begin another attempt at a running node whose trial is lost or went back to a checkpoint."""
        slot = self.core.runs[node].slot
        self.post(ev.SlotClosed(slot=slot))
        self.post(ev.SlotReady(slot=slot))

    def report(self, node: int, step: int, result: Mapping[str, Any], checkpoint: str | None) -> None:
        """Record a result of a running node. `result` is flat.

        Raises:
            StorageError: it cannot be written.
        """
        run, points = self.core.runs[node], self.points[node]
        if any(one.step >= step and one.attempt == run.attempt for one in points.values()):
            trial = self.trial_ids[node][-1]
            self.begin_again(node)
            self.assign(node, trial)
        for later in [known for known in points if known >= step]:
            # The trial went back to an earlier checkpoint, so the results of these steps no longer hold.
            del points[later]
            self.checkpoints[node].pop(later, None)
        value = as_number(given := result.get(self.metric))
        if value is None and given is not None:
            self._odd = str(given)[:_MOST_SHOWN]
        score = None
        if value is not None and abs(value) <= MAX_SCORE:
            score = float(value) if self.mode == "max" else -float(value)
        # Tune repeats the configuration in every result.
        metrics = {key: value for key, value in numbers_of(result).items() if not key.startswith("config/")}
        if not points and run.spec is not None and run.spec.resume_from is not None:
            at = run.spec.resume_from
            source = self.points[at.node].get(at.step)
            self._add(run, 0, None if source is None else source.val_score, {}, at)
        self._add(run, step, score, metrics)
        if checkpoint is not None:
            self.saved(node, step, checkpoint)

    _odd: str | None = None
    """Newest value of the metric that was not a number."""

    def _add(
        self,
        run: Any,
        step: int,
        score: float | None,
        metrics: Mapping[str, Any],
        taken_from: ResumeFrom | None = None,
    ) -> None:
        point = MetricPoint(
            node=run.node,
            attempt=run.attempt,
            step=step,
            global_step=run.base_step + step,
            wall_s=float(metrics.get("time_total_s", 0.0)),
            metrics=metrics,
            val_score=score,
            taken_from=taken_from,
        )
        self.points[run.node][step] = point
        if self._storage is None:
            return
        attempt, writer = self._writers.get(run.node, (None, None))
        if writer is None or attempt != run.attempt:
            writer = MetricWriter(self._storage, run.node, run.attempt)
            self._writers[run.node] = run.attempt, writer
        writer.write(point)

    def saved(self, node: int, step: int, checkpoint: str) -> None:
        """Record a checkpoint of a step that was reported before."""
        self.checkpoints[node][step] = checkpoint
        if self._storage is not None:
            folder = self._storage.paths.checkpoints(node)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / adapter_name(step, self.points[node][step].attempt)).write_text(checkpoint)

    def stop(self, node: int, step: int, reason: str) -> None:
        """Record that the stopper ends a node's phase."""
        decision = StopDecision(stop=True, reason=f"step {step}: {reason}", rule="stopper")
        attempt = self.core.runs[node].attempt
        self.post(ev.VerdictPosted(node=node, phase_attempt=attempt, step=step, decision=decision))

    def end(self, node: int, failed: str | None = None) -> None:
        """Finish a running node. It counts as failed if `failed` is given, an error text, or if its last
        metric cannot be compared."""
        phase, run = self.phase(node), self.core.runs[node]
        failed = self.not_finite(node) if failed is None else failed
        best, start = phase.best, phase.steps.get(0)
        common: dict[str, Any] = {
            "node": node,
            "steps_done": phase.last_step,
            "best_score": None if best is None else best.val_score,
            "best_step": None if best is None else best.step,
            "start_score": None if start is None else start.val_score,
            "start_from": None if start is None else start.taken_from,
            "checkpoints": tuple(
                Checkpoint(step=step, path=path, val_score=phase.steps[step].val_score)
                for step, path in sorted(phase.checkpoints.items())
            ),
            "wall_s": phase.steps[phase.last_step].wall_s if phase.steps else 0.0,
            "gpu_hours": 0.0,
            "warm": False,
        }
        outcome: PhaseResult | PhaseFailure
        if failed is not None:
            failure_class, cause = _failure(failed)
            outcome = PhaseFailure(failure_class=failure_class, cause=cause, log_tail=failed, **common)
        else:
            outcome = PhaseResult(
                status="completed" if run.stop_reason is None else "early_stopped",
                stop_reason=run.stop_reason or "n_steps",
                final_score=None,
                train_wall_s=common["wall_s"],
                **common,
            )
        self.post(ev.phase_ended(node, run.attempt, outcome))
        if node in self._writers:
            self._writers.pop(node)[1].__exit__()
        self._check_outcome(self.phase(node))

    def not_finite(self, node: int) -> str | None:
        """Reason why the metric of a node's newest step cannot be compared. None if it can, or if the step
        has none."""
        newest = self.points[node].get(max(self.points[node], default=0))
        value = None if newest is None else newest.metrics.get(self.metric)
        if newest is None or value is None or abs(value) <= MAX_SCORE:
            return None
        return f"not finite: {self.metric} is {value} at step {newest.step}"

    def _check_outcome(self, phase: TunePhase) -> None:
        """Set `fatal` if a successful phase shows that the search is pointless: no metric, or no
        checkpoint."""
        if phase.run.status == "failed" or not phase.steps:
            return
        if phase.best is None:
            if not any(other.best for other in self.phases.values()):
                self.fatal = self._no_metric(phase)
        elif self.config.search.multi_stage and not any(self.checkpoints.values()):
            self.fatal = ConfigError(
                f"trial {phase.trials[-1]} ended without a checkpoint, so no phase can continue from it. "
                "A function trainable reports one with tune.report(..., checkpoint=...); a class trainable "
                "needs RunConfig(checkpoint_config=CheckpointConfig(checkpoint_frequency=1)). For a search "
                "that always starts from scratch pass rules=SearchRules(multi_stage=False)."
            )

    def _no_metric(self, phase: TunePhase) -> ConfigError:
        if self._odd is not None:
            return ConfigError(
                f"metric {self.metric!r} of trial {phase.trials[-1]} is not a number but {self._odd!r}; "
                "report a number with tune.report, or name another metric in tree_search(metric=...)."
            )
        reported = sorted({name for step in phase.steps.values() for name in step.metrics})
        near = nearest(self.metric, reported)
        hint = f" Did you mean {near!r}?" if near else ""
        return ConfigError(
            f"metric {self.metric!r} is in none of the {len(phase.steps)} results of trial "
            f"{phase.trials[-1]}, which have {', '.join(reported)}.{hint} Report it with tune.report, or "
            "name another one in tree_search(metric=...)."
        )

    # --- reading --------------------------------------------------------------------------------------------

    @property
    def space(self) -> Space:
        """Space of the hyper-parameters."""
        return self.trials.space

    @property
    def tree(self) -> SearchMethod[SearchNode]:
        """The tree, once the search has begun."""
        return self.core.search

    @property
    def phases(self) -> dict[int, TunePhase]:
        """All nodes by number."""
        return {node: self.phase(node) for node in self.core.runs}

    def phase(self, node: int) -> TunePhase:
        """A node by number."""
        return TunePhase(
            run=self.core.runs[node],
            trials=self.trial_ids[node],
            steps=self.points[node],
            checkpoints=self.checkpoints[node],
        )

    def node_of(self, trial_id: str) -> int | None:
        """Node that a trial trains as its newest one, or None."""
        return next((node for node, ids in self.trial_ids.items() if ids and ids[-1] == trial_id), None)

    @property
    def waiting(self) -> TunePhase | None:
        """The first node that has a configuration and no trial."""
        runs = (run for run in self.core.runs.values() if run.stage == "planned" and not run.started)
        return next((self.phase(run.node) for run in runs), None)

    @property
    def trains(self) -> bool:
        """Whether a trial trains a node or waits to do so."""
        return any(run.active and run.started for run in self.core.runs.values())

    def view(self, node: int) -> NodeView:
        """The agents' view of a node, with its best score so far."""
        return self._as_trained(node_view(self.core, node, self._curves_of))

    def _as_trained(self, view: NodeView) -> NodeView:
        phase = self.phase(view.node)
        if view.status == "running" and phase.best is not None:
            view = dataclasses.replace(view, score=phase.best.val_score, best_step=phase.best.step)
        return dataclasses.replace(view, n_steps=phase.last_step) if view.n_steps == NO_LIMIT else view

    def request(self, command: cmd.Propose | cmd.Analyze) -> ProposalRequest | ErrorRequest:
        """Request to a proposer, or to an error analyzer."""
        found = build_request(self.core, command, self._curves_of)
        if self.phase_steps is not None:
            return found
        task = dataclasses.replace(found.task, phase_steps=max(self.phase(0).last_step, 1))
        if isinstance(found, ErrorRequest):
            return dataclasses.replace(found, task=task, failed=self._as_trained(found.failed))
        return dataclasses.replace(found, task=task, on=self._as_trained(found.on))

    def _curves_of(self, node: int) -> Curves:
        found = self._curves.get(node)
        if found is None:
            found = curves_of(self.points[node].values())
            if self.core.runs[node].outcome is not None:
                self._curves[node] = found
        return found

    def write_call(self, *call: Any) -> None:
        """Store the record of a language model's call in its node's directory."""
        if self._storage is not None:
            self._storage.write_call(*call)

    def strategy(self) -> str | None:
        """Best strategy so far as the text of a strategy.yaml for `StrategyRetraining`. None if there is no
        score yet.

        Steps count from the phase's start. The strategy leaves each phase at its `cut_step`.
        """
        best = self.tree.best
        if best is None or best.score is None:
            return None
        phases = tuple(
            TuneStrategyPhase(
                node=cut.node,
                trial=self.trial_ids[cut.node][-1],
                cut_step=cut.step or 0,
                config=self.trials.trial_config(self.phase(cut.node).configuration),
            )
            for cut in self.tree.cuts(best.id)
        )
        value = best.score if self.mode == "max" else -best.score
        return TuneStrategy(
            format=TUNE_FORMAT, metric=self.metric, mode=self.mode, value=value, phases=phases
        ).to_yaml()


def _finished(coroutine: Coroutine[Any, Any, list[cmd.Command]]) -> list[cmd.Command]:
    """Result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        commands: list[cmd.Command] = done.value
        return commands
    raise AssertionError("the coroutine waits for something")


def numbers_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and switches of a result as Python values."""
    found = {key: as_number(value) for key, value in result.items()}
    return {key: value for key, value in found.items() if value is not None}


def failed_text(failure: PhaseFailure) -> str:
    """Text for the last line of a trial's error, from which the search reads the failure class."""
    return f"the phase failed ({failure.failure_class}): {failure.cause}"


_FAILED = re.compile(r"the phase failed \((\w+)\): (.*)")


def _failure(text: str) -> tuple[FailureClass, str]:
    """(class, cause) of a trial's error."""
    lines = text.strip().splitlines()
    cause = lines[-1] if lines else "the trial ended with an error"
    named = _FAILED.search(cause)
    if named is not None and named[1] in get_args(FailureClass):
        failure_class: Any = named[1]
        return failure_class, named[2]
    return ("nan" if "not finite" in text else "engine"), cause
