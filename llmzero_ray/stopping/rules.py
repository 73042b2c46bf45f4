"""Rules that end a running phase because of its metrics: shipped ones, and those named in `stopper.rules`.

Not here: rules that only warn the early stopper (signals.py), when rules are checked (policy.py), wall-clock
limits and runners that do not respond (actors/monitor.py).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from itertools import pairwise
from statistics import fmean, median
from typing import Protocol

from llmzero_ray.config import StopperSettings
from llmzero_ray.dynamics.features import Dynamics, observe, reward_levels
from llmzero_ray.dynamics.observations import MOVING_STEPS, gains_nothing, hardly_moves, little_room
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters.verl_keys import LR
from llmzero_ray.records import HyperparameterValue
from llmzero_ray.records.agents import NodeView
from llmzero_ray.records.metrics import (
    ADVANTAGE_MEAN,
    ENTROPY,
    GRAD_NORM,
    KLS,
    LEARNING_RATE,
    LOSS,
    PG_LOSS,
    REWARDS,
    Curves,
)
from llmzero_ray.utils.plugins import make
from llmzero_ray.utils.text import is_number, number, one_line

logger = logging.getLogger(__name__)
WATCHED = (
    PG_LOSS,
    LOSS,
    *KLS,
    GRAD_NORM,
    ENTROPY,
    *REWARDS,
    ADVANTAGE_MEAN,
    LEARNING_RATE,
)
"""Metrics that are finite in any healthy run. Others may be NaN for good reasons, such as a batch without
complete responses."""
QUIET_KL = 0.01
"""KL below which its growth factor means nothing, because estimates for a policy that barely moved scatter
around 0."""
WINDOW = 3
"""Number of steps averaged for a level of the reward, because one bad batch is not a collapse."""
KL_SPIKE = 3.0
"""Factor over its earlier median from which a KL counts as a spike."""
REWARD_DROP = 0.6
"""Share of its best level that the mean reward must have lost for a collapse."""


class StopRule(Protocol):
    """Check for one problem of a running phase. If it finds the problem, the policy ends the phase.

    One object checks all running phases of a search.
    """

    def check(self, phase: NodeView) -> str | None:
        """Description of the problem with its numbers. None if there is none, or too little is known.

        `phase.curves` has the points so far. The method is called after every training step and must return
        within milliseconds.
        """
        ...


class NonFinite:
    """A loss, gradient or reward that is NaN or infinite at the last step."""

    def check(self, phase: NodeView) -> str | None:
        """Description of the first watched metric that is not finite at the last step, or None."""
        curves = phase.curves
        for metric in WATCHED:
            for value in curves.metrics.get(metric, ())[-1:]:
                if value is not None and not math.isfinite(value):
                    return f"{metric} is {value} at step {curves.steps[-1]}"
        return None


class Collapse:
    """A KL spike together with a fall of the reward. Either one alone is not a collapse.

    If KL and reward rise together, the policy is learning, and a reward may dip for a batch or two.
    """

    def check(self, phase: NodeView) -> str | None:
        """Description of the KL's rise and the reward's fall, or None."""
        curves = phase.curves
        levels = reward_levels(curves)
        reward = list(zip(levels.steps, levels.values, strict=True))
        fall = self._fall(reward) if len(reward) > 2 * WINDOW else None
        if fall is None:
            return None
        peak_step, share = fall
        for name in KLS:
            spike = self._spike(_finite(curves, name), peak_step)
            if spike is not None:
                lost = f"the reward lost {share:.0%} of its level at step {peak_step}"
                return f"{name} rose x{spike:.1f} and {lost}"
        return None

    def _fall(self, reward: list[tuple[int, float]]) -> tuple[int, float] | None:
        """(step of the best level, share lost since then) if the last `WINDOW` steps all stayed far below it.

        With few prompts per step, the reward scatters by half its level. The fall must therefore also exceed
        three times the scatter.
        """
        w = WINDOW
        ends = range(w - 1, len(reward) - w)
        levels = [(reward[i][0], fmean(v for _, v in reward[i + 1 - w : i + 1])) for i in ends]
        if not levels:
            return None
        step, peak = max(levels, key=lambda level: level[1])
        lost = peak - max(v for _, v in reward[-w:])
        solid = peak > 0 and lost >= 3 * _scatter([v for _, v in reward[:-w]])
        return (step, lost / peak) if solid and lost / peak >= REWARD_DROP else None

    def _spike(self, kl: list[tuple[int, float]], peak_step: int) -> float | None:
        """Factor by which the KL after the reward's best step exceeds its earlier median. None if it is below
        `KL_SPIKE`."""
        before = [abs(v) for step, v in kl if step <= peak_step]
        after = [abs(v) for step, v in kl if step > peak_step]
        if len(before) < WINDOW or not after:
            return None
        factor = max(after) / max(median(before), QUIET_KL)
        return factor if factor >= KL_SPIKE else None


class Unmoved:
    """A first phase whose policy is still the base model after half of its steps, without any gain.

    Its learning rate is too low: the second half would not change that, and a stop leaves its compute to a
    phase with a higher rate. Later phases often have a low rate because a higher one lost. `n_val`, the
    number of validation items, determines the noise of its scores.
    """

    def __init__(self, n_val: int = 500) -> None:
        self._n_val = n_val

    def check(self, phase: NodeView) -> str | None:
        """Description of the KL that stayed low, or None."""
        last = max(phase.curves.steps, default=0)
        if phase.kind != "root" or not phase.n_steps / 2 <= last < phase.n_steps:
            return None
        d = observe(phase.curves, phase.hyperparameters, n_val=self._n_val)
        if not self._at_full_rate(d, phase.hyperparameters.get(LR)):
            return None
        if not hardly_moves(d) or not gains_nothing(d):
            return None
        if d.validation is not None and little_room(d.validation.best, 0.0):
            return None
        return (
            f"{d.kl.name} is still {number(d.kl.last)} after {last} of {phase.n_steps} steps, and neither "
            "the reward nor validation rises: the learning rate is too low"
        )

    def _at_full_rate(self, d: Dynamics, rate: HyperparameterValue) -> bool:
        """Whether the phase has trained for `MOVING_STEPS` at half of its learning rate or more, so that it
        is neither warming up nor at the end of a decay."""
        full = [value for value in d.learning_rate.values if is_number(rate) and value >= rate / 2]
        return len(full) >= MOVING_STEPS and d.learning_rate.values[-1] == full[-1]


def _finite(curves: Curves, name: str) -> list[tuple[int, float]]:
    values = curves.metrics.get(name, ())
    pairs = zip(curves.steps, values, strict=False)
    return [(step, value) for step, value in pairs if value is not None and math.isfinite(value)]


def _scatter(values: list[float]) -> float:
    """Standard deviation of values around their trend, estimated from the median of the differences between
    neighbours."""
    moves = [abs(b - a) for a, b in pairwise(values)]
    return 1.05 * median(moves) if moves else 0.0


class _ExternalRule:
    """A rule of another package. After its first failure, which is logged, it is no longer called."""

    def __init__(self, name: str, settings: StopperSettings) -> None:
        self._rule: StopRule | None = make(name, settings, field="stopper.rules")
        self._name = name

    def check(self, phase: NodeView) -> str | None:
        """Reason of the rule on one line, or None."""
        if self._rule is None:
            return None
        try:
            reason = self._rule.check(phase)
            if reason is not None and not isinstance(reason, str):
                raise TypeError(f"check gave a {type(reason).__name__}; must be a text or None")
        except Exception:
            self._rule = None
            logger.exception("node=%d: stop rule %s failed and is left out", phase.node, self._name)
            return None
        return one_line(reason) if reason else None


HARD = "non_finite"
"""Rule whose STOP applies even while the coordinator cannot be reached."""


def make_rules(settings: StopperSettings, n_val: int = 500) -> Mapping[str, StopRule]:
    """Name -> rule that may end a phase, in the order of the checks: the shipped ones, then `settings.rules`.
    `n_val` is the number of validation items.

    Raises:
        ConfigError: a rule in `settings.rules` cannot be loaded or made, or its name is already taken.
    """
    rules: dict[str, StopRule] = {HARD: NonFinite()}
    if settings.collapse:
        rules["collapse"] = Collapse()
    if settings.unmoved:
        rules["unmoved"] = Unmoved(n_val)
    for name in settings.rules:
        if name in rules:
            raise ConfigError(
                f"stopper.rules names {name!r}, which is among the rules already: {', '.join(rules)}. Take "
                "it out of the list."
            )
        rules[name] = _ExternalRule(name, settings)
    return rules
