"""Rules whose findings warn the early-stopper agent; none of them ends a phase.

Train metrics explain a validation curve and do not replace it: what may be success or a late take-off (a high
or rising reward, a validation gain) is not reported. Not here: rules that end phases (rules.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from llmzero_ray.dynamics.features import Dynamics, fit, observe
from llmzero_ray.dynamics.observations import (
    NEAR_BASE,
    doubts_of_curves,
    entropy_climb,
    entropy_is_low,
    rate_is_zero,
    reward_rising,
)
from llmzero_ray.records.agents import NodeView
from llmzero_ray.records.metrics import Series
from llmzero_ray.stopping.rules import WATCHED, Collapse, StopRule
from llmzero_ray.utils.text import number

HIGH_REWARD = 0.9
"""Mean reward from which low entropy and groups without contrast mean that the task is learnt (rewards in [0,
1])."""
NO_SPREAD = 1e-6
"""Largest minus smallest advantage up to which no group has both good and bad answers."""
NO_GRADIENT = 1e-9
"""Gradient norm up to which the policy does not move."""


@dataclass(frozen=True, kw_only=True)
class DeadRun:
    """Steps without a training signal: groups whose responses all score the same, a gradient or a rate of
    0."""

    steps: int = 10
    """Steps in a row that must be so (>= 1): a single batch without contrast is common with few prompts."""

    def check(self, phase: NodeView) -> str | None:
        """Why nothing is trained."""
        d = _observed(phase)
        if len(d.reward) and d.reward.last >= HIGH_REWARD:
            return None
        if rate_is_zero(d) and len(d.learning_rate) >= self.steps:
            return f"actor/lr was 0 in all {len(d.learning_rate)} steps"
        level = f"; mean reward {number(d.reward.last)}" if len(d.reward) else ""
        if self._silent(d.group_spread, NO_SPREAD):
            return f"every group of the last {self.steps} steps had zero advantage{level}"
        if self._silent(d.grad_norm, NO_GRADIENT):
            return f"actor/grad_norm was 0 in the last {self.steps} steps{level}"
        return None

    def _silent(self, series: Series, bound: float) -> bool:
        last = series.values[-self.steps :]
        return len(last) == self.steps and all(abs(value) <= bound for value in last)


@dataclass(frozen=True, kw_only=True)
class EntropyCollapse:
    """Entropy at a fraction of its first level without a gain in reward."""

    def check(self, phase: NodeView) -> str | None:
        """How far entropy fell."""
        d = _observed(phase)
        if not entropy_is_low(d) or not len(d.reward) or _succeeds(d):
            return None
        fell = f"actor/entropy fell {number(d.entropy.first)} -> {number(d.entropy.last)}"
        return f"{fell} while the mean reward went {number(d.reward.first)} -> {number(d.reward.last)}"


@dataclass(frozen=True, kw_only=True)
class KlRunaway:
    """A KL to the base model that exceeded its level by a factor and still climbs, without a gain."""

    factor: float = 10.0
    """How many times the median of its earlier half the KL must have reached (> 1)."""

    def check(self, phase: NodeView) -> str | None:
        """How far the KL grew."""
        d = _observed(phase)
        if len(d.kl) < 6 or _succeeds(d):
            return None
        half = d.kl.steps[len(d.kl) // 2]
        # Near the base model a factor is meaningless: every run multiplies its KL there.
        before = max(median(d.kl.until(half - 1).values), NEAR_BASE)
        late = d.kl.since(half)
        climbs = fit(late).rising or late.values[-1] >= max(late.values)
        if d.kl.last < self.factor * before or not climbs:
            return None
        ratio = f"x{number(d.kl.last / before)} its level before step {half}"
        return f"actor/kl_loss is {number(d.kl.last)}, {ratio}, and still rises"


@dataclass(frozen=True, kw_only=True)
class TruncationFlood:
    """Most responses are truncated at the cap, so that their reward tells little about the answer.

    VeRL's `response_length/clip_ratio` counts responses at the batch's longest: it is used only if the
    longest response is the phase's `data.max_response_length`, which must therefore be known.
    """

    share: float = 0.3
    """Share of responses at the cap (0 < share <= 1)."""

    def check(self, phase: NodeView) -> str | None:
        """How many responses are cut off."""
        d = _observed(phase)
        if len(d.truncated) < 3 or d.truncated.last < self.share or _succeeds(d):
            return None
        grew = f"{d.truncated.first:.0%} -> {d.truncated.last:.0%}"
        return f"responses cut off at the cap of {d.cap} tokens: {grew}"


@dataclass(frozen=True, kw_only=True)
class RisingEntropy:
    """Entropy that climbs without a gain in reward or validation."""

    def check(self, phase: NodeView) -> str | None:
        """How far entropy climbed."""
        climb = entropy_climb(_observed(phase))
        if climb is None:
            return None
        rise = f"actor/entropy climbed {number(climb.low)} -> {number(climb.last)} from step {climb.since} on"
        return f"{rise}, without a gain in reward or validation"


@dataclass(frozen=True, kw_only=True)
class DoubtfulScore:
    """Reasons in the curves not to believe the scores."""

    def check(self, phase: NodeView) -> str | None:
        """The reasons, in sentences."""
        return " ".join(doubts_of_curves(_observed(phase))) or None


@dataclass(frozen=True, kw_only=True)
class NonFiniteSteps:
    """Steps with a watched metric that was NaN or infinite, also past ones."""

    def check(self, phase: NodeView) -> str | None:
        """Which metric was not finite, how often, and when last."""
        found, steps = [], phase.curves.steps
        for name in WATCHED:
            values = zip(steps, phase.curves.metrics.get(name, ()), strict=False)
            bad = [step for step, value in values if value is not None and not math.isfinite(value)]
            if bad:
                found.append(f"{name} in {len(bad)} of {len(steps)} steps, last at step {bad[-1]}")
        return "not finite: " + "; ".join(found) if found else None


SIGNALS: Mapping[str, StopRule] = {
    "non_finite": NonFiniteSteps(),
    "collapse": Collapse(),
    "dead_run": DeadRun(),
    "entropy_collapse": EntropyCollapse(),
    "kl_runaway": KlRunaway(),
    "truncation_flood": TruncationFlood(),
    "entropy_climb": RisingEntropy(),
    "doubtful": DoubtfulScore(),
}
"""Name -> rule, the most fundamental first."""


def annotate(phase: NodeView) -> tuple[str, ...]:
    """Findings of all signals for the agent's prompt, each as `name: finding with its numbers`."""
    found = ((name, rule.check(phase)) for name, rule in SIGNALS.items())
    return tuple(f"{name}: {finding}" for name, finding in found if finding is not None)


def _observed(phase: NodeView) -> Dynamics:
    return observe(phase.curves, phase.hyperparameters)


def _succeeds(d: Dynamics) -> bool:
    """Whether reward or validation show that the run succeeds. Other metrics are not considered."""
    reward, v = d.reward, d.validation
    if len(reward) and (reward.last >= HIGH_REWARD or reward_rising(d)):
        return True
    if len(reward) > 2 and reward.last - reward.first > 2 * fit(reward).noise:
        return True
    return v is not None and v.gain > 2 * v.margin and v.last >= v.best - v.margin
