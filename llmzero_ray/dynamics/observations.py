"""Predicates on dynamics that are shared by diagnoses and the early stopper, and facts as text with
numbers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from llmzero_ray.dynamics.features import Dynamics, Spike, Validation, find_spike, fit
from llmzero_ray.records.metrics import Series
from llmzero_ray.utils.text import number

LOW_ENTROPY = 0.35
"""Share of its first level at which entropy counts as low (the paper's collapse: 0.2 of 0.7-0.8)."""
NO_KL = 1e-3
"""KL to the base model up to which a policy may still equal it, given low precision."""
HARDLY_MOVED = 5e-3
"""KL to the base model below which a phase of ten steps or more has hardly moved the policy; the bound of a
shorter phase is lower in proportion. Phases of tiny models had at least .011 after ten steps if they learned
something later, and .001 if they learned nothing in thirty."""
MOVING_STEPS = 5
"""Number of steps after which a policy that has hardly moved is meaningful."""
QUIET_UPDATE = 2e-3
"""Usual KL of an update, and the lowest level from which its spikes are measured."""
LITTLE_ROOM = 0.03
"""Remaining gain, as a share of the range from chance to 1, below which little is left."""
LEAST_STEPS = 8
"""Minimum number of steps after which an unchanged policy is meaningful."""
NEAR_BASE = 0.05
"""KL to the base model up to which a rising KL means that the run has only begun."""
LOST = 0.5
"""Share of its best level that the reward must lose to count as lost."""
CLIMB = 0.5
"""Rise of the entropy over its lowest level that counts as a climb: this share of the level, but at least
`LEAST_CLIMB` nats, and never more than this number of nats."""
LEAST_CLIMB = 0.2
NEVER = 0.9
"""Share of responses cut off, or mean length / cap, from which answers do not end by themselves."""
REWARDED = 0.25
"""Minimum share of sampled answers that are cut off but rewarded, for a doubtful rise."""
GREW = 0.2
"""Minimum growth of that share within the phase, for a doubtful rise."""


# --- evidence in words
# ----------------------------------------------------------------------------------------------


def course(series: Series) -> tuple[str, ...]:
    """Course of a series as text: `actor/kl_loss 0.02 -> 0.31 (x15) over steps 8-20`. Empty if the series
    is."""
    if not len(series):
        return ()
    first, last = series.first, series.last
    ratio = f" (x{number(last / first)})" if first > 1e-9 and last >= 0 else ""
    values = f"{series.name} {number(first)} -> {number(last)}{ratio}"
    return (f"{values} over steps {series.steps[0]}-{series.steps[-1]}",)


def validated(v: Validation | None) -> tuple[str, ...]:
    """The last validation scores with their steps and their standard error."""
    if v is None:
        return ()
    start = f"{v.start:.3f} at the start, " if v.start is not None else ""
    points = ", ".join(f"{score:.3f}@{step}" for step, score in zip(v.steps[-6:], v.scores[-6:], strict=True))
    return (f"validation {start}{points} (standard error {v.se:.3f})",)


def spiked(spike: Spike | None, name: str) -> tuple[str, ...]:
    """Size and step of a spike."""
    if spike is None:
        return ()
    rise = f"{name} {number(spike.before)} -> {number(spike.peak)} (x{number(spike.factor)})"
    return (f"{rise} from step {spike.onset}, peak at step {spike.peak_step}",)


# --- questions several patterns ask
# ---------------------------------------------------------------------------------


def reward_rising(d: Dynamics) -> bool:
    """Whether the training reward still rises beyond its noise, late in the phase or steadily throughout."""
    whole, late = fit(d.reward), fit(d.reward.since(d.half))
    steadily = whole.rising and late.change >= 0.3 * whole.change
    return steadily or (late.rising and len(d.reward) >= 8)


def reward_lost(d: Dynamics) -> tuple[float, int] | None:
    """(share lost, step of the best level) if the reward has fallen far from its best level and not
    recovered, otherwise None."""
    level = d.reward_level
    smooth = level.smooth()
    if len(smooth) < 4:
        return None
    peak = max(smooth.values)
    step = smooth.steps[smooth.values.index(peak)]
    lost = peak - level.last
    solid = lost > 3 * fit(level.until(step)).noise and peak > 0
    return (lost / peak, step) if solid and lost / peak >= LOST else None


def any_spike(d: Dynamics) -> tuple[Spike | None, str]:
    """(first spike, metric) of the KL to the base model, or else of the KL of updates. The spike is None if
    neither has one."""
    spike = find_spike(d.kl, floor=NEAR_BASE / 5)
    return (spike, d.kl.name) if spike else (find_spike(d.ppo_kl, floor=QUIET_UPDATE), d.ppo_kl.name)


def entropy_is_low(d: Dynamics) -> bool:
    """Whether entropy has fallen to a fraction of its first level, which was not 0. Only meaningful together
    with the reward."""
    return len(d.entropy) >= 6 and d.entropy.first > 0 and d.entropy.last <= LOW_ENTROPY * d.entropy.first


@dataclass(frozen=True, kw_only=True)
class EntropyClimb:
    """A rise of the entropy without any gain."""

    low: float
    """Level before the rise, a mean over three steps."""
    since: int
    """Last of these three steps."""
    last: float
    """Mean over three steps at the end."""


def entropy_climb(d: Dynamics) -> EntropyClimb | None:
    """Large rise of the entropy that lasts to the end, without a gain in reward or validation, or None."""
    smooth = d.entropy.smooth()
    if len(d.entropy) < 6:
        return None
    last, least = smooth.values[-1], min(smooth.values)
    near_least = [i for i, value in enumerate(smooth.values) if value <= least + 0.05 * (last - least)]
    low, since = smooth.values[near_least[-1]], smooth.steps[near_least[-1]]
    came_back = last - low < 0.5 * (max(smooth.values) - low)
    jumps = median(abs(b - a) for a, b in pairwise(d.entropy.values))
    enough = last - low >= max(LEAST_CLIMB, min(CLIMB * low, CLIMB), 4 * jumps)
    if came_back or not enough or not fit(d.entropy.since(since)).rising:
        return None
    reward = d.reward.since(since)
    gained = len(reward) > 2 and reward.last - reward.first > 2 * fit(reward).noise
    if gained or reward_rising(d) or (d.validation is not None and improved_after(d.validation, since)):
        return None
    return EntropyClimb(low=low, since=since, last=last)


def improved_after(v: Validation, step: int) -> bool:
    """Whether a validation after the step beats all earlier ones, including the start, by more than noise. If
    there is no earlier one, whether a later one beats the first."""
    points = list(zip(v.steps, v.scores, strict=True))
    earlier = [score for at, score in points if at <= step] + ([v.start] if v.start is not None else [])
    later = [score for at, score in points if at > step]
    return bool(later) and max(later) > max(earlier or later[:1]) + v.margin


def rewarded_when_cut_off(d: Dynamics) -> str | None:
    """Statement that sampled answers were cut off and still rewarded, if their share has grown.

    With rewards up to 1, a mean reward of R needs at least a share R of rewarded answers. If only a share
    1 - T ends by itself, at least R + T - 1 were cut off and rewarded. None if that share is small or has not
    grown, or if rewards exceed 1.
    """
    if d.sampled is None or not len(d.truncated):
        return None
    (r0, t0), (r1, t1) = (d.reward.first, d.truncated.first), (d.reward.last, d.truncated.last)
    first, last = max(0.0, r0 + t0 - 1.0), max(0.0, r1 + t1 - 1.0)
    if last < REWARDED or last - first < GREW:
        return None
    return (
        f"At least {last:.0%} of the sampled answers were cut off at the cap of {d.cap} tokens and rewarded "
        f"all the same (share cut off {t0:.0%} -> {t1:.0%}, mean reward {r0:.3f} -> {r1:.3f})."
    )


def right_without_answer(d: Dynamics) -> str | None:
    """Statement that validation rows are right without an answer, if their share has grown."""
    values = d.unanswered.values
    if not values or values[-1] < REWARDED or values[-1] - min(values) < GREW:
        return None
    return (
        f"At least {values[-1]:.0%} of the validation answers are right although none was found in its "
        f"place: accuracy minus fmt_ok went {values[0]:.3f} -> {values[-1]:.3f}."
    )


def cap_is_harmless(d: Dynamics) -> bool:
    """Whether most answers are cut off and most of these are rewarded, so that the cap does not limit the
    score."""
    if d.sampled is None or not len(d.truncated) or d.truncated.last < 0.5:
        return False
    return d.reward.last + d.truncated.last - 1.0 >= 0.5 * d.truncated.last


def ends_never(d: Dynamics) -> bool:
    """Whether nearly all answers reach the cap, both at the start and at the end. If the share at the cap is
    not logged, the mean length is compared with the cap."""
    found, most = (d.truncated, 1.0) if len(d.truncated) else (d.length, float(d.cap))
    if not d.cap or not len(found):
        return False
    return NEVER * most <= min(found.first, found.last) and max(found.first, found.last) <= most


def rate_is_zero(d: Dynamics) -> bool:
    """Whether the learning rate was 0 in every step."""
    return len(d.learning_rate) > 0 and not any(d.learning_rate.values)


def stands_still(d: Dynamics) -> bool:
    """Whether nothing is trained: the learning rate is 0, or no metric has a trend, the KL is 0 and the
    answers do not change.

    This is not a policy that trains but is stuck: that changes a few answers, or has long left the base
    model. Small runs stayed at the same score for ten steps or more before they improved.
    """
    if rate_is_zero(d):
        return True
    watched = [s for s in (d.reward, d.kl, d.entropy, d.length) if len(s)]
    if len(d.reward) < LEAST_STEPS or len(watched) < 2:
        return False
    if any(fit(s).rising or fit(s).falling for s in watched):
        return False
    return max(d.kl.values, default=0.0) <= NO_KL and _same_scores(d.validation)


def hardly_moves(d: Dynamics) -> bool:
    """Whether a phase of at least `MOVING_STEPS` left the policy near the base model without losing accuracy.
    A phase of fewer than `LEAST_STEPS`, or without a validation, must not gain either: it may only have
    begun."""
    if len(d.reward) < MOVING_STEPS or not len(d.kl):
        return False
    v, bound = d.validation, HARDLY_MOVED * min(1.0, len(d.kl) / 10)
    if d.kl.last >= bound or (v is not None and v.gains and v.gains[-1].fell):
        return False
    return (v is not None and len(d.reward) >= LEAST_STEPS) or gains_nothing(d)


def gains_nothing(d: Dynamics) -> bool:
    """Whether neither the reward nor validation rises."""
    return not reward_rising(d) and not (d.validation is not None and d.validation.gain > d.validation.margin)


def little_room(score: float, chance: float) -> bool:
    """Whether a score is almost 1, relative to chance."""
    return 1.0 - score <= LITTLE_ROOM * (1.0 - chance)


def warms_up(d: Dynamics) -> bool:
    """Whether the policy moves away from the base model without any change in reward so far."""
    near_base = len(d.kl) > 0 and d.kl.last < NEAR_BASE and fit(d.kl).rising
    return near_base and not fit(d.reward).falling


def _same_scores(v: Validation | None) -> bool:
    """Whether there are at least three scores, including the start, and they differ by at most one answer."""
    scores = () if v is None else v.scores if v.start is None else (v.start, *v.scores)
    return v is not None and len(scores) >= 3 and max(scores) - min(scores) <= 1.5 * v.one_item


def is_flat(v: Validation) -> bool:
    """Whether the later validations are no better than the earlier ones, within their noise."""
    return v.recent_gain <= v.margin and v.last_gain <= v.margin
