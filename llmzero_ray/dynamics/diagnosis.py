"""Diagnosis of a phase: patterns in its dynamics, described with their numbers.

`diagnose` tries every pattern on the dynamics of a phase, most urgent first, and returns all that match. The
patterns come from the LLMZero paper (section 4.3, Tables 8-11, App. F) and from small real runs. Reward and
validation are primary; entropy, KL and gradients count only together with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

from llmzero_ray.dynamics.features import Dynamics, Validation, change_point, fit, observe
from llmzero_ray.dynamics.gains import CLEAR
from llmzero_ray.dynamics.observations import (
    any_spike,
    cap_is_harmless,
    course,
    ends_never,
    entropy_climb,
    entropy_is_low,
    hardly_moves,
    improved_after,
    is_flat,
    little_room,
    rate_is_zero,
    reward_lost,
    reward_rising,
    rewarded_when_cut_off,
    spiked,
    stands_still,
    validated,
    warms_up,
)
from llmzero_ray.hyperparameters import clip_is_inert, diff, format_value, short
from llmzero_ray.hyperparameters.verl_keys import (
    CLIP_HIGH,
    CLIP_LOW,
    ENTROPY_COEFF,
    GRAD_CLIP,
    KL_LOSS_COEF,
    LR,
    PPO_EPOCHS,
    TEMPERATURE,
)
from llmzero_ray.records import Diagnosis, DiagnosisState, Hyperparameters
from llmzero_ray.records.agents import NodeView
from llmzero_ray.utils.text import number

Kind: TypeAlias = Literal[
    "doubtful", "dead", "hardly_moves", "collapse", "kl_spike", "entropy_collapse", "entropy_climb",
    "never_ends", "truncated", "no_reward", "no_contrast", "overfit", "noisy",
    "too_conservative", "too_aggressive", "too_fast", "regressed", "declining", "take_off", "warming_up",
    "plateau_weak", "plateau_noisy", "slow", "steady", "raised", "converging", "improving", "solved",
    "unknown",
]  # fmt: skip
STATES: dict[Kind, DiagnosisState] = {
    "doubtful": "doubtful",
    "dead": "inactive",
    "hardly_moves": "inactive",
    "collapse": "collapsing",
    "kl_spike": "collapsing",
    "entropy_collapse": "collapsing",
    "entropy_climb": "unstable",
    "never_ends": "truncated",
    "truncated": "truncated",
    "no_reward": "inactive",
    "no_contrast": "inactive",
    "overfit": "plateau",
    "noisy": "plateau",
    "too_conservative": "declining",
    "too_aggressive": "declining",
    "too_fast": "declining",
    "regressed": "declining",
    "declining": "declining",
    "take_off": "slow",
    "warming_up": "slow",
    "plateau_weak": "plateau",
    "plateau_noisy": "plateau",
    "slow": "slow",
    "steady": "healthy",
    "raised": "healthy",
    "converging": "healthy",
    "improving": "healthy",
    "solved": "healthy",
    "unknown": "unknown",
}

TRUNCATED = 0.05
"""Share of truncated responses from which the cap is a bottleneck (the paper acted at 3 % -> 8 %)."""
STEADY_PACE = 0.5
"""Minimum gain of a phase's later half / gain of its earlier half for its pace to count as steady."""
SETTLED_ENTROPY = 0.6
"""Entropy / its first level, below which the policy is settling, whatever its score."""
WEAK_CLIPFRAC = 0.005
"""Clip fraction below which updates barely move the policy."""
WEAK_GRADIENT = 0.6
"""Late gradient norm / early gradient norm below which the signal is running out."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A pattern that matched."""

    kind: Kind
    summary: str
    evidence: tuple[str, ...]
    since: int | None = None
    """Step from which training went wrong. Checkpoints before it are unaffected."""
    severity: float = 0.0
    """Magnitude for moves that need one: the share of truncated responses, the entropy bonus if entropy
    climbs, or the lost share of the base model's accuracy if a path's first phase declines."""

    @property
    def state(self) -> DiagnosisState:
        """Name of the pattern in reports."""
        return STATES[self.kind]

    def to_record(self) -> Diagnosis:
        """The diagnosis for a proposal."""
        return Diagnosis(state=self.state, summary=self.summary, evidence=self.evidence)


def diagnose(dynamics: Dynamics, on: NodeView, before: NodeView | None) -> tuple[Finding, ...]:
    """All patterns that match, most urgent first; never empty. `before` is the phase that `on` continued, if
    any."""
    if len(dynamics.reward) < 3 and dynamics.validation is None:
        text = f"{dynamics.n_steps} steps with metrics and no validation: too little to judge."
        return (Finding(kind="unknown", summary=text, evidence=()),)
    patterns: tuple[Callable[[Dynamics], Finding | None], ...] = (
        partial(_doubtful, on=on),
        partial(_never_ends, before=before),
        _dead,
        _hardly_moves,
        _collapse,
        _kl_spike,
        _entropy_collapse,
        partial(_entropy_climb, on=on),
        _truncated,
        _without_contrast,
        _overfit,
        partial(_decline, on=on, before=before),
        _noisy,
        _take_off,
        _warming_up,
        _plateau,
    )
    found = [finding for pattern in patterns if (finding := pattern(dynamics)) is not None]
    return _consistent(found) or (_healthy(dynamics, on, before),)


def _consistent(found: list[Finding]) -> tuple[Finding, ...]:
    """Findings without those that only restate the first one: a run that stagnates or fell is also flat."""
    if found and found[0].kind in ("doubtful", "never_ends", "dead"):
        return (found[0],)
    if any(finding.kind == "entropy_climb" for finding in found):
        found = [one for one in found if one.kind not in ("warming_up", "plateau_weak", "plateau_noisy")]
    if found and found[0].state == "collapsing":
        lost = max(finding.severity for finding in found if finding.state in ("collapsing", "declining"))
        first = replace(found[0], severity=lost)
        return (first, *(finding for finding in found[1:] if finding.state != "plateau"))
    if any(finding.state == "declining" for finding in found):
        return tuple(finding for finding in found if not finding.kind.startswith("plateau"))
    return tuple(found)


# --- patterns, most urgent first ----------------------------------------------------------------------------


def _doubtful(d: Dynamics, on: NodeView) -> Finding | None:
    doubts = on.doubts
    if doubts is None:
        # Curves alone cannot tell if a reward's own `fmt_ok` judges the format or finds the answer.
        cut = rewarded_when_cut_off(d)
        doubts = () if cut is None else (cut,)
    if not doubts:
        return None
    text = f"The score may be worth nothing. {doubts[0]} Check the reward and read answers first."
    evidence = (*doubts[1:], *course(d.length), *course(d.reward), *validated(d.validation))
    return Finding(kind="doubtful", summary=text, evidence=evidence)


def _dead(d: Dynamics) -> Finding | None:
    if not stands_still(d):
        return None
    text = "Nothing moves: the policy is still the one the phase started from."
    rates = (f"actor/lr is 0 in all {len(d.learning_rate)} steps",) if rate_is_zero(d) else ()
    evidence = (*rates, *course(d.kl), *course(d.reward), *course(d.grad_norm), *validated(d.validation))
    return Finding(kind="dead", summary=text, evidence=evidence)


def _hardly_moves(d: Dynamics) -> Finding | None:
    v = d.validation
    if not hardly_moves(d) or (v is not None and little_room(v.best, d.chance)):
        return None
    text = f"Hardly moves: after {d.n_steps} steps the KL to the base model is {number(d.kl.last)}."
    evidence = (*course(d.kl), *course(d.reward), *course(d.grad_norm), *validated(v))
    return Finding(kind="hardly_moves", summary=text, evidence=evidence)


def _collapse(d: Dynamics) -> Finding | None:
    lost = reward_lost(d)
    if lost is None:
        return None
    spike, name = any_spike(d)
    share, peak_step = lost
    since = min(peak_step, spike.onset) if spike else peak_step
    cause = f" after {name} rose x{spike.factor:.2g} from step {spike.onset}" if spike else ""
    text = f"Collapsed: the train reward lost {share:.0%} of its best level (step {peak_step}){cause}."
    evidence = (*spiked(spike, name), *course(d.reward), *course(d.entropy), *validated(d.validation))
    return Finding(kind="collapse", summary=text, evidence=evidence, since=since)


def _kl_spike(d: Dynamics) -> Finding | None:
    spike, name = any_spike(d)
    # A rising KL with a rising reward is learning, not a pathology.
    if spike is None or fit(d.reward.since(spike.onset)).rising:
        return None
    if d.validation is not None and improved_after(d.validation, spike.onset):
        return None
    grew = d.length.last > 1.25 * d.length.first if len(d.length) else False
    longer = " while responses got longer" if grew else ""
    text = f"{name} jumped x{spike.factor:.2g} at step {spike.onset}{longer} and brought no validation gain."
    evidence = (*spiked(spike, name), *(course(d.length) if grew else ()), *course(d.reward))
    evidence += validated(d.validation)
    return Finding(kind="kl_spike", summary=text, evidence=evidence, since=spike.onset)


def _entropy_collapse(d: Dynamics) -> Finding | None:
    gained = d.reward.last - d.reward.first > 2 * fit(d.reward).noise if len(d.reward) else False
    v, level = d.validation, d.reward_level.last
    # Low entropy with a high or rising reward means that the policy is confident, not that it collapsed.
    if not entropy_is_low(d) or gained or level >= 0.9 or (v is not None and v.gain > 2 * v.margin):
        return None
    half = next(
        (s for s, e in zip(d.entropy.steps, d.entropy.values, strict=True) if e < d.entropy.first / 2), None
    )
    text = (
        f"Entropy fell to {d.entropy.last / d.entropy.first:.0%} of its first level without a gain in reward."
    )
    evidence = (*course(d.entropy), *course(d.reward), *validated(v))
    return Finding(kind="entropy_collapse", summary=text, evidence=evidence, since=half)


def _entropy_climb(d: Dynamics, on: NodeView) -> Finding | None:
    climb = entropy_climb(d)
    if climb is None:
        return None
    low, last = climb.low, climb.last
    ratio = f" (x{number(last / low)})" if low > 1e-9 else ""
    text = (
        f"Unstable: entropy climbed {number(low)} -> {number(last)}{ratio} from step {climb.since} on, "
        "without a gain in reward or validation."
    )
    found = on.hyperparameters.get(ENTROPY_COEFF)
    bonus = float(found) if isinstance(found, int | float) else 0.0
    if bonus > 0:
        text += f" The entropy bonus (entropy_coeff {format_value(ENTROPY_COEFF, bonus)}) rewards that."
    evidence = (*course(d.entropy), *course(d.reward), *validated(d.validation), *course(d.kl))
    return Finding(kind="entropy_climb", summary=text, evidence=evidence, since=climb.since, severity=bonus)


def _never_ends(d: Dynamics, before: NodeView | None) -> Finding | None:
    """Finding that answers are cut off throughout, from the base model on: the policy does not end them, and
    a higher cap would not help."""
    if not ends_never(d) or cap_is_harmless(d) or rate_is_zero(d):
        return None
    if before is not None and not ends_never(observe(before.curves, before.hyperparameters)):
        return None
    check = (
        "Check first that the end token and the chat template are the model's own; a longer cap would only "
        "cost more."
    )
    said = f"they run to {number(d.length.last)} of at most {d.cap} tokens on average"
    facts: tuple[str, ...] = ()
    if len(d.truncated):
        first, last = d.truncated.first, d.truncated.last
        said = f"{last:.0%} of them are cut off at the cap of {d.cap} tokens"
        facts = (f"share at the cap {first:.1%} -> {last:.1%} (longest response = cap = {d.cap})",)
    text = f"Answers do not end: {said}, from the first step on. {check}"
    evidence = (*facts, *course(d.length), *course(d.reward), *validated(d.validation))
    return Finding(kind="never_ends", summary=text, evidence=evidence)


def _truncated(d: Dynamics) -> Finding | None:
    share = d.truncated.last if len(d.truncated) else 0.0
    if not share >= TRUNCATED or cap_is_harmless(d):
        return None
    text = f"{share:.0%} of the responses are cut off at the cap of {d.cap} tokens."
    facts = f"share at the cap {d.truncated.first:.1%} -> {share:.1%} (longest response = cap = {d.cap})"
    evidence = (facts, *course(d.length), *course(d.reward), *validated(d.validation))
    return Finding(kind="truncated", summary=text, evidence=evidence, severity=share)


def _without_contrast(d: Dynamics) -> Finding | None:
    if not len(d.reward) or reward_rising(d):
        return None
    level, mean, v = d.reward_level.last, d.reward.last, d.validation
    even = len(d.group_spread) > 0 and d.group_spread.last < 1e-6
    evidence = (*course(d.reward), *course(d.grad_norm), *validated(v))
    if level <= 0.01:
        text = f"Hardly any answer is rewarded (mean {mean:.3f}): groups hold nothing to learn from."
        return Finding(kind="no_reward", summary=text, evidence=evidence)
    if (level < 0.97 and not even) or (v is not None and little_room(v.last, d.chance)):
        return None
    text = f"Nearly all answers of a group score the same (mean {mean:.3f}): advantages vanish."
    return Finding(kind="no_contrast", summary=text, evidence=evidence)


def _overfit(d: Dynamics) -> Finding | None:
    v = d.validation
    if v is None or v.best - v.last <= 2 * v.margin or not fit(d.reward.since(v.best_step)).rising:
        return None
    text = f"Train reward still rises, but validation fell from {v.best:.3f} to {v.last:.3f}."
    evidence = (*course(d.reward), *validated(v))
    return Finding(kind="overfit", summary=text, evidence=evidence, since=v.best_step + 1)


def _noisy(d: Dynamics) -> Finding | None:
    v = d.validation
    if v is None or not (v.swings or (v.best - v.last > 2 * v.margin and v.best_step < v.steps[-1])):
        return None
    noise = fit(d.reward).noise
    text = (
        f"Updates are too noisy: validation goes up and down by more than {2 * v.margin:.3f} between checks."
    )
    if not v.swings:
        text = f"Overshot: validation fell from {v.best:.3f} at step {v.best_step} to {v.last:.3f}."
    evidence = (*validated(v), *course(d.reward), f"train reward scatters by {noise:.3f} around its trend")
    return Finding(kind="noisy", summary=text, evidence=evidence + course(d.kl), since=v.best_step + 1)


LOOSENING: Mapping[str, int] = {
    LR: 1,
    TEMPERATURE: 1,
    KL_LOSS_COEF: -1,
    CLIP_HIGH: 1,
    CLIP_LOW: 1,
    GRAD_CLIP: 1,
    PPO_EPOCHS: 1,
}
"""Key -> direction (1 is up) that lets one step move the policy further."""


def _decline(d: Dynamics, on: NodeView, before: NodeView | None) -> Finding | None:
    """Finding of a phase that ends worse than it began, explained by its changes from the phase before it."""
    v = d.validation
    if v is None or not v.gains or not v.gains[-1].fell or any(gain.rose for gain in v.gains):
        return None
    fall = f"from {v.start:.3f} to {v.last:.3f}"
    evidence = (*validated(v), f"last validation {v.gains[-1]} against the start, error of rows and runs")
    changed = {} if before is None else diff(before.hyperparameters, on.hyperparameters)
    if before is None or not changed:
        same = "" if before is None else ", under the settings of the phase before"
        text = f"Declining against its start: {fall}{same}."
        lost = 1.0 - v.last / v.start if before is None and v.start else 0.0
        return Finding(kind="declining", summary=text, evidence=evidence + _beside(d), severity=lost)
    moves = ", ".join(
        f"{short(k)} {format_value(k, a)} -> {format_value(k, b)}" for k, (a, b) in list(changed.items())[:6]
    )
    loosened, tightened = loosened_and_tightened(before.hyperparameters, on.hyperparameters)
    evidence += (f"this phase changed {moves}",)
    kind: Kind = "regressed"
    text = f"Regressed {fall}; the changes loosened as much as they tightened."
    if _only_slowed(before.hyperparameters, on.hyperparameters):
        kind = "too_fast"
        text = f"Regressed {fall} although the learning rate was lowered."
    elif loosened != tightened:
        kind = "too_aggressive" if loosened > tightened else "too_conservative"
        text = f"Regressed {fall} under more {kind.removeprefix('too_')} settings."
        evidence += (f"{loosened} of the changes loosened and {tightened} tightened the updates",)
    return Finding(kind=kind, summary=text, evidence=evidence + _beside(d))


def _only_slowed(before: Hyperparameters, after: Hyperparameters) -> bool:
    """Whether the learning rate fell, nothing else lets a step move the policy further, and the pull to the
    base model did not grow. The pull may be weaker: it does not make a step larger."""
    pull = direction(before, after, KL_LOSS_COEF)
    loosened, _ = loosened_and_tightened(before, after)
    return direction(before, after, LR) < 0 and pull <= 0 and loosened == (pull < 0)


def loosened_and_tightened(before: Hyperparameters, after: Hyperparameters) -> tuple[int, int]:
    """(number of changes that let a step move the policy further, number that hold it closer). Clip ranges
    count only if they have an effect."""
    signs = [
        sign * direction(before, after, key)
        for key, sign in LOOSENING.items()
        if not (key in (CLIP_HIGH, CLIP_LOW) and clip_is_inert(after))
    ]
    return signs.count(1), signs.count(-1)


def direction(before: Hyperparameters, after: Hyperparameters, key: str) -> int:
    """Direction of a change: 1 if the number is larger, -1 if smaller, 0 if neither or not a number."""
    old, new = before.get(key), after.get(key)
    if not isinstance(old, int | float) or not isinstance(new, int | float):
        return 0
    return (new > old) - (new < old)


def _beside(d: Dynamics) -> tuple[str, ...]:
    """Facts that help to interpret a gain or a fall."""
    return (*course(d.reward), *course(d.kl), *_gap(d))


def _gap(d: Dynamics) -> tuple[str, ...]:
    """Greedy accuracy and the reward of sampled answers, if both are known."""
    if d.gap is None or d.sampled is None or d.validation is None:
        return ()
    return (
        f"greedy answers {d.validation.last:.3f}, sampled ones {d.sampled:.3f} at temperature "
        f"{d.temperature:g}",
    )


def _take_off(d: Dynamics) -> Finding | None:
    v = d.validation
    if not reward_rising(d) or (
        v is not None and (not is_flat(v) or _fell(v) or little_room(v.best, d.chance))
    ):
        return None
    growing = [s for s in (d.length, d.kl) if fit(s).rising]
    beside = f", with {' and '.join(s.name for s in growing)}" if growing else ""
    turn = change_point(d.reward)
    since = f" from about step {turn}" if turn is not None else ""
    text = f"Taking off: the train reward rises{since}{beside}; greedy validation follows later."
    evidence = (*course(d.reward), *(fact for s in growing for fact in course(s)), *validated(v))
    return Finding(kind="take_off", summary=text, evidence=evidence)


def _warming_up(d: Dynamics) -> Finding | None:
    v = d.validation
    if v is None or not is_flat(v) or _fell(v) or reward_rising(d) or not warms_up(d):
        return None
    growing = [s for s in (d.kl, d.length) if fit(s).rising]
    names = " and ".join(s.name for s in growing)
    text = f"Warming up: {names} rise, close to the base model; nothing is gained yet."
    evidence = (*(fact for s in growing for fact in course(s)), *course(d.reward), *validated(v))
    return Finding(kind="warming_up", summary=text, evidence=evidence)


def _plateau(d: Dynamics) -> Finding | None:
    v = d.validation
    flat = is_flat(v) if v is not None else len(d.reward) >= 8
    if not flat or reward_rising(d) or warms_up(d) or (v is not None and little_room(v.best, d.chance)):
        return None
    clipped = d.clipfrac.last if len(d.clipfrac) and not d.clip_inert else None
    rest = d.grad_norm.last / d.grad_norm.first if len(d.grad_norm) >= 6 and d.grad_norm.first > 0 else None
    weak = (rest is not None and rest < WEAK_GRADIENT) or (clipped is not None and clipped < WEAK_CLIPFRAC)
    level = f"at {v.best:.3f}" if v is not None else "in train reward"
    why = "the later part is no better than the earlier one"
    if weak:
        why = "updates hardly move the policy any more"
    elif rest is not None:
        why = f"gradients are still x{rest:.2f} of their first level: noise holds it, not a lost signal"
    evidence = (*validated(v), *course(d.grad_norm), *course(d.reward), *_gap(d))
    if clipped is not None:
        evidence += (f"actor/pg_clipfrac {clipped:.4f}",)
    return Finding(
        kind="plateau_weak" if weak else "plateau_noisy",
        summary=f"Plateau {level}: {why}.",
        evidence=evidence,
    )


def _fell(v: Validation) -> bool:
    return bool(v.gains) and v.gains[-1].fell


def _healthy(d: Dynamics, on: NodeView, before: NodeView | None) -> Finding:
    """Finding of a phase without a problem: its pace."""
    v = d.validation
    evidence = (*validated(v), *course(d.reward), *course(d.entropy), *course(d.kl), *_gap(d))
    kind, text = _pace(d, v)
    if v is not None and before is not None:
        kind, text = _beside_earlier_phase(before, on, v, kind, text)
    if v is not None and kind == "slow" and v.gains and v.gains[-1].z >= CLEAR:
        kind, text = "steady", f"{text} That is a clear gain: the settings work."
    return Finding(kind=kind, summary=text, evidence=evidence)


def _beside_earlier_phase(
    before: NodeView, on: NodeView, v: Validation, kind: Kind, text: str
) -> tuple[Kind, str]:
    """Pace of a phase (`kind`, `text`), reclassified by comparison with the phase that it continued."""
    raised = direction(before.hyperparameters, on.hyperparameters, LR) > 0
    if raised and kind in ("slow", "improving", "converging"):
        return "raised", f"{text} This phase had raised the learning rate."
    pace = _pace_to_best(before)
    if kind == "slow" and pace is not None and v.gain / v.steps[-1] < STEADY_PACE * pace:
        return "converging", f"{text} The phase before gained more than twice as fast: converging."
    return kind, text


def _pace_to_best(phase: NodeView) -> float | None:
    """Accuracy gained per step until the phase's best validation. None without one, or without a start
    score."""
    start, scores = phase.curves.start_score, phase.curves.val_scores
    points = zip(phase.curves.val_steps, scores, strict=True)
    known = [(step, score) for step, score in points if step > 0 and math.isfinite(score)]
    if not known or start is None or not math.isfinite(start):
        return None
    step, best = max(known, key=lambda point: point[1])
    return (best - start) / step


def _pace(d: Dynamics, v: Validation | None) -> tuple[Kind, str]:
    """Pace of a phase, relative to its own earlier pace and to what it can still gain."""
    if v is None:
        if not reward_rising(d):
            return "unknown", "No pattern stands out, and nothing was validated."
        return (
            "improving",
            f"Train reward rises from {d.reward.first:.3f} to {d.reward.last:.3f}; not validated yet.",
        )
    if little_room(v.best, d.chance):
        return "solved", f"Validation is at {v.best:.3f}: little is left to gain."
    room = 1.0 - (v.start if v.start is not None else v.scores[0])
    if v.gain > v.margin and v.gain < 0.1 * room:
        return "slow", f"Validation rises, but only by {v.gain:.3f} in {v.steps[-1]} steps."
    early, late = _halves(v)
    if v.gain > 0 and len(v.scores) + (v.start is not None) == 2:
        return (
            "improving",
            f"Validation rose by {v.gain:.3f}, its only gain so far: nothing says that it slows.",
        )
    gains = f"{v.gain:+.3f} at best; later half {late:+.3f}, earlier half {early:+.3f}"
    if late > 0 and late >= early:
        return "improving", f"Validation still rises as fast as at first ({gains})."
    if late > 0 and late >= STEADY_PACE * early and not _narrowed(d):
        return "improving", f"Validation still rises at half its first pace or more ({gains})."
    if v.gain > 0:
        return "converging", f"Validation rose, mostly in its earlier half: converging ({gains})."
    return "unknown", f"No pattern stands out ({gains})."


def _narrowed(d: Dynamics) -> bool:
    return len(d.entropy) > 0 and d.entropy.last < SETTLED_ENTROPY * d.entropy.first


def _halves(v: Validation) -> tuple[float, float]:
    """Gain of the earlier and of the later half of the validations."""
    points = ((v.start,) if v.start is not None else ()) + v.scores
    gains = [point - points[0] for point in points]
    early = (gains[(len(gains) - 1) // 2] + gains[len(gains) // 2]) / 2
    return early, gains[-1] - early
