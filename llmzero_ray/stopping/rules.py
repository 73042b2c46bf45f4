"""Rules that end a running phase on its numbers alone: one short class each, pure functions of its curves.

A rule returns STOP with its reason, or None. Not here: the early-stopper agent
(agents/expert/early_stopper.py), when rules are checked (policy.py), wall-clock limits and runners that do
not respond (actors/monitor.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Protocol

from llmzero_ray.config.stopping import StopperSettings
from llmzero_ray.records import StopDecision
from llmzero_ray.records.metrics import (
    ADVANTAGE_MEAN,
    ENTROPY,
    GRAD_NORM,
    KLS,
    LOSS,
    PG_LOSS,
    REWARDS,
    Curves,
)

WATCHED = (
    PG_LOSS,
    LOSS,
    *KLS,
    GRAD_NORM,
    ENTROPY,
    *REWARDS,
    ADVANTAGE_MEAN,
)
"""Metrics that are numbers in any sound run. Others may be NaN for good reasons (a batch without full
responses)."""
QUIET_KL = 0.01
"""KL below which a factor is meaningless: estimates for a policy that barely moved scatter around 0."""


class Rule(Protocol):
    """One reason to end a phase."""

    name: str

    def check(self, curves: Curves) -> StopDecision | None:
        """STOP with its reason, or None."""
        ...


@dataclass(frozen=True, kw_only=True)
class NonFinite:
    """A loss, gradient or reward that is NaN or infinite in the last `steps` steps. Hard: nothing good can
    follow.

    (VeRL skips an update whose gradient is not finite; the loss that made it is lost all the same.)
    """

    steps: int = 1
    name: str = "non_finite"

    def check(self, curves: Curves) -> StopDecision | None:
        """STOP when one watched metric was not finite in each of the last steps."""
        for metric in WATCHED:
            last = curves.metrics.get(metric, ())[-self.steps :]
            if len(last) == self.steps and all(v is not None and not math.isfinite(v) for v in last):
                since = curves.steps[-self.steps]
                reason = f"{metric} is {last[-1]} at step {curves.steps[-1]}"
                reason += f", not finite since step {since}" if self.steps > 1 else ""
                return StopDecision(stop=True, reason=reason, rule=self.name, hard=True)
        return None


@dataclass(frozen=True, kw_only=True)
class Collapse:
    """A KL that spiked and a reward that fell afterwards; either one alone is no collapse.

    A KL that rises beside the reward is learning, and a reward may dip for a batch or two.
    """

    window: int = 3
    kl_factor: float = 3.0
    reward_drop: float = 0.6
    name: str = "collapse"

    def check(self, curves: Curves) -> StopDecision | None:
        """STOP when the reward's level lost its share after a KL rose to its factor."""
        reward = next(
            (found for name in REWARDS if len(found := _finite(curves, name)) > 2 * self.window), []
        )
        fall = self._fall(reward)
        if fall is None:
            return None
        peak_step, share = fall
        for name in KLS:
            spike = self._spike(_finite(curves, name), peak_step)
            if spike is not None:
                lost = f"the reward lost {share:.0%} of its level at step {peak_step}"
                reason = f"{name} rose x{spike:.1f} and {lost}"
                return StopDecision(stop=True, reason=reason, rule=self.name)
        return None

    def _fall(self, reward: list[tuple[int, float]]) -> tuple[int, float] | None:
        """(step of the best level, share lost since) where the last `window` steps all stayed below.

        With few prompts a step the reward scatters by half its level: the fall must stand out of that, too.
        """
        w = self.window
        ends = range(w - 1, len(reward) - w)
        levels = [(reward[i][0], fmean(v for _, v in reward[i + 1 - w : i + 1])) for i in ends]
        if not levels:
            return None
        step, peak = max(levels, key=lambda level: level[1])
        lost = peak - max(v for _, v in reward[-w:])
        solid = peak > 0 and lost >= 3 * _scatter([v for _, v in reward[:-w]])
        return (step, lost / peak) if solid and lost / peak >= self.reward_drop else None

    def _spike(self, kl: list[tuple[int, float]], peak_step: int) -> float | None:
        """How far the KL since the reward's best step exceeds its median before; None below the factor."""
        before = [abs(v) for step, v in kl if step <= peak_step]
        after = [abs(v) for step, v in kl if step > peak_step]
        if len(before) < self.window or not after:
            return None
        factor = max(after) / max(median(before), QUIET_KL)
        return factor if factor >= self.kl_factor else None


def _finite(curves: Curves, name: str) -> list[tuple[int, float]]:
    values = curves.metrics.get(name, ())
    pairs = zip(curves.steps, values, strict=False)
    return [(step, value) for step, value in pairs if value is not None and math.isfinite(value)]


def _scatter(values: list[float]) -> float:
    """Standard deviation of steady values, from the median of their moves: a trend adds little to it."""
    moves = [abs(b - a) for a, b in pairwise(values)]
    return 1.05 * median(moves) if moves else 0.0


def make_rules(settings: StopperSettings) -> tuple[Rule, ...]:
    """The rules that the settings switch on, the hard one first."""
    collapse = Collapse(
        window=settings.collapse_window,
        kl_factor=settings.kl_spike_factor,
        reward_drop=settings.reward_drop,
    )
    return (NonFinite(steps=settings.nonfinite_steps), *((collapse,) if settings.collapse else ()))
