"""Predicates on dynamics that several patterns and the early stopper share, and facts as text with
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
"""KL to the base model up to which a policy may still equal it, read in low precision."""
QUIET_UPDATE = 2e-3
"""Usual KL of an update. A spike counts from this level."""
NEAR_BASE = 0.05
"""KL to the base model up to which a rising KL means that the run has only begun."""
LOST = 0.5
"""Share of its best level that the reward loses in a collapse."""
CLIMB = 0.5
"""Rise of the entropy over its lowest level that counts as a climb: this share of the level, but at least
`LEAST_CLIMB` and at most this many nats."""
LEAST_CLIMB = 0.2
NEVER = 0.9
"""Share of responses cut off, or mean length / cap, from which answers do not end by themselves."""
REWARDED = 0.25
"""Share of all sampled answers that are cut off and still rewarded, from which a rise is doubted."""
GREW = 0.2
"""Growth of that share within the phase that makes a rise doubtful."""


# --- evidence in words
# ----------------------------------------------------------------------------------------------


def course(series: Series) -> tuple[str, ...]:
    """`actor/kl_loss 0.02 -> 0.31 (x15) over steps 8-20`, or nothing for an empty series."""
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
    """Whether the train reward still rises beyond its noise: late in the phase, or steadily throughout."""
    whole, late = fit(d.reward), fit(d.reward.since(d.half))
    steadily = whole.rising and late.change >= 0.3 * whole.change
    return steadily or (late.rising and len(d.reward) >= 8)


def reward_lost(d: Dynamics) -> tuple[float, int] | None:
    """(share lost, step of the best level) if the reward has fallen from its best level for good, otherwise
    None."""
    smooth = d.reward.smooth()
    if len(smooth) < 4:
        return None
    peak = max(smooth.values)
    step = smooth.steps[smooth.values.index(peak)]
    lost = peak - d.reward.last
    solid = lost > 3 * fit(d.reward.until(step)).noise and peak > 0
    return (lost / peak, step) if solid and lost / peak >= LOST else None


def any_spike(d: Dynamics) -> tuple[Spike | None, str]:
    """First spike of the KL to the base model, otherwise of an update's KL."""
    spike = find_spike(d.kl, floor=NEAR_BASE / 5)
    return (spike, d.kl.name) if spike else (find_spike(d.ppo_kl, floor=QUIET_UPDATE), d.ppo_kl.name)


def entropy_is_low(d: Dynamics) -> bool:
    """Whether entropy has fallen to a fraction of its first level. Only meaningful together with the
    reward."""
    return len(d.entropy) >= 6 and d.entropy.last <= LOW_ENTROPY * d.entropy.first


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
    """Rise of the entropy to a multiple, up to the end, with no gain in reward or validation. None without
    one."""
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
    """Whether a validation after the step beats all earlier ones, start included, by more than noise. If
    there is no earlier one, whether one beats the first."""
    points = list(zip(v.steps, v.scores, strict=True))
    earlier = [score for at, score in points if at <= step] + ([v.start] if v.start is not None else [])
    later = [score for at, score in points if at > step]
    return bool(later) and max(later) > max(earlier or later[:1]) + v.margin


def rewarded_when_cut_off(d: Dynamics) -> str | None:
    """Statement on the share of sampled answers that must have been cut off and rewarded, if it has grown.

    With rewards up to 1, a mean of R needs a share R of the answers. If only 1 - T end by themselves, R + T -
    1 of them were cut off. None if the share is small, has not grown, or if rewards exceed 1.
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
    """Statement on the share of validation rows that are right without an answer, if it has grown."""
    values = d.unanswered.values
    if not values or values[-1] < REWARDED or values[-1] - min(values) < GREW:
        return None
    return (
        f"At least {values[-1]:.0%} of the validation answers are right although none was found in its "
        f"place: accuracy minus fmt_ok went {values[0]:.3f} -> {values[-1]:.3f}."
    )


def doubts_of_curves(d: Dynamics) -> tuple[str, ...]:
    """Reasons not to believe a rise of the score that need no answers. Empty if there are none."""
    return tuple(fact for fact in (rewarded_when_cut_off(d), right_without_answer(d)) if fact is not None)


def cap_is_harmless(d: Dynamics) -> bool:
    """Whether most answers are cut off and most of these are rewarded, so that the cap does not limit the
    score."""
    if d.sampled is None or not len(d.truncated) or d.truncated.last < 0.5:
        return False
    return d.reward.last + d.truncated.last - 1.0 >= 0.5 * d.truncated.last


def ends_never(d: Dynamics) -> bool:
    """Whether answers reach the cap from the first step to the last. Without the share at the cap, whether
    their mean length does."""
    found, most = (d.truncated, 1.0) if len(d.truncated) else (d.length, float(d.cap))
    if not d.cap or not len(found):
        return False
    return NEVER * most <= min(found.first, found.last) and max(found.first, found.last) <= most


def rate_is_zero(d: Dynamics) -> bool:
    """Whether the learning rate was 0 in every step."""
    return len(d.learning_rate) > 0 and not any(d.learning_rate.values)


def stands_still(d: Dynamics) -> bool:
    """Whether nothing is trained: learning rate 0, or no trend in any metric, a KL of 0 and unchanged
    answers.

    A policy that trains but is stuck differs: it changes a few answers, or has long left the base model.
    Small runs stayed at the same score for ten steps and more before they improved.
    """
    if rate_is_zero(d):
        return True
    watched = [s for s in (d.reward, d.kl, d.entropy, d.length) if len(s)]
    if len(d.reward) < 8 or len(watched) < 2 or any(fit(s).rising or fit(s).falling for s in watched):
        return False
    return max(d.kl.values, default=0.0) <= NO_KL and _same_scores(d.validation)


def warms_up(d: Dynamics) -> bool:
    """Whether the policy moves away from the base model without any change in reward so far."""
    near_base = len(d.kl) > 0 and d.kl.last < NEAR_BASE and fit(d.kl).rising
    return near_base and not fit(d.reward).falling


def _same_scores(v: Validation | None) -> bool:
    """Whether at least three scores, the start included, differ by no more than one answer."""
    scores = () if v is None else v.scores if v.start is None else (v.start, *v.scores)
    return v is not None and len(scores) >= 3 and max(scores) - min(scores) <= 1.5 * v.one_item


def is_flat(v: Validation) -> bool:
    """Whether the later validations are no better than the earlier ones, within their noise."""
    return v.recent_gain <= v.margin and v.last_gain <= v.margin
