"""Early stops of running phases under Tune: a search's stopping rules, Tune's own stoppers, or a function.

A non-finite metric always ends a phase (scheduler.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ray.tune import Stopper
from ray.tune.stopper import TimeoutStopper

from llmzero_ray.config import StopperSettings
from llmzero_ray.errors import ConfigError
from llmzero_ray.records import StopDecision
from llmzero_ray.records.agents import NodeView
from llmzero_ray.stopping.policy import StoppingPolicy

StopRule: TypeAlias = Callable[[NodeView, NodeView | None], bool | str | None]
"""Callback (running phase, best phase so far) -> whether to stop the running one, or why. It is called at
each result on the controller's thread and should take milliseconds."""


class EarlyStops:
    """Decides whether a running phase should end. `stopper` is the argument of `tree_search`."""

    def __init__(self, stopper: Any) -> None:
        known = isinstance(stopper, StopperSettings | Stopper)
        if stopper is not None and not known and not callable(stopper):
            raise ConfigError(
                f"stopper is {stopper!r}; must be StopperSettings, a ray.tune.Stopper, a function of the "
                "running phase and the best one, or None."
            )
        if isinstance(stopper, TimeoutStopper):
            raise ConfigError(
                "stopper is a TimeoutStopper, which ends an experiment and never a single phase; pass it to "
                "RunConfig(stop=...), or set TuneConfig(time_budget_s=...)."
            )
        self._stopper = stopper
        self._policy = StoppingPolicy(stopper) if isinstance(stopper, StopperSettings) else None

    @property
    def reads_curves(self) -> bool:
        """Whether a decision needs the views of phases."""
        return self._stopper is not None and not isinstance(self._stopper, Stopper)

    def reason(
        self, trial_id: str, result: Mapping[str, Any], running: NodeView | None, best: NodeView | None
    ) -> str | None:
        """Reason to end the phase now, or None if it continues. Views are None unless `reads_curves`."""
        if isinstance(self._stopper, Stopper):
            return type(self._stopper).__name__ if self._stopper(trial_id, dict(result)) else None
        if running is None or self._stopper is None:
            return None
        if self._policy is not None:
            return _reason(self._policy.check_rules(running))
        return _reason(self._stopper(running, best))


def _reason(found: object) -> str | None:
    if isinstance(found, StopDecision):
        return f"{found.rule}: {found.reason}" if found.stop else None
    return found if isinstance(found, str) and found else "stopper" if found is True else None
