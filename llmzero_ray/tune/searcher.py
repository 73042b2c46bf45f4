"""Searcher of the pair: Ray Tune asks it for trials.

Everything runs on Tune's single controller thread, so no method blocks while there is other work to do.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.search import Searcher
from ray.tune.search.sample import Domain

from llmzero_ray.errors import ConfigError
from llmzero_ray.tune.phase_start import CONFIG_KEY
from llmzero_ray.tune.proposals import AsyncProposals
from llmzero_ray.tune.state import TuneSearch

log = logging.getLogger(__name__)
_IDLE_WAIT_S = 0.5
"""Maximum wait for a proposal while no trial runs, in seconds. Tune itself then polls once a second."""


class TreeSearcher(Searcher):
    """Proposes trials: the tree search chooses the node, and the proposer its configuration.

    `tree_search` creates it together with its scheduler.
    """

    def __init__(self, search: TuneSearch, proposals: AsyncProposals) -> None:
        # No metric here: Tune would require it in every result, and not every step validates.
        super().__init__()
        self.search = search
        """The search, shared with the scheduler."""
        self._proposals = proposals
        self._limit: int | None = None
        self.live: dict[str, Any] = {}
        """Trials that train a node or wait to train it."""
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
        """Apply `max_concurrent_trials`. Pending proposals count as running trials."""
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
        if self.search.waiting is None:
            self.search.offer_slots(self._limit)
            self._proposals.collect()
            if not self.search.trains:
                self._proposals.wait(_IDLE_WAIT_S)
                self._proposals.collect()
        ready = self.search.waiting
        if ready is None:
            return Searcher.FINISHED if self.search.core.stage == "finished" else None
        self.search.assign(ready.run.node, trial_id)
        configuration = self.search.trials.trial_config(ready.configuration)
        return {**configuration, CONFIG_KEY: str(ready.start)}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """No-op: results that end a trial do not arrive here, so the scheduler handles all of them."""

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Finish the node of a trial."""
        node = self.search.node_of(trial_id)
        if node is not None and self.search.core.runs[node].active:
            failed = self._errors.pop(trial_id, "the trial failed") if error else None
            self.search.end(node, failed)

    def save(self, checkpoint_path: str) -> None:
        """Write the search next to Tune's state, or only its name if it has a journal."""
        search = self.search
        state = (search.config.name, None if search.has_journal else search.results())
        Path(checkpoint_path).write_bytes(pickle.dumps(state))

    def restore(self, checkpoint_path: str) -> None:
        """Restore the search in place, so that the scheduler sees it too."""
        name, results = pickle.loads(Path(checkpoint_path).read_bytes())
        if name == self.search.config.name and results is not None:
            self.search.restore(results)

    # --- for the scheduler ----------------------------------------------------------------------------------

    def check_metric(self, metric: str | None, mode: str | None) -> None:
        """Reject another metric or mode than the search has.

        Raises:
            ConfigError: they differ.
        """
        search = self.search
        if metric not in (None, search.metric) or mode not in (None, search.mode):
            raise ConfigError(
                f"TuneConfig has metric={metric!r}, mode={mode!r}; tree_search has metric={search.metric!r}, "
                f"mode={search.mode!r}. Give the same, or leave them out of TuneConfig."
            )

    def failed_with(self, trial_id: str, error: str) -> None:
        """Note a trial's error, in case Ray ends the trial instead of retrying it."""
        self._errors[trial_id] = error

    def check(self) -> None:
        """Raise the error that makes the search pointless, if any.

        Raises:
            ConfigError: no metric, or no checkpoints.
        """
        if self.search.fatal is not None:
            raise self.search.fatal

    # --- parts ----------------------------------------------------------------------------------------------

    def _release_lost(self) -> None:
        """Give a node another trial if its trial never began. With reuse_actors Ray ends a trial whose actor
        could not be reset, and informs neither the searcher nor the scheduler."""
        for trial_id, trial in list(self.live.items()):
            node = self.search.node_of(trial_id)
            if node is not None and trial.status == Trial.ERROR and self.search.core.runs[node].active:
                del self.live[trial_id]
                self.search.begin_again(node)
                log.warning(
                    "trial %s of node %d did not begin: its reused actor could not be reset; another trial "
                    "trains the node. Either reset_config did not return True, or a training function took "
                    "longer to end than TUNE_FUNCTION_THREAD_TIMEOUT_S of the workers' environment (2 s).",
                    trial_id,
                    node,
                )


def _is_domain(value: object) -> bool:
    return isinstance(value, Domain) or (isinstance(value, Mapping) and "grid_search" in value)
