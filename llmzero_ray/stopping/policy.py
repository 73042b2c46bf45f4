"""The stopping policy: rules at every step; curve bank and early-stopper agent at intervals.

The agent is called only when there is an incumbent to beat and the curve bank has no clear case; its failures
mean CONTINUE. `StopDecision.rule` names what decided. Not here: collecting a phase's points
(phase_monitor.py), posting the verdict and ending the phase (actors/).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

from llmzero_ray.agents.base import EarlyStopper, NodeView, StopRequest
from llmzero_ray.metrics import STEP_TIME, Curves
from llmzero_ray.records import Hyperparameters, StopDecision
from llmzero_ray.stopping.curve_bank import CurveBank
from llmzero_ray.stopping.rules import Rule, make_rules
from llmzero_ray.stopping.settings import StopperSettings
from llmzero_ray.stopping.signals import Signal, annotate, check_signals, stopping_signals

log = logging.getLogger(__name__)
CURVE_BANK = "curve_bank"
"""`StopDecision.rule` of the bank's decisions."""
FEWEST_NEW = 2
"""Validations since the agent's last answer from which the same question is a new one. One alone seldom
leaves the noise of those before it, and only validation decides."""


def trained_s(curves: Curves, since: int) -> float:
    """Seconds of training after step `since`, as VeRL's timer has them; 0 where it logged none."""
    times = curves.metrics.get(STEP_TIME, ())
    after = (time for step, time in zip(curves.steps, times, strict=False) if step > since)
    return sum(time for time in after if time is not None)


class StoppingPolicy:
    """Decides on the running phases of a search; its state is the step and the data of each last decision.

    Without a `bank` the agent decides every case. `learn` adds completed phases to the bank.
    """

    def __init__(
        self, settings: StopperSettings, agent: EarlyStopper | None = None, bank: CurveBank | None = None
    ) -> None:
        self._settings = settings
        self._agent = agent
        self._bank = bank
        self._rules = make_rules(settings)
        self._signals = stopping_signals(settings)
        self._asked_at: dict[int, int] = {}
        self._seen: dict[int, int] = {}

    @property
    def stopping(self) -> tuple[Rule | Signal, ...]:
        """Rules and pre-checks that may end a phase; empty while stopping is switched off."""
        return (*self._rules, *self._signals) if self._settings.enabled else ()

    def check_rules(
        self, curves: Curves, hyperparameters: Hyperparameters | None = None
    ) -> StopDecision | None:
        """The STOP of the first rule that fires, or of the first pre-check that may stop; else None.

        Without `hyperparameters` the response cap is unknown, so that truncation is not detected.
        """
        if not self._settings.enabled:
            return None
        decisions = (rule.check(curves) for rule in self._rules)
        ruled = next((decision for decision in decisions if decision is not None), None)
        return ruled or check_signals(self._signals, curves, hyperparameters)

    def is_due(self, running: NodeView, incumbent: NodeView | None) -> bool:
        """Whether a decision of curve bank and agent is due for this phase.

        Never without an incumbent that has a score, nor while the phase itself is the incumbent. The first
        one is due at `min_steps`, every further one an interval later; each needs a validation that the one
        before has not seen, for only validation decides.
        """
        steps, node = running.curves.steps, running.node
        no_judge = self._agent is None and self._bank is None
        if not self._settings.enabled or no_judge or not steps or steps[-1] < self._settings.min_steps:
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
        """The bank's decision in a clear case, else the agent's; CONTINUE when the agent fails or is missing.

        The agent sees the findings of the pre-checks, besides the request's own `checks`.
        """
        node, curves = request.running.node, request.running.curves
        self._asked_at[node] = curves.steps[-1] if curves.steps else 0
        try:
            banked = self._bank_decision(request)
        except Exception:  # the bank only saves calls of the agent; its failure must not prevent them
            log.exception("node=%d curve bank failed, the agent is asked", node)
            banked = None
        if banked is not None:
            return banked
        # Only calls of the agent count as judged; the bank decides each time anew.
        self._seen[node] = len(curves.val_scores)
        if self._agent is None:
            return StopDecision(stop=False, reason="no clear case, and no agent to ask", rule="policy")
        try:
            facts = annotate(curves, request.running.hyperparameters)
            return self._agent.judge(dataclasses.replace(request, checks=(*request.checks, *facts)))
        except Exception as error:  # noqa: BLE001 - an agent's failure never ends a phase
            log.warning("node=%d early stopper failed, goes on: %s", node, error)
            return StopDecision(stop=False, reason=f"no judgement: {error}", rule="early_stopper")

    def _bank_decision(self, request: StopRequest) -> StopDecision | None:
        """A decision that needs no agent, or None."""
        if self._bank is None:
            return None
        clear = self._bank.judge(request, may_stop=self._settings.bank_stop)
        if clear.answer != "ask":
            return StopDecision(stop=clear.answer == "stop", reason=clear.reason, rule=CURVE_BANK)
        seen = self._seen.get(request.running.node)
        new = len(request.running.curves.val_scores) - (seen or 0)
        if seen is not None and new < FEWEST_NEW:
            reason = (
                f"{new} new validations since the agent was last asked; it is asked again after {FEWEST_NEW}"
            )
            return StopDecision(stop=False, reason=reason, rule=CURVE_BANK)
        return None

    def learn(self, ended: Sequence[NodeView]) -> None:
        """Add phases that have ended to the bank, if there is one."""
        if self._bank is not None:
            for view in ended:
                self._bank.add(view)

    def resume(self, node: int, step: int) -> None:
        """Take a decision at `step` of a running phase as made: it was, by the stopper before this one."""
        self._asked_at[node] = step

    def forget(self, node: int) -> None:
        """Reset the state of a node whose phase has ended or begins again."""
        self._asked_at.pop(node, None)
        self._seen.pop(node, None)
