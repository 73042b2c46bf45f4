"""Searcher of the pair: Ray Tune asks it for trials.

Everything runs on Tune's only controller thread, so no method blocks unless there is nothing else to do.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.search import Searcher
from ray.tune.search.sample import Domain

from llmzero_ray.errors import ConfigError
from llmzero_ray.search import Decision
from llmzero_ray.tune.phase_start import CONFIG_KEY
from llmzero_ray.tune.proposals import AsyncProposals
from llmzero_ray.tune.state import TunePhase, TuneSearch

log = logging.getLogger(__name__)
_IDLE_WAIT_S = 0.5
"""Maximum wait for a proposal while no trial runs, in seconds. Tune itself polls once a second then."""


class TreeSearcher(Searcher):
    """Proposes trials: the tree search chooses the node, and the proposer its configuration.

    Made by `tree_search`, with the scheduler that belongs to it.
    """

    def __init__(self, search: TuneSearch, proposals: AsyncProposals) -> None:
        # Without a metric: Tune would demand it in every result, and not every step validates.
        super().__init__()
        self._search, self._proposals = search, proposals
        self._limit: int | None = None
        self.active: set[int] = set()
        """Nodes that a Tune trial trains or waits to train."""
        self.live: dict[str, Any] = {}
        """Trials of these nodes."""
        self._stopping: dict[int, str] = {}
        self._errors: dict[str, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "live": {}}

    # --- what Tune calls ------------------------------------------------------------------------------------

    def set_search_properties(
        self,
        metric: str | None,
        mode: str | None,
        config: dict[str, Any],
        **spec: Any,
    ) -> bool:
        """Check the Tuner's other arguments.

        Raises:
            ConfigError: another metric or mode, or domains in param_space.
        """
        self.check_metric(metric, mode)
        domains = [name for name, value in (config or {}).items() if _is_domain(value)]
        if domains:
            raise ConfigError(
                f"param_space has domains for {', '.join(domains)}; what is searched belongs into "
                "tree_search(space=...), and param_space holds what never changes."
            )
        return True

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Apply `max_concurrent_trials`. Pending proposals count like running trials."""
        self._limit = max_concurrent
        return True

    def suggest(self, trial_id: str) -> Any:
        """The configuration of the next trial, None while there is none, or FINISHED.

        Raises:
            ConfigError: the search cannot continue.
        """
        self.check()
        self._release_lost()
        self._proposals.collect()
        ready = self._ready()
        if ready is None:
            ended = self._decide()
            if not self.active:
                self._proposals.wait(_IDLE_WAIT_S)
            self._proposals.collect()
            ready = self._ready()
            if ready is None:
                return Searcher.FINISHED if ended and not any(self._search.running()) else None
        return self._start(ready, trial_id)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """No-op: results that end a trial do not arrive here, so the scheduler handles all of them."""

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Finish the node of a trial."""
        node = self.node_of(trial_id)
        if node is None:
            return
        self.active.discard(node)
        phase = self._search.phases[node]
        if phase.status != "running":
            return
        stopped = self._stopping.pop(node, "")
        if error:
            self._search.end(node, "failed", self._errors.pop(trial_id, stopped or "the trial failed"))
        elif stopped:
            self._search.end(node, "early_stopped", stopped)
        else:
            self._search.end(node, "completed")

    def save(self, checkpoint_path: str) -> None:
        """Write the search next to Tune's state, or only the name of its own file if it has one."""
        search = self._search
        state = {"search": search.search_id, "records": [] if search.has_log else search.records}
        Path(checkpoint_path).write_text(json.dumps(state))

    def restore(self, checkpoint_path: str) -> None:
        """Restore the search in place, so that the scheduler sees it too."""
        state = json.loads(Path(checkpoint_path).read_text())
        if state["search"] == self._search.search_id and state["records"]:
            self._search.replay(state["records"])
            self._proposals.forget()

    # --- for the scheduler ----------------------------------------------------------------------------------

    @property
    def search(self) -> TuneSearch:
        """The search that both halves share."""
        return self._search

    def check_metric(self, metric: str | None, mode: str | None) -> None:
        """Reject another metric or mode than the search has.

        Raises:
            ConfigError: they differ.
        """
        search = self._search
        if metric not in (None, search.metric) or mode not in (None, search.mode):
            raise ConfigError(
                f"TuneConfig has metric={metric!r}, mode={mode!r}; tree_search has metric={search.metric!r}, "
                f"mode={search.mode!r}. Give the same, or leave them out of TuneConfig."
            )

    def open_directory(self, directory: Path) -> None:
        """Let a proposer that keeps files do so in the experiment's directory."""
        self._proposals.open_directory(directory)

    def strategy(self) -> str | None:
        """Best strategy so far as the text of a strategy.yaml, or None if there is no score yet."""
        return self._search.strategy()

    def node_of(self, trial_id: str) -> int | None:
        """Node that a trial trains, or None if it belongs to another search."""
        return self._nodes().get(trial_id)

    def stop_for(self, node: int, reason: str) -> None:
        """Record why a trial that is about to end ends."""
        self._stopping[node] = reason

    def failed_with(self, trial_id: str, error: str) -> None:
        """Note the error of a trial that may be retried or end."""
        self._errors[trial_id] = error

    def check(self) -> None:
        """Raise the error that makes the search pointless, if any.

        Raises:
            ConfigError: no metric, or no checkpoints.
        """
        if self._search.fatal is not None:
            raise self._search.fatal

    # --- parts ----------------------------------------------------------------------------------------------

    def _release_lost(self) -> None:
        """Give another trial to a node whose trial never began. With reuse_actors Ray ends a trial if its
        actor could not be reset, and informs neither the searcher nor the scheduler."""
        for trial_id, trial in list(self.live.items()):
            node = self.node_of(trial_id)
            if node in self.active and trial.status == Trial.ERROR:
                del self.live[trial_id]
                self.active.discard(node)
                log.warning(
                    "trial %s of node %d did not begin: its reused actor could not be reset; another trial "
                    "trains the node. Either reset_config did not return True, or a training function took "
                    "longer to end than TUNE_FUNCTION_THREAD_TIMEOUT_S of the workers' environment (2 s).",
                    trial_id,
                    node,
                )

    def _nodes(self) -> Mapping[str, int]:
        return {trial: phase.node for phase in self._search.phases.values() for trial in phase.trials}

    def _ready(self) -> TunePhase | None:
        """The first node that has a configuration and no trial."""
        waiting = (p for p in self._search.running() if p.configuration is not None)
        return next((phase for phase in waiting if phase.node not in self.active), None)

    def _decide(self) -> bool:
        """Begin nodes up to the concurrency limit. Returns whether the search has ended."""
        search = self._search
        for phase in search.running():
            if phase.configuration is None:  # of a restored search: its proposal was lost
                self._proposals.request(phase.node)
        while self._limit is None or sum(1 for _ in search.running()) < self._limit:
            decision: Decision = search.tree.ask()
            if decision.action == "stop" or decision.action == "wait":
                return decision.action == "stop"
            phase = search.begin(decision.action, decision.on)
            if phase.kind == "root":
                search.plan(phase.node, search.root, search.phase_steps)
                return False
            self._proposals.request(phase.node)
            if self._limit is None:  # Tune asks again as soon as the trial has its resources
                return False
        return False

    def _start(self, phase: TunePhase, trial_id: str) -> dict[str, Any]:
        self.active.add(phase.node)
        self._search.assign(phase.node, trial_id)
        return {**self._search.trials.trial_config(phase.configuration or {}), CONFIG_KEY: str(phase.start)}


def _is_domain(value: object) -> bool:
    return isinstance(value, Domain) or (isinstance(value, Mapping) and "grid_search" in value)
