"""Metric series of a phase as short lines of text: first and last value, trend and noise, extremes, level
shifts.

The numbers come from dynamics/features.py. Metric names are untrusted: they are sanitised and bounded.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby, pairwise
from statistics import fmean
from types import MappingProxyType

from llmzero_ray.agents.knowledge import MetricNote, note_of
from llmzero_ray.agents.llm.prompt_text import safe_name
from llmzero_ray.dynamics.features import Trend, change_point, fit
from llmzero_ray.records.metrics import (
    ENTROPY,
    EPOCH,
    GLOBAL_STEP,
    KL,
    LENGTH,
    LENGTH_MAX,
    MIXED_GROUPS,
    REWARDS,
    VAL_AUX,
    VAL_CORE,
    Curves,
    Series,
    series,
)
from llmzero_ray.records.significance import NOISE
from llmzero_ray.utils.text import number

POINTS, SEGMENTS = 12, 8
"""Maximum number of validations shown, and maximum number of segments of a longer series."""
FEWEST = 5
"""Minimum number of points for a level and a trend. In a shorter series, every point is shown."""
FEW_POINTS = 6
"""Maximum number of points of a series that is shown with others of its kind."""
STEPS_SHOWN = 20
"""Maximum number of steps for a series to be shown step by step, unless COURSES has fewer for it."""
COURSES = {REWARDS[0]: STEPS_SHOWN, MIXED_GROUPS: 10, KL: STEPS_SHOWN, ENTROPY: 10, LENGTH: 10}
"""Metric whose course is always shown -> maximum number of steps that are shown one by one."""
UNKNOWN_SHOWN = 8
"""Maximum number of metrics without a note that are summarised. The rest are only counted."""
CONSTANTS = (*COURSES, LENGTH_MAX)
"""Metrics that are shown even if they are constant: a constant reward teaches nothing, and a constant longest
response is the cap."""
HIDDEN = (EPOCH, GLOBAL_STEP)
"""VeRL's own counters, which contradict the steps of the search."""


def summarise(
    curves: Curves,
    notes: Mapping[str, MetricNote],
    hidden: Collection[str] = (),
    segments: int = SEGMENTS,
) -> dict[str, list[str]]:
    """Summaries of the metrics that explain a phase, as text.

    `lines`: one per primary or diagnostic metric that changes, with the course of those in COURSES (a long
    one as at most `segments` means). Constant metrics have a line only if they are in CONSTANTS. Equal
    metrics share the line of the first one. `unknown`: metrics without a note, at most UNKNOWN_SHOWN.
    Background metrics and those in `hidden` are left out.
    """
    lines, unknown = list[str](), list[str]()
    seen = dict[tuple[float, ...], int]()
    for name in _ordered(curves.metrics, notes):
        one, note = series(curves, name), note_of(name, notes)
        if name in hidden or (note is not None and note.level == "background"):
            continue
        if not len(one):
            if _never_finite(curves, name):
                lines.append(f"{safe_name(name)}: not finite at any step")
            continue
        broken = non_finite(curves, name)
        constant = len(one) > 1 and min(one.values) == max(one.values) and not broken
        if constant and name in CONSTANTS:
            lines.append(f"{safe_name(name)}: {number(one.values[0])} at every step")
        equal = None if constant or broken else seen.get(one.values)
        if equal is not None and note is not None:
            lines[equal] += f"; {name} is the same"
        if constant or equal is not None:
            continue
        seen[one.values] = len(lines)
        if note is None:
            unknown.append(short_summary(one))
        else:
            lines.append(describe(one, curves.val_steps if name in COURSES else None, segments) + broken)
    left = len(unknown) - UNKNOWN_SHOWN
    more = [f"and {left} more"] if left > 0 else []
    return {"lines": lines, "unknown": [*unknown[:UNKNOWN_SHOWN], *more]}


def _ordered(names: Mapping[str, object], notes: Mapping[str, MetricNote]) -> list[str]:
    """Metrics with a note in the order of the notes, then the others, without validation and counters."""
    rank = {name: i for i, note in enumerate(notes.values()) for name in note.names}
    shown = [n for n in names if n not in HIDDEN and not n.startswith((VAL_CORE, VAL_AUX))]
    return sorted(shown, key=lambda name: (rank.get(name, len(rank)), name))


def describe(one: Series, validated: Sequence[int] | None = None, segments: int = SEGMENTS) -> str:
    """`actor/kl_loss: 0.001 -> 0.171, +0.17 ± 0.002; min 0.001@1, max 0.175@19`, and a jump of its level if
    two levels describe the series better than a line. If there are few points, the points themselves.

    The change is that of a line fitted through all steps ± its standard error; for a reward, the scatter of
    single steps around the line is added. If `validated` steps are given, the course of the series replaces
    its ends: every step of a short series (`+0.17 ± 0.002; by step 1: 0.001, ...`), otherwise the means of at
    most `segments` segments, which end at validated steps if there are enough.
    """
    if len(one) < FEWEST:
        return f"{safe_name(one.name)}: {_points(one)}"
    trend = fit(one)
    # Rounding leaves a small error even for a perfect line.
    perfect = trend.noise <= 1e-9 * max(map(abs, one.values))
    error = 0.0 if perfect else trend.slope_se * (one.steps[-1] - one.steps[0])
    sign = "+" if trend.change >= 0 else ""
    change = f"{sign}{number(trend.change)} ± {f'{error:.2g}' if error < 99 else f'{error:.0f}'}"
    if one.name in REWARDS and not perfect:
        change += f", one step scatters by {trend.noise:.2g}"
    step = _jump(one, trend)
    shift = f"; jumps at step {step}" if step is not None else ""
    if validated is not None and len(one) <= COURSES.get(one.name, STEPS_SHOWN):
        return f"{safe_name(one.name)}: {change}{shift}; by step {_points(one)}"
    extremes = f"min {_at(one, min(one.values))}, max {_at(one, max(one.values))}"
    if validated is not None:
        course = f"means up to step {_segments(one, set(validated), segments)}"
        return f"{safe_name(one.name)}: {change}; {extremes}{shift}; {course}"
    ends = f"{number(one.first)} -> {number(one.last)}"
    return f"{safe_name(one.name)}: {ends}, {change}; {extremes}{shift}"


def _points(one: Series) -> str:
    """`1: 1630, 2: 2278`."""
    return ", ".join(f"{step}: {number(value)}" for step, value in zip(one.steps, one.values, strict=True))


def _jump(one: Series, trend: Trend) -> int | None:
    """Step at which the level changes. None if a line describes the series as well."""
    step = change_point(one)
    if step is None:
        return None
    parts = (one.until(step - 1).values, one.since(step).values)
    left = sum((v - fmean(part)) ** 2 for part in parts for v in part)
    return step if left < 0.7 * trend.noise**2 * (trend.n - 2) else None


def short_summary(one: Series) -> str:
    """`perf/throughput 673 -> 960`."""
    return f"{safe_name(one.name)} {ends_text(one)}"


def ends_text(one: Series) -> str:
    """`673 -> 960`: first and last level, or the mean of all steps if these are equal."""
    first, last = map(number, _ends(one))
    return f"{first} -> {last}" if first != last else f"{number(fmean(one.values))} on average"


def parts_text(one: Series, n: int = 4) -> str:
    """`0.344 -> 0.281 -> 0.41 -> 0.551`: means of `n` equal parts, or the ends of a series of few points."""
    if len(one) < 2 * n:
        return ends_text(one)
    cuts = [round(i * len(one) / n) for i in range(n + 1)]
    return " -> ".join(number(fmean(one.values[a:b])) for a, b in pairwise(cuts))


def _ends(one: Series) -> tuple[float, float]:
    """First and last level, or the first and last point if there are few."""
    return (one.values[0], one.values[-1]) if len(one) < FEWEST else (one.first, one.last)


def _segments(one: Series, validated: Collection[int], most: int) -> str:
    """`15: 0.312, 30: 0.344`: means of at most `most` segments, each with its last step."""
    n = len(one)
    marks = [i + 1 for i, step in enumerate(one.steps) if step in validated or i + 1 == n]
    if len(marks) < FEW_POINTS:
        marks = list(range(1, n + 1))
    ends = sorted({marks[round(i * len(marks) / most) - 1] for i in range(1, most + 1)})
    return ", ".join(f"{one.steps[b - 1]}: {number(fmean(one.values[a:b]))}" for a, b in pairwise([0, *ends]))


def validation_course(
    points: Sequence[tuple[int, float]], most: int = POINTS, beside: Mapping[int, str] = MappingProxyType({})
) -> str:
    """`5: 0.160, 10: 0.168`, at most `most` points: always the first, best and last, the others evenly
    spaced. `beside` maps a step to text that follows its score."""
    chosen = _chosen([value for _, value in points], most)
    return ", ".join(
        f"{step}: {value:.3f}{beside.get(step, '')}" for step, value in (points[i] for i in chosen)
    )


def gain_course(curves: Curves) -> str:
    """`5: -0.031 ± 0.012, 10: +0.004 ± 0.011`: paired differences from the phase's start for the validations
    that `validation_course` shows. Empty if none is known."""
    known = [
        (step, gain)
        for step, value, gain in zip(curves.val_steps, curves.val_scores, curves.val_gains, strict=False)
        if gain is not None and math.isfinite(value)
    ]
    chosen = _chosen([gain for _, (gain, _) in known])
    return ", ".join(f"{step}: {gain_text(gain)}" for step, gain in (known[i] for i in chosen))


def gain_text(gain: tuple[float, float]) -> str:
    """`+0.031 ± 0.012`."""
    return f"{gain[0]:+.3f} ± {gain[1]:.3f}"


def is_tie(gain: tuple[float, float]) -> bool:
    """Whether a difference is within two of its standard errors."""
    return abs(gain[0]) <= NOISE * gain[1]


def _chosen(values: Sequence[float], most: int = POINTS) -> list[int]:
    """Indices of at most `most` values: always the first, largest and last, the others evenly spaced."""
    n = len(values)
    if n <= most:
        return list(range(n))
    rest = most - 3
    even = {round(i * (n - 1) / (rest + 1)) for i in range(1, rest + 1)}
    return sorted({0, max(range(n), key=values.__getitem__), n - 1} | even)


def non_finite(curves: Curves, name: str) -> str:
    """`; not finite at steps 4-6, 9`, or nothing."""
    values = curves.metrics.get(name, ())
    bad = [s for s, v in zip(curves.steps, values, strict=False) if v is not None and not math.isfinite(v)]
    if not bad:
        return ""
    runs = [[s for _, s in group] for _, group in groupby(enumerate(bad), key=lambda pair: pair[1] - pair[0])]
    ranges = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs[:4]]
    return f"; not finite at steps {', '.join(ranges)}" + (
        f" and {len(runs) - 4} more" if len(runs) > 4 else ""
    )


def _never_finite(curves: Curves, name: str) -> bool:
    return any(value is not None for value in curves.metrics.get(name, ()))


def _at(one: Series, value: float) -> str:
    return f"{number(value)}@{one.steps[one.values.index(value)]}"
