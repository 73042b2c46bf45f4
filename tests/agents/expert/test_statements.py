"""Every statement of a diagnosis is true of the series that it was made from, worked out here once more."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray import hyperparameters as hp
from llmzero_ray.dynamics.diagnosis import Finding, diagnose
from llmzero_ray.dynamics.features import observe
from llmzero_ray.hyperparameters.verl_keys import LR
from llmzero_ray.records import Hyperparameters
from llmzero_ray.records.metrics import Curves
from tests.agents import curves as c

N_VAL = 200
LOOSER_UP = {"optim.lr": 1, "temperature": 1, "kl_loss_coef": -1, "clip_ratio_high": 1, "clip_ratio_low": 1,
             "clip_grad": 1, "ppo_epochs": 1}  # fmt: skip
"""End of a key -> 1 where a larger value lets a step go further, -1 where it holds it."""
CHANGES: dict[str, Sequence[Any]] = {
    "lr": (2e-5, 1e-4), "kl": (0.0005, 0.004), "temperature": (0.8, 1.2), "n": (12, 16),
    "clip_high": (0.2, 0.4), "grad_clip": (0.5, 2.0), "batch": (64, 256),
}  # fmt: skip


@st.composite
def shapes(draw: st.DrawFn, n: int, low: float, high: float) -> list[float]:
    """A series as training gives: a level, a second one from some step on, a trend, noise, one jump."""
    first, second = (draw(st.floats(low, high)) for _ in range(2))
    turn = draw(st.integers(0, n))
    noise = draw(st.sampled_from([0.0, 0.01, 0.1])) * (high - low)
    slope = draw(st.sampled_from([0.0, 0.0, 0.5, -0.5])) * (high - low)
    values = [
        (first if i < turn else second) + slope * i / max(1, n - 1) + noise * c.wave(i, turn)
        for i in range(n)
    ]
    return [min(high, max(low, value)) for value in values]


@st.composite
def phases(draw: st.DrawFn) -> Curves:
    n = draw(st.integers(2, 24))
    series = {
        "reward": shapes(n, 0.0, 1.0), "kl": shapes(n, 0.0, 0.5), "ppo_kl": shapes(n, 0.0, 0.1),
        "entropy": shapes(n, 0.01, 1.0), "grad": shapes(n, 0.0, 2.0), "clipfrac": shapes(n, 0.0, 0.1),
        "length": shapes(n, 1.0, 24.0), "at_longest": shapes(n, 0.0, 1.0),
    }  # fmt: skip
    logged = draw(st.sets(st.sampled_from(sorted(series))))
    found = {name: draw(shape) for name, shape in series.items() if name in logged or name == "reward"}
    if "at_longest" in found:
        found["longest"] = [draw(st.sampled_from([12.0, 24.0, 6144.0]))] * n
    if draw(st.booleans()):
        found["lr"] = [draw(st.sampled_from([0.0, 1e-3]))] * n
    steps = sorted(draw(st.sets(st.integers(1, n), max_size=5)))
    scores = draw(st.lists(st.integers(0, N_VAL), min_size=len(steps), max_size=len(steps)))
    start = draw(st.one_of(st.none(), st.integers(0, N_VAL)))
    curves = c.curves(
        n,
        reward=found.pop("reward"),
        val={step: score / N_VAL for step, score in zip(steps, scores, strict=True)},
        start=None if start is None else start / N_VAL,
        **found,
    )
    if start is None or not draw(st.booleans()):
        return curves
    errors = draw(st.lists(st.floats(0.003, 0.05), min_size=len(steps), max_size=len(steps)))
    paired = [(score - start / N_VAL, error) for score, error in zip(curves.val_scores, errors, strict=True)]
    return dataclasses.replace(curves, val_gains=tuple(paired))


configurations = st.builds(
    hp.complete,
    st.sampled_from([c.TINY, c.PRACTITIONER]),
    st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in CHANGES.items()}),
)


@given(curves=phases(), full=configurations, before=st.one_of(st.none(), configurations))
def test_what_a_diagnosis_says_is_true_of_the_series(
    curves: Curves, full: Hyperparameters, before: Hyperparameters | None
) -> None:
    on = c.node(curves, full, node=1)
    parent = None if before is None else c.node(curves, before)
    for finding in diagnose(observe(curves, full, n_val=N_VAL), on, parent):
        told = Told(finding, curves, full, before)
        for pattern, check in STATEMENTS.items():
            for said in re.finditer(pattern, finding.summary):
                assert check(told, *said.groups()), (finding.summary, pattern)
        assert any(re.search(pattern, finding.summary) for pattern in STATEMENTS), finding.summary
        for fact in finding.evidence:
            matched = [(m, check) for p, check in FACTS.items() if (m := re.fullmatch(p, fact))]
            assert matched, f"a fact that nobody checks: {fact}"
            for m, check in matched:
                assert check(told, *m.groups()), fact


@dataclasses.dataclass(frozen=True)
class Told:
    """A finding beside what it speaks of."""

    finding: Finding
    curves: Curves
    full: Hyperparameters
    before: Hyperparameters | None

    def values(self, name: str) -> list[float]:
        found = self.curves.metrics.get(name, ())
        return [value for value in found if value is not None and math.isfinite(value)]

    def ends(self, name: str) -> tuple[float, float]:
        """Mean of the first and of the last fifth of a series, of 2 to 10 points."""
        values = self.values(name)
        width = min(len(values), max(2, min(10, len(values) // 5)))
        return fmean(values[:width]), fmean(values[-width:])

    @property
    def scores(self) -> list[float]:
        start = self.curves.start_score
        return [*([] if start is None else [start]), *self.curves.val_scores]

    @property
    def best_step(self) -> int:
        scores = self.curves.val_scores
        return self.curves.val_steps[scores.index(max(scores))]

    @property
    def loosened(self) -> int:
        """How many changes loosened minus how many tightened the updates."""
        assert self.before is not None
        inert = self.full["actor_rollout_ref.actor.ppo_mini_batch_size"] == self.full["data.train_batch_size"]
        votes = 0
        for end, sign in LOOSER_UP.items():
            key = next(key for key in self.full if key.endswith(end))
            if "clip_ratio" in key and inert and self.full["actor_rollout_ref.actor.ppo_epochs"] == 1:
                continue
            old, new = float(str(self.before[key])), float(str(self.full[key]))
            votes += sign * ((new > old) - (new < old))
        return votes

    def halves(self) -> tuple[float, float]:
        scores = self.scores
        middle = (scores[(len(scores) - 1) // 2] + scores[len(scores) // 2]) / 2
        return middle - self.scores[0], self.scores[-1] - middle


def near(said: str, value: float, places: int = 3) -> bool:
    return abs(float(said) - value) <= 0.51 * 10**-places + 1e-9


def same_number(said: str, value: float) -> bool:
    return math.isclose(float(said), value, rel_tol=0.01, abs_tol=1e-9) or abs(float(said) - value) < 1e-3


def fell(told: Told, start: str, last: str) -> bool:
    before, after = told.scores[0], told.scores[-1]
    gain = told.curves.val_gains[-1] if told.curves.val_gains else None
    p = min(max(after, 1 / N_VAL), 1 - 1 / N_VAL)
    rows = gain[1] if gain else math.sqrt(p * (1 - p) / N_VAL)
    return near(start, before) and near(last, after) and before - after >= 2 * rows - 1e-9


def trend(values: Sequence[float]) -> float:
    """Change along the straight line through the values."""
    n, middle = len(values), (len(values) - 1) / 2
    spread = sum((i - middle) ** 2 for i in range(n))
    return sum((i - middle) * value for i, value in enumerate(values)) / spread * (n - 1) if n > 1 else 0.0


def triples(values: Sequence[float]) -> Iterator[Sequence[float]]:
    return (values[i - 2 : i + 1] for i in range(2, len(values)))


def rises(told: Told, name: str) -> bool:
    values = told.values(name)
    return trend(values) > 0 or trend(values[len(values) // 2 :]) > 0


REWARD, KL, GRAD = "critic/score/mean", "actor/kl_loss", "actor/grad_norm"
CUT = "response_length/clip_ratio"
NUMBER = r"([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)"


def _lost(told: Told, share: str, _: str) -> bool:
    values = told.values(REWARD)
    smooth = [fmean(values[i - 2 : i + 1]) for i in range(2, len(values))] if len(values) >= 3 else values
    lost = (max(smooth) - told.ends(REWARD)[1]) / max(smooth)
    return lost >= 0.5 and abs(float(share) / 100 - lost) < 0.006


def _climbed(told: Told, low: str, last: str, ratio: str | None, since: str) -> bool:
    values, step = told.values("actor/entropy"), int(since)
    at, end = fmean(values[step - 3 : step]), fmean(values[-3:])
    least = min(map(fmean, triples(values)))
    return (
        same_number(low, at)
        and same_number(last, end)
        and (ratio is None or same_number(ratio, end / at))
        and at <= least + 0.1 * (end - least) + 1e-9
        and end - at >= 0.2
        and _no_better_after(told, step)
    )


def _no_better_after(told: Told, step: int) -> bool:
    points = list(zip(told.curves.val_steps, told.curves.val_scores, strict=True))
    start = told.curves.start_score
    earlier = [score for at, score in points if at <= step] + ([] if start is None else [start])
    later = [score for at, score in points if at > step]
    return not later or max(later) <= max(earlier or later[:1]) + 1.5 * 0.5 / math.sqrt(N_VAL)


def _weak(told: Told) -> bool:
    first, last = told.ends(GRAD) if told.values(GRAD) else (1.0, 1.0)
    clipped = told.ends("actor/pg_clipfrac")[1] if told.values("actor/pg_clipfrac") else 1.0
    return last < 0.6 * first or clipped < 0.005


def _still(told: Told, rest: str) -> bool:
    first, last = told.ends(GRAD)
    return last >= 0.6 * first and near(rest, last / first, 2)


def _flat(told: Told) -> bool:
    scores = told.scores
    half, margin = len(scores) // 2, 1.5 * 0.5 / math.sqrt(N_VAL)
    return half == 0 or not told.curves.val_scores or fmean(scores[-half:]) - fmean(scores[:half]) <= margin


STATEMENTS: dict[str, Callable[..., bool]] = {
    rf"Regressed from {NUMBER} to {NUMBER} under more conservative": lambda t, *x: (
        fell(t, *x) and t.loosened < 0
    ),
    rf"Regressed from {NUMBER} to {NUMBER} under more aggressive": lambda t, *x: (
        fell(t, *x) and t.loosened > 0
    ),
    rf"Regressed from {NUMBER} to {NUMBER} although the learning rate was lowered": lambda t, *x: (
        fell(t, *x) and t.loosened <= 0 and t.full[LR] < t.before[LR]
    ),
    rf"Regressed from {NUMBER} to {NUMBER}; the changes loosened as much": lambda t, *x: (
        fell(t, *x) and t.loosened == 0 and t.before != t.full
    ),
    rf"Declining against its start: from {NUMBER} to {NUMBER}": fell,
    r"under the settings of the phase before": lambda t: t.before == t.full,
    rf"lost {NUMBER}% of its best level \(step (\d+)\)": _lost,
    rf"(\S+) (?:rose|jumped) x{NUMBER} (?:from|at) step (\d+)": lambda t, name, factor, at: (
        float(factor) >= 5 and max(t.values(name)[int(at) - 1 :]) > 0
    ),
    r"brought no validation gain": lambda t: (
        t.curves.val_scores == () or max(t.curves.val_scores[-1:]) <= max(t.scores) + 1e-9
    ),
    rf"Entropy fell to {NUMBER}% of its first level": lambda t, share: (
        float(share) <= 36 and near(share, 100 * t.ends("actor/entropy")[1] / t.ends("actor/entropy")[0], 0)
    ),
    rf"entropy climbed {NUMBER} -> {NUMBER}(?: \(x{NUMBER}\))? from step (\d+) on, without a gain": _climbed,
    rf"{NUMBER}% of them are cut off at the cap of (\d+) tokens, from the first": lambda t, share, cap: (
        near(share, 100 * t.ends(CUT)[1], 0)
        and min(t.ends(CUT)) >= 0.9
        and t.values("response_length/max")[-1] >= int(cap)
    ),
    rf"they run to {NUMBER} of at most (\d+) tokens on average, from the first": lambda t, mean, cap: (
        min(t.ends("response_length/mean")) >= 0.9 * int(cap)
        and same_number(mean, t.ends("response_length/mean")[1])
        and not t.values(CUT)
    ),
    rf"At least {NUMBER}% of the sampled answers were cut off at the cap of (\d+)": lambda t, share, _: near(
        share, 100 * (t.ends(REWARD)[1] + t.ends(CUT)[1] - 1), 0
    ),
    rf"share cut off {NUMBER}% -> {NUMBER}%, mean reward {NUMBER} -> {NUMBER}": lambda t, a, b, c, d: (
        near(a, 100 * t.ends(CUT)[0], 0)
        and near(b, 100 * t.ends(CUT)[1], 0)
        and near(c, t.ends(REWARD)[0])
        and near(d, t.ends(REWARD)[1])
    ),
    rf"{NUMBER}% of the responses are cut off at the cap of (\d+)": lambda t, share, cap: (
        float(share) >= 5
        and int(cap) == t.full["data.max_response_length"]
        and t.values("response_length/max")[-1] >= int(cap)
    ),
    rf"Hardly any answer is rewarded \(mean {NUMBER}\)": lambda t, mean: (
        near(mean, t.ends(REWARD)[1]) and float(mean) <= 0.011
    ),
    rf"Nearly all answers of a group score the same \(mean {NUMBER}\)": lambda t, mean: (
        near(mean, t.ends(REWARD)[1]) and float(mean) >= 0.969
    ),
    rf"Train reward still rises, but validation fell from {NUMBER} to {NUMBER}": lambda t, best, last: (
        near(best, max(t.curves.val_scores))
        and near(last, t.scores[-1])
        and float(best) > float(last)
        and trend(
            t.values(REWARD)[
                max(0, t.curves.val_steps[t.curves.val_scores.index(max(t.curves.val_scores))] - 1) :
            ]
        )
        > 0
    ),
    rf"goes up and down by more than {NUMBER} between checks": lambda t, size: any(
        abs(b - a) > float(size) - 0.001 and abs(d - b) > float(size) - 0.001 and (b - a) * (d - b) < 0
        for a, b, d in zip(
            t.curves.val_scores, t.curves.val_scores[1:], t.curves.val_scores[2:], strict=False
        )
    ),
    rf"Overshot: validation fell from {NUMBER} at step (\d+) to {NUMBER}": lambda t, best, at, last: (
        near(best, max(t.curves.val_scores))
        and t.curves.val_scores[t.curves.val_steps.index(int(at))] == max(t.curves.val_scores)
        and near(last, t.scores[-1])
        and float(last) < float(best)
    ),
    r"Taking off: the train reward rises": lambda t: rises(t, REWARD) and _flat(t),
    r"greedy validation follows later": _flat,
    r"Warming up: (\S+?)(?: and (\S+))? rise, close to the base": lambda t, a, b: (
        rises(t, a) and (b is None or rises(t, b)) and t.ends(KL)[1] < 0.05
    ),
    rf"Hardly moves: after (\d+) steps the KL to the base model is {NUMBER}": lambda t, n, kl: (
        int(n) >= 5 and same_number(kl, t.ends(KL)[1]) and float(kl) < 0.005
    ),
    r"nothing is gained yet": _flat,
    rf"Plateau at {NUMBER}": lambda t, best: near(best, max(t.curves.val_scores)) and _flat(t),
    r"Plateau in train reward": lambda t: not t.curves.val_scores,
    r"updates hardly move the policy": _weak,
    rf"gradients are still x{NUMBER} of their first level": _still,
    r"the later part is no better than the earlier one": _flat,
    rf"Validation is at {NUMBER}: little is left": lambda t, best: (
        near(best, max(t.curves.val_scores)) and float(best) >= 0.97
    ),
    rf"Validation rises, but only by {NUMBER} in (\d+) steps": lambda t, gain, _: (
        float(gain) > 0 and near(gain, max(t.curves.val_scores) - t.scores[0])
    ),
    r"still rises as fast as at first": lambda t: t.halves()[1] >= t.halves()[0] and t.halves()[1] > 0,
    r"still rises at half its first pace or more": lambda t: (
        0 < 0.5 * t.halves()[0] <= t.halves()[1] or (t.halves()[1] > 0 >= t.halves()[0])
    ),
    rf"Validation rose by {NUMBER}, its only gain so far": lambda t, gain: (
        len(t.scores) == 2 and near(gain, t.scores[1] - t.scores[0]) and float(gain) >= 0
    ),
    r"rose, mostly in its earlier half": lambda t: (
        max(t.curves.val_scores) > t.scores[0] and (t.halves()[1] < t.halves()[0] or t.halves()[1] <= 0)
    ),
    rf"Train reward rises from {NUMBER} to {NUMBER}; not validated": lambda t, *_: (
        rises(t, REWARD) and not t.curves.val_scores
    ),
    rf"{NUMBER} at best; later half {NUMBER}, earlier half {NUMBER}": lambda t, best, late, early: (
        near(best, max(t.curves.val_scores) - t.scores[0])
        and near(late, t.halves()[1])
        and near(early, t.halves()[0])
    ),
    r"Nothing moves": lambda t: set(t.values("actor/lr")) == {0.0} or max(t.values(KL), default=0.0) <= 1e-3,
    r"No pattern stands out|too little to judge": lambda _: True,
    r"and nothing was validated": lambda t: not t.curves.val_scores,
}
"""Pattern of a statement -> whether it is true; its groups are given."""


def _course(told: Told, name: str, first: str, last: str, _: str | None, begin: str, end: str) -> bool:
    one, other = told.ends(name)
    return (
        same_number(first, one)
        and same_number(last, other)
        and (int(begin), int(end)) == (1, len(told.curves.steps))
    )


def _validated(told: Told, start: str | None, points: str, error: str) -> bool:
    said = [tuple(point.split("@")) for point in points.split(", ")]
    known = [(f"{v:.3f}", str(s)) for s, v in zip(told.curves.val_steps, told.curves.val_scores, strict=True)]
    begins = start is None or near(start, told.scores[0])
    return begins and said == known[-6:] and 0 < float(error) <= 0.5 / math.sqrt(N_VAL) + 0.001


FACTS: dict[str, Callable[..., bool]] = {
    rf"(\S+) {NUMBER} -> {NUMBER}( \(x[^)]*\))? over steps (\d+)-(\d+)": _course,
    rf"validation (?:{NUMBER} at the start, )?(.*) \(standard error {NUMBER}\)": _validated,
    rf"last validation {NUMBER} ± {NUMBER} against the start, error of rows and runs": lambda t, *x: (
        near(x[0], t.scores[-1] - t.scores[0]) and float(x[1]) > 0
    ),
    r"this phase changed (.*)": lambda t, _: t.before is not None and t.before != t.full,
    r"(\d+) of the changes loosened and (\d+) tightened the updates": lambda t, up, down: (
        int(up) - int(down) == t.loosened
    ),
    rf"greedy answers {NUMBER}, sampled ones {NUMBER} at temperature {NUMBER}": lambda t, *x: (
        near(x[0], t.scores[-1])
        and near(x[1], t.ends(REWARD)[1])
        and float(x[2]) == t.full["actor_rollout_ref.rollout.temperature"]
    ),
    rf"(\S+) {NUMBER} -> {NUMBER} \(x{NUMBER}\) from step (\d+), peak at step (\d+)": lambda t, name, *x: (
        same_number(x[1], max(t.values(name)[int(x[3]) - 1 :])) and float(x[2]) >= 5
    ),
    r"actor/lr is 0 in all (\d+) steps": lambda t, n: t.values("actor/lr") == [0.0] * int(n),
    r"share at the cap ([\d.]+)% -> ([\d.]+)% \(longest response = cap = (\d+)\)": lambda t, _, last, cap: (
        float(last) >= 4.9 and int(cap) == t.full["data.max_response_length"]
    ),
    rf"train reward scatters by {NUMBER} around its trend": lambda _, noise: float(noise) >= 0,
    rf"actor/pg_clipfrac {NUMBER}": lambda t, last: near(last, t.ends("actor/pg_clipfrac")[1], 4),
}
"""Pattern of a fact -> whether it is true; its groups are given."""
