"""Facts for a report, read once from a search's directory: the replayed journal and the metric series.

No actors are called, so a report can be written while a search runs, after it, or years later elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, TypeVar, cast

from llmzero_ray.config import SearchConfig
from llmzero_ray.coordinator import started_core
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.coordinator.replay import DecisionCheck, DecisionChecks
from llmzero_ray.coordinator.runs import FinalJob, PhaseRun, without_infinities
from llmzero_ray.hyperparameters import canonical, diff
from llmzero_ray.hyperparameters.verl_keys import ROLLOUT_N, TRAIN_BATCH
from llmzero_ray.journal import read_all
from llmzero_ray.records import (
    Event,
    Hyperparameters,
    HyperparameterValue,
    ItemOutcome,
    PhaseFailure,
    PhaseResult,
    ResumeFrom,
)
from llmzero_ray.records.events import REFERENCE, FinalWhat
from llmzero_ray.records.metrics import Curves, Score, mean_score, score_without_items
from llmzero_ray.search import SearchNode
from llmzero_ray.storage import SearchPaths, SearchStorage
from llmzero_ray.storage.metric_files import load_curves, load_items, parquet_rows

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class PathPhase:
    """One phase of the best strategy."""

    number: int
    """Number of the phase, from 1."""
    run: PhaseRun
    cut: int
    """Last step of the phase in the strategy: where the next phase resumes, or the phase's best step."""

    @property
    def node(self) -> int:
        """The phase's node."""
        return self.run.node

    @property
    def begin(self) -> int:
        """Global step that the phase starts from."""
        return self.run.base_step

    @property
    def end(self) -> int:
        """Global step of `cut`."""
        return self.run.base_step + self.cut


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A hyper-parameter whose value differs from that of the phase that was continued."""

    key: str
    old: HyperparameterValue
    new: HyperparameterValue
    reason: str
    """Reason given by the agent that changed it, or else the origin of the value."""


class SearchFacts:
    """Facts of one search, read from its directory, or as of the last poll of a follower.

    `base_model_id` is the base model's id on the Hugging Face Hub, if the configuration does not have it.
    `before` are earlier facts of the same search: data of phases that had already ended is not read again,
    and decisions that were already checked are not checked again.

    Raises:
        ConfigError: the directory holds no search.
        JournalError: its journal is damaged.
    """

    def __init__(
        self,
        search: SearchStorage | Follower | str | Path,
        *,
        base_model_id: str | None = None,
        before: SearchFacts | None = None,
    ) -> None:
        self._base_model_id = base_model_id
        self.events: tuple[Event, ...]
        self.ended: Mapping[int, PhaseResult | PhaseFailure]
        """Outcomes of ended phases, including the reference's."""
        if isinstance(search, Follower):
            self.storage, self.events, self.core = search.storage, search.events, search.core
        else:
            self.storage = search if isinstance(search, SearchStorage) else SearchStorage.at(search)
            self.events = read_all(self.storage.journal_to_read())
            self.core = started_core(self.events, self.storage.paths.root)
        self.paths: SearchPaths = self.storage.paths
        self._checks: DecisionChecks = DecisionChecks(self.paths.root) if before is None else before._checks
        self._curves: dict[int, Curves] = {}
        self._made: dict[tuple[int, Callable[..., Any]], tuple[Any, Any]] = {}
        self._items: dict[int, dict[int, tuple[ItemOutcome, ...]]] = {}
        self._item_scores: dict[int, dict[int | None, Score | None]] = {}
        self._test_items: dict[str, tuple[ItemOutcome, ...]] = {}
        self.ended = {n: run.outcome for n, run in self.core.runs.items() if run.outcome is not None}
        if before is not None:
            kept = {node for node, outcome in self.ended.items() if before.ended.get(node) == outcome}
            self._curves = {node: one for node, one in before._curves.items() if node in kept}
            self._made = {key: one for key, one in before._made.items() if key[0] in kept}
            self._items = {node: one for node, one in before._items.items() if node in kept}
            self._item_scores = {node: one for node, one in before._item_scores.items() if node in kept}

    # --- configuration --------------------------------------------------------------------------------------

    @property
    def config(self) -> SearchConfig:
        """The resolved configuration."""
        return self.core.config

    @property
    def task(self) -> Mapping[str, Any]:
        """Facts about the task, as recorded at the start."""
        assert self.core.started is not None
        return self.core.started.task

    @property
    def agents(self) -> Mapping[str, Any]:
        """Facts about the agents that were frozen with the search (`events.SearchStarted`)."""
        assert self.core.started is not None
        return self.core.started.agents

    @property
    def versions(self) -> Mapping[str, str]:
        """Package -> version of software that can affect results."""
        assert self.core.started is not None
        return self.core.started.versions

    @property
    def default(self) -> Hyperparameters:
        """The default recipe: the root's configuration."""
        assert self.core.started is not None
        return self.core.started.root

    @property
    def base_model(self) -> str:
        """Directory or name of the base model."""
        made = self.task.get("model_path")
        return str(self.config.model.path or made or "the tiny model prepared with the task")

    @property
    def base_model_id(self) -> str | None:
        """The base model's id on the Hugging Face Hub, or None if not known."""
        return self._base_model_id or self.config.model.id_on_the_hub

    @property
    def base_model_name(self) -> str:
        """Public name of the base model: its id on the Hub, or the name of its directory."""
        return self.base_model_id or PurePath(self.base_model).name

    # --- the tree -------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[int, SearchNode]:
        """Id -> node of the tree, in the order of creation."""
        return self.core.search.nodes

    @cached_property
    def runs(self) -> dict[int, PhaseRun]:
        """Node -> run of the tree, without the reference."""
        return {node: run for node, run in self.core.runs.items() if node != REFERENCE}

    @property
    def best(self) -> PhaseRun | None:
        """The run with the best score so far, or None."""
        return self.core.best

    @cached_property
    def path(self) -> tuple[PathPhase, ...]:
        """The best strategy, phase by phase. Empty until a run has a score at a known step."""
        best = self.best
        cuts = () if best is None else self.core.search.cuts(best.node)
        phases = [
            PathPhase(number=number, run=self.core.runs[cut.node], cut=cut.step)
            for number, cut in enumerate(cuts, start=1)
            if cut.step is not None
        ]
        return tuple(phases) if len(phases) == len(cuts) else ()

    @cached_property
    def path_nodes(self) -> frozenset[int]:
        """Nodes of the best strategy."""
        return frozenset(phase.node for phase in self.path)

    def source(self, run: PhaseRun) -> PhaseRun | None:
        """The run whose checkpoint this run started from, or None for the base model."""
        if run.spec is None or run.spec.resume_from is None:
            return None
        return self.core.runs[run.spec.resume_from.node]

    def changes(self, run: PhaseRun) -> tuple[Changed, ...]:
        """Hyper-parameters that differ from the run that this one continues, or from the root for a run from
        scratch."""
        if run.spec is None:
            return ()
        source = self.source(run)
        before = self.default if source is None or source.spec is None else source.spec.hyperparameters
        return tuple(
            Changed(key=key, old=old, new=new, reason=self._reason(run, key, new))
            for key, (old, new) in diff(before, run.spec.hyperparameters).items()
        )

    def _reason(self, run: PhaseRun, key: str, new: HyperparameterValue) -> str:
        """The agent's reason for a value, from this phase or from the ancestor that introduced the value."""
        at: PhaseRun | None = run
        while at is not None and at.spec is not None and at.spec.hyperparameters.get(key) == new:
            for change in at.proposal.changes if at.proposal else ():
                if canonical(change.key) == key:
                    return change.reason if at is run else f"as in node {at.node}: {change.reason}"
            at = None if at.on is None else self.core.runs.get(at.on)
        return "follows from the other changes" if run.proposal else "the configuration it was created from"

    @staticmethod
    def rollouts(run: PhaseRun, steps: int | None) -> int | None:
        """Number of answers that a run samples in `steps` steps. None if its batch size is not a number."""
        used = run.spec.hyperparameters if run.spec else {}
        batch, n = used.get(TRAIN_BATCH), used.get(ROLLOUT_N)
        if steps is None or not isinstance(batch, int) or not isinstance(n, int):
            return None
        return steps * batch * n

    # --- series ---------------------------------------------------------------------------------------------

    def curves(self, node: int) -> Curves:
        """Metric series of a node, as far as they are on disk."""
        if node not in self._curves:
            self._curves[node] = load_curves(self.storage, node)
        return self._curves[node]

    def from_curves(self, node: int, make: Callable[..., Made], *given: object) -> Made:
        """Result of `make(curves, *given)`, cached. Later facts reuse it if the phase has ended."""
        known, made = self._made.get((node, make), (None, None))
        if known != given:
            made = make(self.curves(node), *given)
            self._made[node, make] = (given, made)
        return cast(Made, made)

    def items(self, node: int, step: int | None) -> tuple[ItemOutcome, ...]:
        """Per-item outcomes of one validation. Empty if they were not kept."""
        if step is None:
            return ()
        if node not in self._items:
            self._items[node] = load_items(self.storage, node)
        return self._items[node].get(step, ())

    def test_items(self, what: FinalWhat) -> tuple[ItemOutcome, ...]:
        """Per-item outcomes on the test split. Empty if they were not kept."""
        if what not in self._test_items:
            self._test_items[what] = _read_items(self.paths.final(what))
        return self._test_items[what]

    @property
    def name(self) -> str:
        """Name by which commands find the search: the name of its directory, even if that is a copy."""
        return self.paths.root.name

    @cached_property
    def n_val(self) -> int | None:
        """Number of validation items, or None if it was not recorded."""
        for node, run in self.core.runs.items():
            for step in (run.outcome.best_step if run.outcome else None, 0):
                items = self.items(node, step)
                if items:
                    return len(items)
        recorded = self.task.get("n_val")
        return int(recorded) if recorded else None

    def validation(self, node: int, step: int | None, score: float | None) -> Score | None:
        """A validation score with its noise, computed from its items if they were kept."""
        if score is None:
            return None
        known = self._item_scores.setdefault(node, {})
        if step not in known:
            items = self.items(node, step)
            known[step] = mean_score([item.acc for item in items]) if items else None
        kept = known[step]
        # Items that do not average to the recorded score belong to an abandoned attempt.
        if kept is not None and abs(kept.mean - score) < 1e-6:
            return kept
        return score_without_items(score, self.n_val)

    def start_score(self, run: PhaseRun) -> float | None:
        """Validation score of the policy that a run started from."""
        recorded = run.outcome.start_score if run.outcome else None
        return without_infinities(self.curves(run.node).start_score if recorded is None else recorded)

    def start_from(self, run: PhaseRun) -> ResumeFrom | None:
        """Node and step at which the start score was measured. None if the run measured it itself."""
        return run.outcome.start_from if run.outcome else None

    def decisions(self) -> list[DecisionCheck]:
        """All decisions, each compared with what this version's rules decide."""
        return self._checks.of(self.events)

    # --- after the search -----------------------------------------------------------------------------------

    @property
    def reference(self) -> PhaseRun | None:
        """The default recipe trained in one phase. None until the search, including extensions, has ended."""
        return None if self.core.end_reason is None else self.core.reference

    def final(self, what: FinalWhat) -> FinalJob | None:
        """A measurement on the test split: its score, or the reason why there is none. None if none was
        planned."""
        if self.core.end_reason is None:
            return None
        return self.core.final.jobs.get(what)

    @property
    def finished_phases(self) -> int:
        """Number of runs of the tree that have ended."""
        return sum(run.outcome is not None for run in self.runs.values())


def stop_reason(run: PhaseRun) -> str:
    """Recorded reason why a run ended. Empty if it has not."""
    if isinstance(run.outcome, PhaseResult):
        return run.outcome.stop_reason
    return "" if run.outcome is None else f"{run.outcome.failure_class}: {run.outcome.cause}"


def _read_items(parquet: Path) -> tuple[ItemOutcome, ...]:
    if not parquet.is_file():
        return ()
    rows = parquet_rows(parquet, ("index", "data_source", "score", "acc"))
    return tuple(ItemOutcome(**row) for row in rows)
