"""Offline early stopper: ends a phase whose validation can no longer exceed the best one.

The highest validation that the phase may still reach is estimated from the line through its validations,
extended to its last step, plus a margin for the run noise measured in this search. A phase continues if the
incumbent's gain over the same steps would be enough. A rising train reward or longer responses do not save a
phase, except for a late take-off: greedy validation is flat while sampled answers clearly improve.

`python -m benchmarks.hindsight` and `python -m benchmarks.stop_recorded` report the rule on recorded phases.
Not here: when to judge (stopping/policy.py), collapse and non-finite metrics (stopping/rules.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import TypeAlias

from llmzero_ray.dynamics.features import Dynamics, Validation, fit, observe
from llmzero_ray.dynamics.incumbent import score_to_beat, scores_along
from llmzero_ray.dynamics.observations import rate_is_zero, reward_rising, stands_still
from llmzero_ray.records import StopDecision
from llmzero_ray.records.agents import StopRequest
from llmzero_ray.records.metrics import Series, accuracy_error
from llmzero_ray.records.significance import CLEAR, NOISE
from llmzero_ray.utils.text import number, plural

RULE = "early_stopper"
TAKE_OFF = 0.15
"""Minimum difference between the train reward's and validation's relative growth that announces a late
take-off."""
OVERFIT = 2.0
"""Loss of validation, in margins, from which a rising train reward no longer announces a take-off."""
LATE = 0.2
"""Minimum share of its steps that a phase must have left to be stopped."""
Points: TypeAlias = Sequence[tuple[int, float]]
"""(step, validation score), by step."""


class ExpertEarlyStopper:
    """Judge of a running phase. `n_val` (validation items) determines the noise of its scores."""

    def __init__(self, *, n_val: int = 500) -> None:
        self._n_val = n_val

    def judge(self, request: StopRequest) -> StopDecision:
        """Decision: STOP only if this run cannot realistically beat the incumbent, CONTINUE if in doubt."""
        settled = self.settled(request)
        if settled is not None:
            return settled
        target = score_to_beat(request.incumbent.score, request.incumbent_path)
        found = phase_outlook(request, self._n_val)
        assert target is not None and found is not None
        forecast = outlook_text(found)
        if found.peak >= target:
            return _continue(f"{forecast}, which may reach {target:.3f}")
        saved = follows(request, target, found.noise) or takes_off(self._observed(request))
        if saved:
            return _continue(saved)
        return _stop(f"{forecast}, below {target:.3f}")

    def settled(self, request: StopRequest) -> StopDecision | None:
        """Decision in clear cases, otherwise None. Clear are: no score to beat, a phase that does not train,
        one that is ahead or near its last step, and one with fewer than two validations."""
        running, target = request.running, score_to_beat(request.incumbent.score, request.incumbent_path)
        if target is None:
            return _continue("there is no score to beat yet")
        d = self._observed(request)
        best = d.validation.best if d.validation is not None else -math.inf
        untrained = _untrained(d)
        if untrained and best <= target + _noise(d.validation):
            return _stop(f"{untrained}; it cannot beat {target:.3f}")
        if best > target:
            return _continue(f"it already beats {target:.3f} with {best:.3f}")
        left = running.n_steps - d.last_step
        if left < LATE * running.n_steps:
            return _continue(f"{left} of its {running.n_steps} steps are left: a stop would save too little")
        n_validations = len(scores_along((running,)))
        if n_validations < 2:
            return _continue(f"{plural(n_validations, 'validation')}, its start included: too few to judge")
        return None

    def _observed(self, request: StopRequest) -> Dynamics:
        running = request.running
        return observe(running.curves, running.hyperparameters, n_val=self._n_val)


def phase_outlook(request: StopRequest, n_val: int) -> Outlook | None:
    """Outlook of the running phase, or None with fewer than two validations. Run noise is measured on its
    curve and on the incumbent's path."""
    running, target = request.running, score_to_beat(request.incumbent.score, request.incumbent_path)
    own = [(step - running.base_step, score) for step, score in scores_along((running,))]
    if len(own) < 2 or target is None:
        return None
    noise = run_noise((own, request.incumbent_path), accuracy_error(target, n_val))
    return outlook(own, running.n_steps, noise)


def follows(request: StopRequest, target: float, noise: float) -> str:
    """Reason to continue: the phase would reach `target` with the incumbent's gain over the remaining steps.
    Empty if it would not, or if the incumbent's path does not reach this step."""
    running, path = request.running, request.incumbent_path
    step, score = scores_along((running,))[-1]
    there = [value for at, value in path if at <= step]
    if not there or path[-1][0] < step:
        return ""
    ahead = [value for at, value in path if step < at <= running.base_step + running.n_steps]
    gained = max((there[-1], *ahead)) - there[-1]
    if score + gained + NOISE * noise < target:
        return ""
    return (
        f"with {score:.3f} at global step {step}, where the incumbent had {there[-1]:.3f} ± {noise:.3f}, it "
        "may still do as the incumbent did"
    )


def outlook_text(found: Outlook) -> str:
    """`validation 0.512 at +0.0010 a step for 10 more and 0.046 for noise: at most 0.568`."""
    course = f"validation {found.level:.3f} at {found.pace:+.4f} a step for {found.steps_left} more"
    return f"{course} and {found.slack:.3f} for noise: at most {found.peak:.3f}"


def takes_off(d: Dynamics) -> str:
    """Description of a late take-off, or empty if there is none.

    In a take-off, sampled answers improve beyond their noise, and by `TAKE_OFF` more than validation. Growth
    is relative to each series' own beginning, because a reward need not be an accuracy.
    """
    v, reward, level = d.validation, d.reward, d.reward_level
    if v is None or not len(reward) or not reward_rising(d):
        return ""
    begin = v.start if v.start is not None else v.scores[0]
    if v.last < max(v.best, begin) - OVERFIT * v.margin:
        return ""
    sampled, greedy = _growth(level.first, level.last), _growth(begin, v.last)
    if sampled < TAKE_OFF + max(0.0, greedy):
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


def _untrained(d: Dynamics) -> str:
    """Reason why this run does not train. Empty if it does."""
    if rate_is_zero(d):
        return f"the learning rate was 0 in all {len(d.learning_rate)} steps"
    if not stands_still(d):
        return ""
    moved = "" if not len(d.kl) else f", {d.kl.name} stays at {number(d.kl.last)}"
    level = f"validation stays at {d.validation.last:.3f}" if d.validation is not None else ""
    return f"nothing moves in {d.n_steps} steps: {level}{moved}, reward within its noise"


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Line through a phase's validations, extended to its last step."""

    level: float
    """Value of the line at the last validation; after a fall, the better of the last two scores."""
    pace: float
    """Gain per step, at least 0, because a falling phase may recover."""
    steps_left: int
    noise: float
    """Run noise (`run_noise`)."""
    slack: float
    """Margin above the line at the last step: `NOISE` standard deviations of a validation, and `CLEAR`
    standard errors of the line's gain."""

    @property
    def peak(self) -> float:
        """Highest validation that may still come."""
        return self.level + self.pace * self.steps_left + self.slack


def outlook(points: Points, n_steps: int, noise: float) -> Outlook:
    """Outlook of a phase of `n_steps` steps with two validations or more, its start included."""
    steps, scores = zip(*points, strict=True)
    pace = max(0.0, fit(Series("validation", steps, scores)).slope)
    left = n_steps - steps[-1]
    spread = math.sqrt(len(steps) * pvariance(steps))
    line = fmean(scores) + pace * (steps[-1] - fmean(steps))
    return Outlook(
        level=min(line, max(scores[-2:])),
        pace=pace,
        steps_left=left,
        noise=noise,
        slack=noise * math.hypot(NOISE, CLEAR * left / spread),
    )


def run_noise(curves: Iterable[Points], item_error: float) -> float:
    """Standard deviation of a validation from step to step, measured on `curves`.

    Each validation is compared with the straight line between its two neighbours. `item_error`, the error due
    to the sample of items, counts as one more such distance. The result is at least `item_error`, and equals
    it if no curve has three validations.
    """
    squares = [item_error**2]
    for points in curves:
        for before, here, after in zip(points, points[1:], points[2:], strict=False):
            share = (here[0] - before[0]) / (after[0] - before[0])
            distance = here[1] - (1 - share) * before[1] - share * after[1]
            squares.append(distance**2 / (1 + (1 - share) ** 2 + share**2))
    return max(item_error, math.sqrt(fmean(squares)))
