"""One running phase under a stopping policy: takes what it reports, says when a rule ends it.

Every step is judged as if the rules had been asked right after it, however many arrive at once: the verdict
does not depend on how points were batched, so one that is read again from the beginning is the same. Not
here: the rules' order and the agent's intervals (policy.py), reading from runners (actors/).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from llmzero_ray.agents import dynamics
from llmzero_ray.agents.base import NodeView
from llmzero_ray.records import StopDecision
from llmzero_ray.stopping.phase_log import PhaseLog
from llmzero_ray.stopping.rules import KLS, REWARDS, WATCHED
from llmzero_ray.stopping.stream import PointBatch

if TYPE_CHECKING:
    from llmzero_ray.stopping.policy import StoppingPolicy

STEP_TIME = "timing_s/step"
JUDGED = tuple(
    dict.fromkeys(
        (
            *WATCHED,
            *REWARDS,
            *KLS,
            *dynamics.REWARD,
            dynamics.KL,
            dynamics.PPO_KL,
            dynamics.ENTROPY,
            dynamics.GRAD_NORM,
            dynamics.CLIPFRAC,
            dynamics.LENGTH,
            dynamics.LENGTH_MAX,
            dynamics.LENGTH_AT_MAX,
            dynamics.ADVANTAGE_MAX,
            dynamics.ADVANTAGE_MIN,
            dynamics.LEARNING_RATE,
        )
    )
)
"""Metrics that rules and pre-checks read; the others are not copied for them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ruling:
    """STOP by a rule, and the phase at the step that decided, with the metrics that rules read."""

    decision: StopDecision
    running: NodeView


class PhaseWatch:
    """What is known of one attempt at a phase. `view` is the phase as it began; made by
    `StoppingPolicy.watch`."""

    def __init__(self, policy: StoppingPolicy, view: NodeView) -> None:
        self._policy = policy
        self._view = dataclasses.replace(view, status="running")
        self._log = PhaseLog()
        self._watches = [rule.watch(self._log) for rule in policy.stopping]
        self._trained = (0, 0, 0.0)

    @property
    def n_points(self) -> int:
        """Points taken so far: the cursor of the next poll."""
        return self._log.n_points

    def take(self, batch: PointBatch) -> Ruling | None:
        """Add points that follow those taken so far; the first STOP by a rule among their steps, if any."""
        self._log.take(batch)
        for i in sorted({i for watch in self._watches for i in watch.suspects()}):
            curves = self._log.curves(i + 1, JUDGED)
            decision = self._policy.check_rules(curves, self._view.hyperparameters)
            if decision is not None:
                return Ruling(decision=decision, running=dataclasses.replace(self._view, curves=curves))
        return None

    def running(self) -> NodeView:
        """The phase with all its curves so far, for the agent."""
        return dataclasses.replace(self._view, curves=self._log.curves())

    def is_due(self, incumbent: NodeView | None) -> bool:
        """Whether bank and agent should be asked about this phase now, as `StoppingPolicy.is_due` says."""
        steps = self._log.steps
        if not steps:
            return False
        return self._policy.is_due_at(self._view.node, steps[-1], self._trained_s, incumbent)

    def _trained_s(self, since: int) -> float:
        """`policy.trained_s`, going on where it was when it was last asked about the same step."""
        known_since, n, seconds = self._trained
        if known_since != since:
            n, seconds = 0, 0.0
        seconds = sum(self._times(n, since), seconds)
        self._trained = since, len(self._log.steps), seconds
        return seconds

    def _times(self, begin: int, since: int) -> Iterator[float]:
        times = self._log.column(STEP_TIME)
        for i in range(begin, len(times)):
            time = times[i]
            if time is not None and self._log.steps[i] > since:
                yield time
