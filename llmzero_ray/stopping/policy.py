"""Stopping policy: rules at every step, the early-stopper agent at intervals.

The agent is called only if there is an incumbent to beat, and its failures mean CONTINUE. `StopDecision.rule`
names the rule or agent that decided.
"""

from __future__ import annotations

import dataclasses
import logging

from llmzero_ray.config import AgentsConfig, StopperSettings
from llmzero_ray.records import StopDecision
from llmzero_ray.records.agents import EarlyStopper, NodeView, StopRequest
from llmzero_ray.records.metrics import REWARD_MAX, REWARD_MIN, STEP_TIME, Curves
from llmzero_ray.stopping.rules import HARD, WATCHED, make_rules
from llmzero_ray.stopping.signals import annotate

log = logging.getLogger(__name__)


def trained_s(curves: Curves, since: int) -> float:
    """Seconds of training after step `since` by VeRL's timer, or 0 if it logged none."""
    times = curves.metrics.get(STEP_TIME, ())
    after = (time for step, time in zip(curves.steps, times, strict=False) if step > since)
    return sum(time for time in after if time is not None)


class StoppingPolicy:
    """Decides on the running phases of a search. Its only state is the step at which the agent was last asked
    about each phase. `n_val`, the number of validation items, determines the noise of scores."""

    def __init__(
        self, settings: StopperSettings, agent: EarlyStopper | None = None, *, n_val: int = 500
    ) -> None:
        self._settings = settings
        self._n_val = n_val
        self._agent = agent
        self.rules = make_rules(settings, n_val) if settings.enabled else {}
        """Rules that may end a phase. Empty if stopping is disabled."""
        self._asked_at: dict[int, int] = {}

    @property
    def reads(self) -> tuple[str, ...] | None:
        """Metrics that the rules read, in addition to scores. None if they may read any."""
        return None if self._settings.rules else (*WATCHED, REWARD_MIN, REWARD_MAX)

    def use_settings(self, agents: AgentsConfig) -> None:
        """Apply changed settings to an agent that is a language model."""
        if use := getattr(self._agent, "use_settings", None):
            use(agents)

    def check_rules(self, phase: NodeView) -> StopDecision | None:
        """The STOP of the first rule that fires, or None."""
        for name, rule in self.rules.items():
            if (reason := rule.check(phase)) is not None:
                return StopDecision(stop=True, reason=reason, rule=name, hard=name == HARD)
        return None

    def is_due(self, running: NodeView, incumbent: NodeView | None) -> bool:
        """Whether to ask the agent about this phase now.

        Never without a scored incumbent, if the phase itself is the incumbent, or at the last step, where a
        stop saves nothing. The first question is due at `min_steps`, each further one an interval later. Each
        requires a new validation, because only validation scores are compared.
        """
        steps, node = running.curves.steps, running.node
        if not self._settings.enabled or self._agent is None or not steps:
            return False
        if not self._settings.first_question(running.n_steps) <= steps[-1] < running.n_steps:
            return False
        if incumbent is None or incumbent.score is None or incumbent.node == node:
            return False
        last = self._asked_at.get(node)
        if max(running.curves.val_steps, default=0) <= (last or 0):
            return False
        if last is None:
            return True
        if self._settings.interval_steps is not None:
            return steps[-1] - last >= self._settings.interval_steps
        return trained_s(running.curves, last) >= self._settings.interval_s

    def decide(self, request: StopRequest) -> StopDecision:
        """Decision of the agent, or CONTINUE if it fails or there is none.

        The agent also sees the findings of all signals (`annotate`), after the request's own `checks`.
        """
        node, curves = request.running.node, request.running.curves
        self._asked_at[node] = curves.steps[-1] if curves.steps else 0
        if self._agent is None:
            return StopDecision(stop=False, reason="there is no agent to ask", rule="policy")
        try:
            facts = annotate(request.running, n_val=self._n_val)
            return self._agent.judge(dataclasses.replace(request, checks=(*request.checks, *facts)))
        except Exception as error:  # noqa: BLE001 - an agent's failure never ends a phase
            log.warning("node=%d early stopper failed, the phase continues: %s", node, error)
            return StopDecision(stop=False, reason=f"no judgement: {error}", rule="early_stopper")

    def resume(self, node: int, step: int) -> None:
        """Record that a previous stopper has already decided at `step` of a running phase."""
        self._asked_at[node] = step

    def forget(self, node: int) -> None:
        """Reset the state of a node whose phase has ended or begins again."""
        self._asked_at.pop(node, None)
