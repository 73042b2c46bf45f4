"""Signals that warn the early-stopper agent. None of them ends a phase.

Most are findings of the diagnosis (dynamics/diagnosis.py). Training metrics explain a validation curve but do
not replace it. A signal is therefore not reported if the phase may be succeeding: with a high or rising
reward, or a validation gain. Not here: rules that end phases (rules.py).
"""

from __future__ import annotations

import math
from statistics import median

from llmzero_ray.dynamics.diagnosis import Kind, diagnose
from llmzero_ray.dynamics.features import Dynamics, fit, observe
from llmzero_ray.dynamics.observations import MOVING_STEPS, NEAR_BASE, reward_rising
from llmzero_ray.records.agents import NodeView
from llmzero_ray.records.metrics import Curves
from llmzero_ray.stopping.rules import WATCHED, Collapse
from llmzero_ray.utils.text import number

WARNINGS: frozenset[Kind] = frozenset(
    {
        "doubtful", "dead", "never_ends", "collapse", "entropy_collapse", "entropy_climb", "truncated",
        "no_reward", "no_contrast",
    }
)  # fmt: skip
"""Findings of the diagnosis that are reported. The others are seen in the validation curve, or do not warn:
recorded real phases that hardly moved, or whose KL had jumped, gained later in half of the cases or more."""
HIGH_REWARD = 0.9
"""Mean reward (in [0, 1]) from which the task counts as learned."""
RUNAWAY = 10.0
"""Factor over the median of its first half from which a KL counts as running away."""


def annotate(phase: NodeView, *, n_val: int = 500) -> tuple[str, ...]:
    """Findings of all signals for the agent's prompt, each as `name: finding with its numbers`. `n_val` is
    the number of validation items."""
    d = observe(phase.curves, phase.hyperparameters, n_val=n_val)
    rules = {"non_finite": _non_finite(phase.curves), "collapse": Collapse().check(phase)}
    found = {name: finding for name, finding in rules.items() if finding is not None}
    succeeds = _succeeds(d)
    for one in diagnose(d, phase, None) if d.n_steps >= MOVING_STEPS else ():
        if one.kind in WARNINGS and (one.kind == "doubtful" or not succeeds):
            texts = [text.removesuffix(".") for text in (one.summary, *one.evidence[:1])]
            found.setdefault(one.kind, "; ".join(texts))
    if not succeeds and (runaway := _kl_runaway(d)) is not None:
        found["kl_runaway"] = runaway
    return tuple(f"{name}: {finding}" for name, finding in found.items())


def _non_finite(curves: Curves) -> str | None:
    """Watched metrics that were NaN or infinite at any step."""
    found = []
    for name in WATCHED:
        values = zip(curves.steps, curves.metrics.get(name, ()), strict=False)
        bad = [step for step, value in values if value is not None and not math.isfinite(value)]
        if bad:
            found.append(f"{name} in {len(bad)} of {len(curves.steps)} steps, last at step {bad[-1]}")
    return "not finite: " + "; ".join(found) if found else None


def _kl_runaway(d: Dynamics) -> str | None:
    """KL to the base model that is `RUNAWAY` times its earlier level and still climbs."""
    if len(d.kl) < 6:
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


def _succeeds(d: Dynamics) -> bool:
    """Whether the reward or the validation shows that the run succeeds. Other metrics are not considered."""
    reward, v = d.reward, d.validation
    if len(reward) and (d.reward_level.last >= HIGH_REWARD or reward_rising(d)):
        return True
    if len(reward) > 2 and reward.last - reward.first > 2 * fit(reward).noise:
        return True
    return v is not None and v.gain > 2 * v.margin and v.last >= v.best - v.margin
