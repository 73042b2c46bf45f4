"""Numbers that describe the dynamics of one phase: trends with their noise, spikes, levels, plateaus.

`observe` turns recorded curves into a `Dynamics` without judging them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, median

from llmzero_ray.dynamics.gains import ScoreGain, gains
from llmzero_ray.hyperparameters import clip_is_inert
from llmzero_ray.hyperparameters.verl_keys import MAX_RESPONSE, TEMPERATURE
from llmzero_ray.records import Hyperparameters
from llmzero_ray.records.metrics import (
    ADVANTAGE_MAX,
    ADVANTAGE_MIN,
    CLIPFRAC,
    ENTROPY,
    GRAD_NORM,
    KL,
    LEARNING_RATE,
    LENGTH,
    LENGTH_AT_MAX,
    LENGTH_MAX,
    PPO_KL,
    REWARD_MAX,
    REWARD_MIN,
    REWARDS,
    VAL_AUX,
    VAL_CORE,
    Curves,
    Series,
    accuracy_error,
    series,
)
from llmzero_ray.utils.text import is_number

SPIKE = 5.0
"""Factor over a settled level from which a jump counts as a spike."""
_SETTLING = 5


def significance(n: int) -> float:
    """Threshold of |slope| / standard error for a trend of n points, with an error probability of about 2 %.

    Close to Student's quantiles for n - 2 degrees of freedom: 5 at 3 points, 3.1 at 10, 2.5 at 40.
    """
    return 2.3 + 8 / max(n, 1)


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Least-squares line through a series."""

    n: int
    slope: float
    """Slope per step."""
    slope_se: float
    """Standard error of the slope. Infinite with fewer than 3 points."""
    noise: float
    """Standard deviation of the residuals."""
    change: float
    """Fitted end minus fitted start."""

    @property
    def t(self) -> float:
        """Slope in standard errors: ±inf for a perfect line, 0 for a constant."""
        if self.slope == 0 or math.isinf(self.slope_se):
            return 0.0
        return self.slope / self.slope_se if self.slope_se > 0 else math.copysign(math.inf, self.slope)

    @property
    def rising(self) -> bool:
        """Whether the rise exceeds the noise."""
        return self.t >= significance(self.n)

    @property
    def falling(self) -> bool:
        """Whether the fall exceeds the noise."""
        return self.t <= -significance(self.n)


def fit(series: Series) -> Trend:
    """Fit a line to a series. It is flat with an infinite error if there are fewer than 2 points."""
    n = len(series)
    if n < 2 or series.steps[0] == series.steps[-1]:
        return Trend(n=n, slope=0.0, slope_se=math.inf, noise=0.0, change=0.0)
    x, y = series.steps, series.values
    mean_x, mean_y = fmean(x), fmean(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    rest = [b - mean_y - slope * (a - mean_x) for a, b in zip(x, y, strict=True)]
    noise = math.sqrt(sum(r * r for r in rest) / (n - 2)) if n > 2 else 0.0
    # For a constant series, rounding leaves a slope of ~1e-17, which is none.
    tiny = 1e-12 * max(1.0, abs(mean_y))
    slope_se = noise / math.sqrt(spread) if n > 2 else math.inf
    if abs(slope) * (x[-1] - x[0]) < tiny:
        slope = 0.0
    return Trend(n=n, slope=slope, slope_se=slope_se, noise=noise, change=slope * (x[-1] - x[0]))


@dataclass(frozen=True, kw_only=True)
class Spike:
    """A rise of a metric far above its own past."""

    onset: int
    """First step at or above `SPIKE` times the previous level."""
    peak_step: int
    peak: float
    before: float
    """Median level before the onset."""
    factor: float
    """peak / before."""


def find_spike(series: Series, *, floor: float) -> Spike | None:
    """First jump to `SPIKE` times a settled level that lasts at least two points, or None.

    The level is the median of five points, but at least `floor`. The last point before the jump is skipped,
    because it may already belong to it. If one of the five exceeds 2.5 times the level, the metric has not
    settled: in normal training, the KL grows by large factors from almost 0.
    """
    for i in range(_SETTLING + 1, len(series) - 1):
        window = series.values[i - 1 - _SETTLING : i - 1]
        before = max(median(window), floor)
        bound = SPIKE * before
        settled = max(window) <= 2.5 * before
        if settled and series.values[i] >= bound and series.values[i + 1] >= bound:
            peak = max(series.values[i:])
            return Spike(
                onset=series.steps[i],
                peak_step=series.steps[series.values.index(peak, i)],
                peak=peak,
                before=before,
                factor=peak / before,
            )
    return None


def change_point(series: Series) -> int | None:
    """Step at the best split of a series into two levels, if the split explains most of the variance,
    otherwise None."""
    n = len(series)
    if n < 6:
        return None
    mean = fmean(series.values)
    deviations = [v - mean for v in series.values]
    total, sums = sum(d * d for d in deviations), enumerate(accumulate(deviations), 1)
    explained = {i: s * s * n / (i * (n - i)) for i, s in sums if 1 < i < n - 1}
    best = max(explained, key=explained.__getitem__)
    return series.steps[best] if total > 0 and explained[best] > 0.7 * total else None


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Validation curve, including step 0 if it was validated."""

    steps: tuple[int, ...]
    scores: tuple[float, ...]
    start: float | None
    """Score at step 0: that of the policy from which the phase started."""
    best: float
    best_step: int
    last: float
    se: float
    """Standard error of one score over the items, at the best score's level."""
    one_item: float
    """Change in score per additional correct answer."""
    gains: tuple[ScoreGain, ...] = ()
    """Change of each score from the start, paired if outcomes were stored. Empty without a start."""

    @property
    def margin(self) -> float:
        """Smallest difference of two scores that counts: 1.5 standard errors of one score. That suffices
        because both scores are of the same items."""
        return 1.5 * self.se

    @property
    def gain(self) -> float:
        """Best score minus the start, or minus the first score without a start."""
        return self.best - (self.start if self.start is not None else self.scores[0])

    @property
    def recent_gain(self) -> float:
        """Mean of the later half of the points, including the start, minus mean of the earlier half. 0 with
        one point."""
        points = ((self.start,) if self.start is not None else ()) + self.scores
        half = len(points) // 2
        return fmean(points[-half:]) - fmean(points[:half]) if half else 0.0

    @property
    def last_gain(self) -> float:
        """Last score minus the best earlier one, including the start. 0 with one point."""
        earlier = ((self.start,) if self.start is not None else ()) + self.scores[:-1]
        return self.last - max(earlier) if earlier else 0.0

    @property
    def swings(self) -> int:
        """Number of reversals of direction in which both moves exceed 2 margins."""
        moves = [b - a for a, b in pairwise(self.scores)]
        big = 2 * self.margin
        return sum(a * b < 0 and min(abs(a), abs(b)) > big for a, b in pairwise(moves))


@dataclass(frozen=True, kw_only=True)
class Dynamics:
    """Numbers that describe a phase. A series is empty if its metric was not logged."""

    n_steps: int
    last_step: int
    reward: Series
    reward_level: Series
    """Rewards as levels in [0, 1] (`reward_levels`), to compare with a share."""
    kl: Series
    ppo_kl: Series
    entropy: Series
    grad_norm: Series
    clipfrac: Series
    length: Series
    learning_rate: Series
    truncated: Series
    """Share of responses cut off at the cap. 0 if the batch's longest response is shorter."""
    unanswered: Series
    """Lower bound of the share of validation rows that are right although no answer was found: accuracy minus
    `fmt_ok`, of the data source where it is largest. Empty if `fmt_ok` is not logged, or always 0."""
    group_spread: Series
    """Largest minus smallest advantage. 0 if no group has both good and bad answers."""
    cap: int
    clip_inert: bool
    """Whether each step makes only one update on its rollouts, so that clip ranges and ppo_kl have no
    effect."""
    validation: Validation | None
    temperature: float = 1.0
    """Sampling temperature of the rollouts."""
    chance: float = 0.0
    """Score of always answering with the most frequent gold answer, or 0 if not known."""

    @property
    def sampled(self) -> float | None:
        """Accuracy of sampled answers late in the phase. None without rewards, or if some are not in [0,
        1]."""
        rewards = self.reward.values
        outside = self.reward_level != self.reward or not rewards or min(rewards) < 0 or max(rewards) > 1
        return None if outside else self.reward.last

    @property
    def gap(self) -> float | None:
        """Greedy accuracy in the last validation minus accuracy of sampled answers. None if either is
        missing."""
        if self.sampled is None or self.validation is None:
            return None
        return self.validation.last - self.sampled

    @property
    def half(self) -> int:
        """First step of the later half."""
        steps = self.reward.steps or self.kl.steps
        return steps[len(steps) // 2] if steps else 0


def observe(
    curves: Curves, hyperparameters: Hyperparameters, *, n_val: int = 500, chance: float = 0.0
) -> Dynamics:
    """Dynamics of a phase. `n_val`, the number of validation items, determines the noise of its scores."""
    reward = _rewards(curves)
    cap = int(_number(hyperparameters.get(MAX_RESPONSE)))
    return Dynamics(
        n_steps=len(curves.steps),
        last_step=max((*curves.steps, *curves.val_steps), default=0),
        reward=reward,
        reward_level=reward_levels(curves),
        kl=series(curves, KL),
        ppo_kl=series(curves, PPO_KL),
        entropy=series(curves, ENTROPY),
        grad_norm=series(curves, GRAD_NORM),
        clipfrac=series(curves, CLIPFRAC),
        length=series(curves, LENGTH),
        learning_rate=series(curves, LEARNING_RATE),
        truncated=truncated(curves, cap),
        unanswered=_unanswered(curves),
        group_spread=_group_spread(curves),
        cap=cap,
        clip_inert=clip_is_inert(hyperparameters),
        validation=_validation(curves, n_val),
        temperature=_number(hyperparameters.get(TEMPERATURE, 1.0)),
        chance=chance,
    )


def reward_levels(curves: Curves) -> Series:
    """Mean rewards of the steps as levels in [0, 1].

    If answers have rewards below 0 or above 1, a level is the mean's place between the usual lowest reward
    of a step (the median, because a single penalty is no scale) and the highest reward, at least 1: with
    rewards of -1 and 1, the share of right answers. Otherwise, and if these were not logged, levels are the
    rewards themselves.
    """
    reward = _rewards(curves)
    lows = series(curves, REWARD_MIN).values
    low = median(lows) if lows else 0.0
    high = max(series(curves, REWARD_MAX).values, default=1.0)
    if low >= 0 and high <= 1:
        return reward
    if low == high:  # all answers had the same reward so far: none was rewarded, or all were
        low, high = min(low, 0.0), max(high, 0.0)
    high = max(high, 1.0)
    return Series(reward.name, reward.steps, tuple((mean - low) / (high - low) for mean in reward.values))


def _rewards(curves: Curves) -> Series:
    reward = series(curves, REWARDS[0])
    return reward if len(reward) else series(curves, REWARDS[1])


def truncated(curves: Curves, cap: int) -> Series:
    """Share of a step's answers that are cut off at the cap. 0 for steps with only shorter answers."""
    # VeRL's response_length/clip_ratio counts responses as long as the *batch's* longest, not at the cap.
    longest, share = series(curves, LENGTH_MAX), series(curves, LENGTH_AT_MAX)
    longest = longest if len(longest) else series(curves, LENGTH)
    at = dict(zip(longest.steps, longest.values, strict=True))
    values = tuple(
        v if cap and at.get(s, 0.0) >= cap else 0.0 for s, v in zip(share.steps, share.values, strict=True)
    )
    return Series("truncated", share.steps, values)


def _unanswered(curves: Curves) -> Series:
    found: dict[int, float] = {}
    for name in curves.metrics:
        answered = series(curves, name)
        if not name.startswith(VAL_AUX) or "/fmt_ok/mean@" not in name or not any(answered.values):
            continue
        accuracy = series(curves, name.replace(VAL_AUX, VAL_CORE, 1).replace("/fmt_ok/", "/acc/"))
        at = dict(zip(answered.steps, answered.values, strict=True))
        for step, value in zip(accuracy.steps, accuracy.values, strict=True):
            found[step] = max(found.get(step, 0.0), value - at.get(step, value))
    return Series("unanswered", tuple(sorted(found)), tuple(found[step] for step in sorted(found)))


def _group_spread(curves: Curves) -> Series:
    high, low = series(curves, ADVANTAGE_MAX), series(curves, ADVANTAGE_MIN)
    at = dict(zip(low.steps, low.values, strict=True))
    pairs = [(s, v - at[s]) for s, v in zip(high.steps, high.values, strict=True) if s in at]
    return Series("advantages", tuple(s for s, _ in pairs), tuple(v for _, v in pairs))


def _validation(curves: Curves, n_val: int) -> Validation | None:
    pairs = [(s, v) for s, v in zip(curves.val_steps, curves.val_scores, strict=True) if math.isfinite(v)]
    if not pairs:
        return None
    steps, scores = tuple(s for s, _ in pairs), tuple(v for _, v in pairs)
    best = max(scores)
    start = curves.start_score
    return Validation(
        steps=steps,
        scores=scores,
        start=start if start is not None and math.isfinite(start) else None,
        best=best,
        best_step=steps[scores.index(best)],
        last=scores[-1],
        se=accuracy_error(best, n_val),
        one_item=1.0 / n_val,
        gains=gains(curves, n_val),
    )


def _number(value: object) -> float:
    return float(value) if is_number(value) else 0.0
