"""Signals that warn the early-stopper agent. None of them ends a phase.

Training metrics explain a validation curve but do not replace it. A signal is therefore not reported if the
phase may be succeeding: with a high or rising reward, or a validation gain. Not here: rules that end phases
(rules.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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
from llmzero_ray.records.metrics import Curves, Series
from llmzero_ray.stopping.rules import WATCHED, Collapse
from llmzero_ray.utils.text import number

HIGH_REWARD = 0.9
"""Mean reward (in [0, 1]) from which low entropy, or groups with equal scores, mean that the task is
learned."""
NO_SPREAD = 1e-6
"""Largest minus smallest advantage up to which no group has both good and bad answers."""
NO_GRADIENT = 1e-9
"""Gradient norm up to which the policy does not move."""
SILENT_STEPS = 10
"""Consecutive steps without a training signal that are reported. With few prompts, single ones are common."""
RUNAWAY = 10.0
"""Factor over the median of its first half from which a KL counts as running away."""
FLOOD = 0.3
"""Share of responses cut off at the cap from which rewards say little about the answers."""


def _dead_run(d: Dynamics) -> str | None:
    """Steps without a training signal: all responses of a group score the same, or the gradient or the
    learning rate is 0."""
    if len(d.reward) and d.reward.last >= HIGH_REWARD:
        return None
    if rate_is_zero(d) and len(d.learning_rate) >= SILENT_STEPS:
        return f"actor/lr was 0 in all {len(d.learning_rate)} steps"
    level = f"; mean reward {number(d.reward.last)}" if len(d.reward) else ""
    if _is_silent(d.group_spread, NO_SPREAD):
        return f"every group of the last {SILENT_STEPS} steps had zero advantage{level}"
    if _is_silent(d.grad_norm, NO_GRADIENT):
        return f"actor/grad_norm was 0 in the last {SILENT_STEPS} steps{level}"
    return None


def _is_silent(series: Series, bound: float) -> bool:
    last = series.values[-SILENT_STEPS:]
    return len(last) == SILENT_STEPS and all(abs(value) <= bound for value in last)


def _entropy_collapse(d: Dynamics) -> str | None:
    """Entropy that fell to a fraction of its first level, without a gain in reward."""
    if not entropy_is_low(d) or not len(d.reward) or _succeeds(d):
        return None
    fell = f"actor/entropy fell {number(d.entropy.first)} -> {number(d.entropy.last)}"
    return f"{fell} while the mean reward went {number(d.reward.first)} -> {number(d.reward.last)}"


def _kl_runaway(d: Dynamics) -> str | None:
    """KL to the base model that is `RUNAWAY` times its earlier level and still climbs, without a gain."""
    if len(d.kl) < 6 or _succeeds(d):
        return None
    half = d.kl.steps[len(d.kl) // 2]
    # Near the base model, a factor means nothing: every run multiplies its KL there.
    before = max(median(d.kl.until(half - 1).values), NEAR_BASE)
    late = d.kl.since(half)
    climbs = fit(late).rising or late.values[-1] >= max(late.values)
    if d.kl.last < RUNAWAY * before or not climbs:
        return None
    ratio = f"x{number(d.kl.last / before)} its level before step {half}"
    return f"actor/kl_loss is {number(d.kl.last)}, {ratio}, and still rises"


def _truncation_flood(d: Dynamics) -> str | None:
    """Large share (`FLOOD`) of responses cut off at the cap."""
    if len(d.truncated) < 3 or d.truncated.last < FLOOD or _succeeds(d):
        return None
    return (
        f"responses cut off at the cap of {d.cap} tokens: {d.truncated.first:.0%} -> {d.truncated.last:.0%}"
    )


def _rising_entropy(d: Dynamics) -> str | None:
    """Entropy that climbs without a gain in reward or validation."""
    climb = entropy_climb(d)
    if climb is None:
        return None
    rise = f"actor/entropy climbed {number(climb.low)} -> {number(climb.last)} from step {climb.since} on"
    return f"{rise}, without a gain in reward or validation"


def _doubtful(d: Dynamics) -> str | None:
    """Reasons in the curves not to trust the scores."""
    return " ".join(doubts_of_curves(d)) or None


def _non_finite(curves: Curves) -> str | None:
    """Watched metrics that were NaN or infinite at any step."""
    found = []
    for name in WATCHED:
        values = zip(curves.steps, curves.metrics.get(name, ()), strict=False)
        bad = [step for step, value in values if value is not None and not math.isfinite(value)]
        if bad:
            found.append(f"{name} in {len(bad)} of {len(curves.steps)} steps, last at step {bad[-1]}")
    return "not finite: " + "; ".join(found) if found else None


SIGNALS: Mapping[str, Callable[[Dynamics], str | None]] = {
    "dead_run": _dead_run,
    "entropy_collapse": _entropy_collapse,
    "kl_runaway": _kl_runaway,
    "truncation_flood": _truncation_flood,
    "entropy_climb": _rising_entropy,
    "doubtful": _doubtful,
}
"""Name -> signal in the dynamics of a phase, most fundamental first."""


def annotate(phase: NodeView) -> tuple[str, ...]:
    """Findings of all signals for the agent's prompt, each as `name: finding with its numbers`."""
    dynamics = observe(phase.curves, phase.hyperparameters)
    found = {"non_finite": _non_finite(phase.curves), "collapse": Collapse().check(phase)}
    found |= {name: signal(dynamics) for name, signal in SIGNALS.items()}
    return tuple(f"{name}: {finding}" for name, finding in found.items() if finding is not None)


def _succeeds(d: Dynamics) -> bool:
    """Whether the reward or the validation shows that the run succeeds. Other metrics are not considered."""
    reward, v = d.reward, d.validation
    if len(reward) and (reward.last >= HIGH_REWARD or reward_rising(d)):
        return True
    if len(reward) > 2 and reward.last - reward.first > 2 * fit(reward).noise:
        return True
    return v is not None and v.gain > 2 * v.margin and v.last >= v.best - v.margin
