"""Offline early stopper: ends a phase that cannot win, based on its validations.

A phase continues while its validation is not behind the incumbent's at the same global step, item by item, or
while its outlook reaches the incumbent's best score. The outlook is its level, plus its pace over the
remaining steps, plus some standard errors. A rising train reward or longer responses do not save it, except
for a late take-off: greedy validation is flat while sampled answers clearly improve.

On recorded searches of real training, the thresholds are the most patient ones that lose no winner and save
nearly the most steps of losing phases (benchmarks/stop_recorded.py reports them on other searches). Not here:
when to judge (stopping/policy.py), collapse and non-finite metrics (stopping/rules.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmzero_ray.dynamics.features import Dynamics, Validation, fit, observe
from llmzero_ray.dynamics.incumbent import standings_by_score
from llmzero_ray.dynamics.observations import rate_is_zero, reward_rising, stands_still
from llmzero_ray.records import StopDecision
from llmzero_ray.records.agents import Standing, StopRequest
from llmzero_ray.records.metrics import Series
from llmzero_ray.records.significance import Difference
from llmzero_ray.utils.text import number

RULE = "early_stopper"


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Parameters of the judgement."""

    earliest: float = 0.5
    """Share of a phase's steps before which its trajectory is not judged."""
    behind: float = 1.0
    """Standard errors of the difference at equal global step from which the phase is behind."""
    slack: float = 3.0
    """Standard errors, of the difference to the best score, that are added to the outlook."""
    take_off: float = 0.15
    """Minimum excess of the train reward's growth over validation's, each relative to its own beginning, that
    announces a late take-off."""


FITTED = Thresholds()
OVERFIT = 2.0
"""Margins of lost validation from which a rising train reward no longer announces a take-off."""
RUN_NOISE = 0.02
"""Standard deviation of a validation between two trainings that differ only by chance, beyond the noise of
the items."""


class ExpertEarlyStopper:
    """Judge of a running phase. `n_val` (validation items) determines the noise of its scores."""

    def __init__(self, *, n_val: int = 500, thresholds: Thresholds = FITTED) -> None:
        self._n_val, self._thresholds = n_val, thresholds

    def judge(self, request: StopRequest) -> StopDecision:
        """Decision: STOP only if this run cannot realistically beat the incumbent, CONTINUE if in doubt."""
        running = request.running
        d = observe(running.curves, running.hyperparameters, n_val=self._n_val)
        target = best_score(request)
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
        standings = request.standings or standings_by_score(
            running, request.incumbent_path, target, n_val=self._n_val
        )
        early = _too_early(d, standings, running.n_steps, self._thresholds)
        return _continue(early) if early else self._by_trajectory(d, standings, running.n_steps, target)

    def _by_trajectory(
        self, d: Dynamics, standings: tuple[Standing, ...], n_steps: int, target: float
    ) -> StopDecision:
        v, now, thresholds = d.validation, standings[-1], self._thresholds
        assert v is not None and now.to_best is not None
        same = now.at_same_step
        if same is not None and not is_behind(same, thresholds.behind):
            there = f"{_signed(same)} at global step {now.global_step}"
            return _continue(f"it is not behind the incumbent at this step ({there})")
        left = n_steps - d.last_step
        level, rate = max(v.scores[-2:]), pace(v)
        slack = thresholds.slack * math.hypot(now.to_best.standard_error, RUN_NOISE)
        outlook = level + rate * left + slack
        forecast = (
            f"validation {v.last:.3f} at step {v.steps[-1]}, {_signed(now.to_best)} to the best; at "
            f"{rate:+.4f} a step for {left} more and {slack:.3f} for noise: {outlook:.3f}"
        )
        if outlook >= target:
            return _continue(f"{forecast} may reach {target:.3f}")
        announced = takes_off(d, thresholds.take_off)
        if announced:
            return _continue(announced)
        return _stop(f"{forecast} stays below {target:.3f}")


def best_score(request: StopRequest) -> float | None:
    """Score that a phase has to beat, or None if there is none."""
    if request.incumbent.score is not None:
        return request.incumbent.score
    return max((score for _, score in request.incumbent_path), default=None)


def is_behind(difference: Difference, errors: float) -> bool:
    """Whether a difference is below 0 by more than `errors` of its standard errors."""
    return difference.gain < -errors * difference.standard_error


def pace(v: Validation) -> float:
    """Gain of validation per step: the larger slope of the line through all points and of the last two. A
    fall counts as 0."""
    steps = (0, *v.steps) if v.start is not None else v.steps
    scores = (v.start, *v.scores) if v.start is not None else v.scores
    trend = fit(Series("validation", steps, scores))
    return max(0.0, trend.slope, (scores[-1] - scores[-2]) / (steps[-1] - steps[-2]))


def takes_off(d: Dynamics, more: float = FITTED.take_off) -> str:
    """Description of a late take-off, or empty if there is none.

    In a take-off, sampled answers improve beyond their noise, and by at least `more` more than validation.
    Growth is relative to each one's own beginning, because a reward need not be an accuracy.
    """
    v, reward = d.validation, d.reward
    if v is None or not len(reward) or not reward_rising(d):
        return ""
    begin = v.start if v.start is not None else v.scores[0]
    if v.last < max(v.best, begin) - OVERFIT * v.margin:
        return ""
    sampled, greedy = _growth(reward.first, reward.last), _growth(begin, v.last)
    if sampled < more + max(0.0, greedy):
        return ""
    return (
        f"a take-off may come: the train reward rose {number(reward.first)} -> {number(reward.last)}, "
        f"validation {begin:.3f} -> {v.last:.3f}"
    )


def _growth(begin: float, now: float) -> float:
    """Growth as a share of the beginning, infinite for a gain from 0."""
    if begin > 0:
        return now / begin - 1
    return math.inf if now > begin else 0.0


def _stop(reason: str) -> StopDecision:
    return StopDecision(stop=True, reason=reason, rule=RULE)


def _continue(reason: str) -> StopDecision:
    return StopDecision(stop=False, reason=reason, rule=RULE)


def _noise(v: Validation | None) -> float:
    return 0.25 * v.se if v is not None else 0.0


def _signed(difference: Difference) -> str:
    return f"{difference.gain:+.3f} ± {difference.standard_error:.3f}"


def _untrained(d: Dynamics) -> str:
    """Why this run does not train, or empty if it does."""
    if rate_is_zero(d):
        return f"the learning rate was 0 in all {len(d.learning_rate)} steps"
    if not stands_still(d):
        return ""
    moved = "" if not len(d.kl) else f", {d.kl.name} stays at {number(d.kl.last)}"
    level = f"validation stays at {d.validation.last:.3f}" if d.validation is not None else ""
    return f"nothing moves in {d.n_steps} steps: {level}{moved}, reward within its noise"


def _too_early(d: Dynamics, standings: tuple[Standing, ...], n_steps: int, thresholds: Thresholds) -> str:
    """Why the trajectory cannot be judged yet, or empty if it can."""
    if len(standings) < 2 or d.validation is None:
        return f"{len(standings)} validations, its start included: too few to judge"
    if d.validation.steps[-1] < thresholds.earliest * n_steps:
        begin = f"judged from {thresholds.earliest:.0%} of its {n_steps} steps on"
        return f"{begin}, validated at {d.validation.steps[-1]}"
    return ""
