"""Whether a running phase goes on: rules at every step, then the early-stopper agent at its intervals.

The agent is asked only when there is somebody to beat, and its failures mean CONTINUE. Not here: posting the
verdict and ending the phase (actors/).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from llmzero_ray.agents.base import Curves, EarlyStopper, NodeView, StopRequest, TaskView
from llmzero_ray.records import StopDecision
from llmzero_ray.stopping.rules import make_rules
from llmzero_ray.stopping.settings import StopperSettings

log = logging.getLogger(__name__)


class StoppingPolicy:
    """Decides for the running phases of a search; holds only the step at which each was last judged."""

    def __init__(self, settings: StopperSettings, agent: EarlyStopper | None = None) -> None:
        self._settings = settings
        self._agent = agent
        self._rules = make_rules(settings)
        self._asked_at: dict[int, int] = {}

    def decide(
        self,
        task: TaskView,
        running: NodeView,
        incumbent: NodeView | None = None,
        incumbent_path: Sequence[tuple[int, float]] = (),
    ) -> StopDecision:
        """STOP or CONTINUE for one phase: the rules, and the agent where it is due.

        Without an incumbent (or while it is the phase itself) the agent is not asked. May block on the
        agent: callers that must not wait use `check_rules`, `is_due` and `ask`.
        """
        ruled = self.check_rules(running.curves)
        if ruled is not None:
            return ruled
        if not self.is_due(running, incumbent):
            return StopDecision(stop=False, reason="not due", rule="policy")
        assert incumbent is not None
        return self.ask(
            StopRequest(task=task, running=running, incumbent=incumbent, incumbent_path=tuple(incumbent_path))
        )

    def check_rules(self, curves: Curves) -> StopDecision | None:
        """The first rule that says STOP, or None."""
        if not self._settings.enabled:
            return None
        decisions = (rule.check(curves) for rule in self._rules)
        return next((decision for decision in decisions if decision is not None), None)

    def is_due(self, running: NodeView, incumbent: NodeView | None) -> bool:
        """Whether the agent should be asked about this phase now."""
        if not self._settings.enabled or self._agent is None or not running.curves.steps:
            return False
        if incumbent is None or incumbent.score is None or incumbent.node == running.node:
            return False
        step = running.curves.steps[-1]
        # The first question comes at min_steps, every further one an interval later.
        last = self._asked_at.get(running.node, self._settings.min_steps - self._settings.interval_steps)
        return step >= self._settings.min_steps and step - last >= self._settings.interval_steps

    def ask(self, request: StopRequest) -> StopDecision:
        """The agent's judgement; CONTINUE when it fails to give one."""
        assert self._agent is not None
        steps = request.running.curves.steps
        self._asked_at[request.running.node] = steps[-1] if steps else 0
        try:
            return self._agent.judge(request)
        except Exception as error:  # noqa: BLE001 - whatever an agent raises, the phase goes on
            log.warning("node=%d early stopper failed, goes on: %s", request.running.node, error)
            return StopDecision(stop=False, reason=f"no judgement: {error}", rule="early_stopper")

    def forget(self, node: int) -> None:
        """A phase has ended, or begins again."""
        self._asked_at.pop(node, None)
