"""Metric series of a phase as short lines of text: first and last value, trend and noise, extremes, level
shifts.

The numbers come from dynamics/features.py. Metric names are untrusted: they are sanitised and bounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from statistics import fmean

from llmzero_ray.agents.knowledge import MetricNote, note_of
from llmzero_ray.agents.llm.prompt_text import safe_name
from llmzero_ray.dynamics.features import Trend, change_point, fit
from llmzero_ray.records.metrics import (
    ENTROPY,
    EPOCH,
    GLOBAL_STEP,
    KL,
    LENGTH,
    REWARDS,
    VAL_AUX,
    VAL_CORE,
    Curves,
    Series,
    series,
)
from llmzero_ray.utils.text import number

POINTS = 12
"""Maximum validations that are shown, and maximum segments of a longer series."""
STEPS_SHOWN = 20
"""Maximum steps of a series that is shown step by step."""
FEWEST = 5
"""Minimum points for a level and a trend. In a shorter series each point is shown."""
FEW_POINTS = 6
"""Maximum points of a series that is shown with others of its kind."""
COURSES = (REWARDS[0], KL, ENTROPY, LENGTH)
"""Metrics of which a few points are shown besides the summary."""
UNKNOWN_SHOWN = 8
"""Maximum metrics without a note that are summarised. The rest is counted."""
BACKGROUND_CHARS, STEADY_CHARS = 150, 450
"""Maximum characters for background metrics, and for constant ones. The rest is counted."""
HIDDEN = (EPOCH, GLOBAL_STEP)
"""VeRL's own counters, which contradict the steps of the search."""


def summarise(curves: Curves, notes: Mapping[str, MetricNote]) -> dict[str, object]:
    """Summaries of all metrics of a phase as text, JSON-able.

    `lines`: one per primary metric. `background`: the other known ones, shorter. `steady`: those that never
    change or equal another one. `unknown`: metrics without a note, at most UNKNOWN_SHOWN. `courses`: a few
    points each.
    """
    found: dict[str, list[str]] = {"lines": [], "background": [], "steady": [], "unknown": [], "courses": []}
    background: list[Series] = []
    seen: dict[tuple[float, ...], str] = {}
    for name in _ordered(curves.metrics, notes):
        one = series(curves, name)
        note = note_of(name, notes)
        if not len(one):
            if _never_finite(curves, name):
                found["lines"].append(f"{safe_name(name)}: not finite at any step")
            continue
        broken = non_finite(curves, name)
        constant = min(one.values) == max(one.values) and not broken
        if not constant and not broken and note is not None and one.values in seen:
            found["steady"].append(f"{safe_name(name)} = {seen[one.values]}")
            continue
        seen.setdefault(one.values, safe_name(name))
        if note is None:
            found["unknown"].append(short_summary(one))
        elif constant:
            found["steady"].append(f"{safe_name(name)} {number(one.values[0])}")
        elif note.level == "background":
            background.append(one)
        else:
            found["lines"].append(describe(one) + broken)
    unknown = found["unknown"]
    left = len(unknown) - UNKNOWN_SHOWN
    more = [f"and {left} more"] if left > 0 else []
    found["background"] = _background(background, notes)
    found["steady"] = _bounded(found["steady"], STEADY_CHARS, "which are background")
    courses = [course(s) for s in (series(curves, name) for name in COURSES) if len(s) >= FEWEST]
    return {**found, "unknown": [*unknown[:UNKNOWN_SHOWN], *more], "courses": courses}


def _ordered(names: Mapping[str, object], notes: Mapping[str, MetricNote]) -> list[str]:
    """Known metrics in the order of the notes, then the others, without validation and counters."""
    rank = {name: i for i, note in enumerate(notes.values()) for name in note.names}
    shown = [n for n in names if n not in HIDDEN and not n.startswith((VAL_CORE, VAL_AUX))]
    return sorted(shown, key=lambda name: (rank.get(name, len(rank)), name))


def _background(found: Sequence[Series], notes: Mapping[str, MetricNote]) -> list[str]:
    """Metrics that name a note, then those that changed most, up to BACKGROUND_CHARS."""
    ranked = sorted(found, key=lambda one: (one.name not in notes, -_relative_change(one), one.name))
    return _bounded([short_summary(one) for one in ranked], BACKGROUND_CHARS, "which changed less")


def _bounded(lines: Sequence[str], room: int, rest: str) -> list[str]:
    """First lines that fit in `room` characters. The others are counted."""
    kept: list[str] = []
    for line in lines:
        room -= len(line) + 2
        if room < 0:
            return [*kept, f"and {len(lines) - len(kept)} more, {rest}"]
        kept.append(line)
    return kept


def _relative_change(one: Series) -> float:
    first, last = _ends(one)
    level = max(abs(first), abs(last))
    return abs(last - first) / level if level > 0 else 0.0


def describe(one: Series) -> str:
    """`actor/kl_loss: 0.001 -> 0.171, +0.17 ± 0.002; min 0.001@1, max 0.175@19`, and a jump of its level if
    two levels describe the series better than a line. The points themselves if there are few.

    The change is that of a fitted line through all steps ± its standard error.
    """
    if len(one) < FEWEST:
        return f"{safe_name(one.name)}: {_points(one)}"
    trend = fit(one)
    # Rounding leaves a little of a perfect line.
    perfect = trend.noise <= 1e-9 * max(map(abs, one.values))
    error = 0.0 if perfect else trend.slope_se * (one.steps[-1] - one.steps[0])
    sign = "+" if trend.change >= 0 else ""
    change = f"{sign}{number(trend.change)} ± {error:.2g}"
    extremes = f"min {_at(one, min(one.values))}, max {_at(one, max(one.values))}"
    step = _jump(one, trend)
    shift = f"; jumps at step {step}" if step is not None else ""
    return f"{safe_name(one.name)}: {number(one.first)} -> {number(one.last)}, {change}; {extremes}{shift}"


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
    first, last = map(number, _ends(one))
    return f"{safe_name(one.name)} {first}" + (f" -> {last}" if first != last else " on average")


def _ends(one: Series) -> tuple[float, float]:
    """First and last level, or the first and last point if there are few."""
    return (one.values[0], one.values[-1]) if len(one) < FEWEST else (one.first, one.last)


def course(one: Series) -> str:
    """Every step of a short series, otherwise means of POINTS segments of equal length, each with its last
    step."""
    n = len(one)
    if n <= STEPS_SHOWN:
        return f"{safe_name(one.name)} by step: {_points(one)}"
    edges = [round(i * n / min(n, POINTS)) for i in range(min(n, POINTS) + 1)]
    parts = [f"{one.steps[b - 1]}: {number(fmean(one.values[a:b]))}" for a, b in pairwise(edges)]
    return f"{safe_name(one.name)}, means up to step: {', '.join(parts)}"


def validation_course(points: Sequence[tuple[int, float]], most: int = POINTS) -> str:
    """`5: 0.160, 10: 0.168`, at most `most` points: always first, best and last, the others evenly spaced."""
    chosen = _chosen([value for _, value in points], most)
    return ", ".join(f"{step}: {value:.3f}" for step, value in (points[i] for i in chosen))


def gain_course(curves: Curves) -> str:
    """`5: -0.031 ± 0.012, 10: +0.004 ± 0.011`: paired differences to the phase's start for the validations
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


def _chosen(values: Sequence[float], most: int = POINTS) -> list[int]:
    """Indices of at most `most` values: always the first, the largest and the last, the others evenly
    spaced."""
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
