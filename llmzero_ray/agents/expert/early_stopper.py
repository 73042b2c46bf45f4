"""The offline early stopper: stops a phase only when even an optimistic outlook stays below the incumbent.

The default is to continue. Only the validation score decides; other metrics can save a run (a train reward
that rises announces a late take-off) or show that it is not trained at all. Comparing with the incumbent's
final score alone would stop nearly every eventual winner, so a run in its first half may still do what the
incumbent did from the same level.

Not here: when to judge (stopping/policy.py), collapse and non-finite metrics (stopping/rules.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from llmzero_ray.agents.base import StopRequest
from llmzero_ray.agents.dynamics import Dynamics, Validation, fit, observe
from llmzero_ray.agents.observations import rate_is_zero, reward_rising, stands_still
from llmzero_ray.metrics import Series
from llmzero_ray.records import StopDecision
from llmzero_ray.text import number

RULE = "early_stopper"
FEWEST_VALIDATIONS = 2
"""Validations inside the phase below which a trajectory is not judged."""
GENEROSITY = 1.3
"""How much more than the incumbent's gain from the same level a young run is granted."""


class ExpertEarlyStopper:
    """Judges a running phase; `n_val` (validation items) gives the noise of its scores."""

    def __init__(self, *, n_val: int = 500) -> None:
        self._n_val = n_val

    def judge(self, request: StopRequest) -> StopDecision:
        """STOP only if this run cannot realistically beat the incumbent; CONTINUE when in doubt."""
        running = request.running
        d = observe(running.curves, running.hyperparameters, n_val=self._n_val)
        target = _target(request)
        if target is None:
            return _continue("there is no score to beat yet")
        best = d.validation.best if d.validation is not None else -math.inf
        untrained = _untrained(d)
        if untrained and best <= target + _noise(d.validation):
            return _stop(f"{untrained}; it cannot beat {target:.3f}")
        if best > target:
            return _continue(f"it already beats {target:.3f} with {best:.3f}")
        if d.last_step >= running.n_steps:
            return _continue("it is at its last step")
        hope = _signs_of_life(d) or _not_judged_yet(request, d, target)
        return _continue(hope) if hope else _by_outlook(request, d, target)


def _stop(reason: str) -> StopDecision:
    return StopDecision(stop=True, reason=reason, rule=RULE)


def _continue(reason: str) -> StopDecision:
    return StopDecision(stop=False, reason=reason, rule=RULE)


def _target(request: StopRequest) -> float | None:
    scores = [score for _, score in request.incumbent_path]
    scores += [request.incumbent.score] if request.incumbent.score is not None else []
    return max(scores, default=None)


def _noise(v: Validation | None) -> float:
    return 0.25 * v.se if v is not None else 0.0


def _untrained(d: Dynamics) -> str:
    """Why this run does not train; empty: it does."""
    if rate_is_zero(d):
        return f"the learning rate was 0 in all {len(d.learning_rate)} steps"
    if not stands_still(d):
        return ""
    moved = "" if not len(d.kl) else f", {d.kl.name} stays at {number(d.kl.last)}"
    level = f"validation stays at {d.validation.last:.3f}" if d.validation is not None else ""
    return f"nothing moves in {d.n_steps} steps: {level}{moved}, reward within its noise"


def _signs_of_life(d: Dynamics) -> str:
    """Why validation may still take off; empty: no sign."""
    if reward_rising(d):
        return f"the train reward still rises ({d.reward.first:.3f} -> {d.reward.last:.3f})"
    return ""


def grows_longer(d: Dynamics) -> str:
    """The other sign of a take-off: longer responses and a rising KL, with a reward that does not fall."""
    longer = len(d.length) > 0 and fit(d.length).rising and d.length.last > 1.1 * d.length.first
    if longer and fit(d.kl).rising and not fit(d.reward).falling:
        return f"responses get longer ({number(d.length.first)} -> {number(d.length.last)}) as KL rises"
    return ""


def _not_judged_yet(request: StopRequest, d: Dynamics, target: float) -> str:
    """Why it is too early to judge the trajectory; empty: it is not."""
    v = d.validation
    if v is None or len(v.scores) < FEWEST_VALIDATIONS:
        return f"{0 if v is None else len(v.scores)} validations: too few to judge"
    there = incumbent_at(request.incumbent_path, request.running.base_step + v.steps[-1])
    if there is not None and v.last >= there - v.margin:
        return f"it is not behind the incumbent at this step ({v.last:.3f} against {there:.3f})"
    left = request.running.n_steps - d.last_step
    if left <= v.steps[-1] - v.steps[-2]:
        # Little is saved, and scores of small runs have jumped by several margins at their last check.
        return f"its last validation is {left} steps away"
    if left * 2 >= request.running.n_steps:
        if herald := grows_longer(d):
            return herald
        grant = GENEROSITY * incumbent_gain(request.incumbent_path, v.last + v.margin, left)
        if v.last + grant > target:
            return f"the incumbent gained as much as it needs from this level in {left} steps"
    return ""


def incumbent_at(path: Sequence[tuple[int, float]], global_step: int) -> float | None:
    """The incumbent's last score at or before a global step; None outside its path."""
    before = [score for step, score in path if step <= global_step]
    return before[-1] if before and path[-1][0] >= global_step else None


def incumbent_gain(path: Sequence[tuple[int, float]], level: float, n_steps: int) -> float:
    """The most the incumbent gained within `n_steps`, starting at or below a level."""
    gains = [
        later - score
        for i, (step, score) in enumerate(path)
        for at, later in path[i + 1 :]
        if score <= level and at - step <= n_steps
    ]
    return max(gains, default=0.0)


def _by_outlook(request: StopRequest, d: Dynamics, target: float) -> StopDecision:
    """Extrapolate validation at its optimistic rate over the steps that are left."""
    v = d.validation
    assert v is not None
    left = max(0, request.running.n_steps - d.last_step)
    level, rate = optimistic_pace(v)
    outlook = level + rate * left
    pace = f"at best {rate:+.4f} a step for {left} more: {outlook:.3f}"
    forecast = f"validation {v.last:.3f} at step {v.steps[-1]}, {pace}"
    if outlook >= target:
        return _continue(f"{forecast} may reach {target:.3f}")
    return _stop(f"{forecast} stays below {target:.3f}")


def optimistic_pace(v: Validation) -> tuple[float, float]:
    """(level, rate per step) at the good end of what the points allow: two standard errors up, for both."""
    steps = (0, *v.steps) if v.start is not None else v.steps
    scores = (v.start, *v.scores) if v.start is not None else v.scores
    trend = fit(Series("validation", steps, scores))
    # Few points lie on a line by chance: the noise of the items bounds what the line can know.
    mean = sum(steps) / len(steps)
    spread = math.sqrt(sum((s - mean) ** 2 for s in steps))
    slope_se = max(trend.slope_se if len(steps) > 2 else 0.0, v.se / spread)
    recent = (scores[-1] - scores[-2]) / (steps[-1] - steps[-2])
    return max(v.scores[-2:]) + 2 * v.se, max(0.0, trend.slope + 2 * slope_se, recent)
