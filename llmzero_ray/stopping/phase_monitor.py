"""Monitor of one running phase: collects its metric points and reports when a rule ends it.

The rules are checked after every step, however many points arrive at once. The verdict therefore does not
depend on batching, and a monitor that restarts from the first point reaches the same one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from llmzero_ray.records import MetricPoint, StopDecision, metrics
from llmzero_ray.records.agents import EarlierVerdict, NodeView
from llmzero_ray.records.metrics import CurveBuilder
from llmzero_ray.stopping.policy import StoppingPolicy

_SAVING = (metrics.LENGTH, metrics.PROMPT_LENGTH, metrics.STEP_TIME)
"""Metrics from which the savings of a stop are computed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuleVerdict:
    """STOP by a rule. `running` is the phase at the deciding step, with only the metrics that rules read."""

    decision: StopDecision
    running: NodeView


class PhaseMonitor:
    """Metric points of one attempt at a phase, checked by the policy step by step.

    `view` describes the phase at its start. `verdicts` are the verdicts on this attempt so far, so that a
    restarted stopper does not repeat questions. The policy's state of an earlier attempt at the same node is
    reset.
    """

    def __init__(
        self, policy: StoppingPolicy, view: NodeView, verdicts: Iterable[EarlierVerdict] = ()
    ) -> None:
        policy.forget(view.node)
        self.verdicts = list(verdicts)
        """Verdicts so far, oldest first."""
        if self.verdicts:
            policy.resume(view.node, self.verdicts[-1].step)
        self._policy = policy
        self._view = dataclasses.replace(view, status="running")
        self._curves = CurveBuilder()

    @property
    def n_points(self) -> int:
        """Number of points added so far: the cursor of the next poll."""
        return self._curves.n_points

    def add(self, points: Iterable[MetricPoint]) -> RuleVerdict | None:
        """Add the next points. Returns the first STOP of a rule at one of them, or None."""
        verdict: RuleVerdict | None = None
        for point in points:
            self._curves.add(point)
            if verdict is None and point.step > 0:
                verdict = self._check()
        return verdict

    def _check(self) -> RuleVerdict | None:
        reads = self._policy.reads  # only the series that are read are copied
        curves = self._curves.build(None if reads is None else (*reads, *_SAVING))
        running = dataclasses.replace(self._view, curves=curves)
        decision = self._policy.check_rules(running)
        return None if decision is None else RuleVerdict(decision=decision, running=running)

    def running(self) -> NodeView:
        """The phase with all its curves so far, for the agent."""
        return dataclasses.replace(self._view, curves=self._curves.build())

    def note(self, step: int, decision: StopDecision) -> None:
        """Store a decision for later requests."""
        self.verdicts.append(
            EarlierVerdict(step=step, stop=decision.stop, rule=decision.rule, reason=decision.reason)
        )

    def is_due(self, incumbent: NodeView | None) -> bool:
        """Whether to ask the agent now (`StoppingPolicy.is_due`)."""
        timed = dataclasses.replace(self._view, curves=self._curves.build((metrics.STEP_TIME,)))
        return self._policy.is_due(timed, incumbent)
