"""Picture: the dynamics along the best strategy, phase after phase over global steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from llmzero_ray.agents.knowledge import metric_label
from llmzero_ray.hyperparameters.verl_keys import MAX_RESPONSE
from llmzero_ray.plots import style
from llmzero_ray.records.metrics import ENTROPY, GRAD_NORM, KL, LENGTH, REWARDS, Curves
from llmzero_ray.report import formatting as fmt
from llmzero_ray.report.facts import PathPhase, SearchFacts
from llmzero_ray.report.plot_scores import line_of

VALIDATION = "validation"
PANELS = (REWARDS[0], VALIDATION, KL, ENTROPY, LENGTH, GRAD_NORM)
PER_ROW = 4
"""Phases per row of the strip."""
MOST_LINES = 5
"""Maximum lines of changes per phase in the strip. Further ones are counted."""


def draw_curves(facts: SearchFacts) -> bytes | None:
    """The picture as PNG; None without a best strategy."""
    if not facts.path:
        return None
    with style.applied():
        rows = math.ceil(len(facts.path) / PER_ROW)
        figure = style.new_figure(12.0, 8.8 + 1.6 * rows)
        grid = figure.add_gridspec(4, 2, height_ratios=(0.62 * rows, 1, 1, 1))
        strip = figure.add_subplot(grid[0, :])
        _strip(strip, facts)
        first = None
        for i, name in enumerate(PANELS):
            axes = figure.add_subplot(grid[1 + i // 2, i % 2], sharex=first)
            first = first or axes
            _panel(axes, facts, name)
            if i >= len(PANELS) - 2:
                axes.set_xlabel("global step")
        figure.suptitle(
            f"{facts.config.name}: dynamics along the best strategy", x=0.01, ha="left", fontsize=13
        )
        return style.png(figure)


# --- the strip of changes -----------------------------------------------------------------------------------


def _strip(axes: Any, facts: SearchFacts) -> None:
    """Draw one box per phase, all of equal width, because a short phase has as many changes as a long one."""
    n = min(len(facts.path), PER_ROW)
    axes.set(xlim=(0, n), ylim=(-math.ceil(len(facts.path) / PER_ROW), 0))
    axes.axis("off")
    for i, phase in enumerate(facts.path):
        x, top = i % PER_ROW, -(i // PER_ROW)
        axes.fill_between((x + 0.01, x + 0.99), top - 0.97, top, color=style.BANDS[0], linewidth=0)
        head = f"phase {phase.number} · node {phase.node} · steps {phase.begin}–{phase.end}"
        axes.text(x + 0.03, top - 0.16, head, fontweight="bold", color=style.BEST, fontsize=9)
        for row, line in enumerate(_phase_lines(facts, phase, n)):
            axes.text(x + 0.03, top - 0.32 - 0.125 * row, line, fontsize=8.5)


def _phase_lines(facts: SearchFacts, phase: PathPhase, n: int) -> list[str]:
    changes = [fmt.change(change) for change in facts.changes(phase.run)]
    if not changes:
        return ["the default recipe" if phase.number == 1 else "nothing changed"]
    width = 160 // n
    lines = [line if len(line) <= width else f"{line[: width - 1]}…" for line in changes]
    if len(lines) <= MOST_LINES:
        return lines
    return [*lines[: MOST_LINES - 1], f"and {len(lines) - MOST_LINES + 1} more"]


# --- the panels ---------------------------------------------------------------------------------------------


def _panel(axes: Any, facts: SearchFacts, name: str) -> None:
    for phase in facts.path:
        axes.axvspan(phase.begin, phase.end, color=style.BANDS[(phase.number + 1) % 2], linewidth=0, zorder=0)
        if phase.number > 1:
            axes.axvline(phase.begin, color=style.GREY, linewidth=1.0, linestyle="--", zorder=1)
        if name == VALIDATION:
            _validation(axes, facts.curves(phase.node), phase.cut)
        else:
            _metric(axes, facts.curves(phase.node), name, phase.cut)
    if name == LENGTH:
        _caps(axes, facts)
    if not axes.lines or not any(len(line.get_xdata()) for line in axes.lines if line.get_zorder() >= 3):
        axes.text(
            0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", va="center", color=style.GREY
        )
    axes.set_title("validation accuracy" if name == VALIDATION else metric_label(name))
    axes.set_xlim(
        0, max(phase.begin + max(facts.curves(phase.node).steps, default=0) for phase in facts.path) or 1
    )


def _validation(axes: Any, curves: Curves, cut: int) -> None:
    kept, whole = line_of(curves, cut), line_of(curves)
    if kept.start is not None:
        axes.plot(*kept.start, marker="o", markersize=6, color="white", markeredgecolor=style.BEST, zorder=4)
        steps, scores = (kept.start[0], *kept.steps), (kept.start[1], *kept.scores)
    else:
        steps, scores = kept.steps, kept.scores
    past = slice(max(0, len(kept.steps) - 1), None)
    axes.plot(
        whole.steps[past],
        whole.scores[past],
        color=style.BEST,
        alpha=0.3,
        marker="o",
        markersize=4,
        zorder=3,
    )
    axes.plot(steps, scores, color=style.BEST, linewidth=2, marker="o", markersize=5, zorder=3)


def _metric(axes: Any, curves: Curves, name: str, cut: int) -> None:
    """Draw a thin line of each step and a thick one of its mean over two steps on both sides. Past the cut
    both are faint."""
    values = style.finite(curves.metrics.get(name, ()))
    steps = [curves.base_step + step for step in curves.steps[: len(values)]]
    kept = sum(step <= curves.base_step + cut for step in steps)
    smooth = style.rolling_mean(values, 2)
    for part, strength in ((slice(0, kept), 1.0), (slice(max(0, kept - 1), None), 0.3)):
        _line(axes, steps[part], values[part], linewidth=0.9, alpha=0.45 * strength)
        _line(axes, steps[part], smooth[part], linewidth=2.0, alpha=strength)


def _line(axes: Any, steps: Sequence[int], values: Sequence[float], **look: Any) -> None:
    if len(steps) > 1 or look["alpha"] == 1.0:
        marker = "o" if len(steps) == 1 else ""
        axes.plot(steps, values, color=style.BEST, zorder=3, marker=marker, markersize=3, **look)


def _caps(axes: Any, facts: SearchFacts) -> None:
    """Draw the response cap along the strategy, or only its label if it is far above the lengths."""
    low, top = axes.get_ylim()
    for begin, end, cap in _stretches(facts):
        look = {"color": style.VERMILLION, "fontsize": 8, "ha": "left", "va": "bottom"}
        near = cap <= 2 * top
        axes.text(
            begin + 0.02 * (end - begin), cap if near else top, f"cap {cap}" + ("" if near else " ↑"), **look
        )
        if near:
            axes.plot(
                (begin, end), (cap, cap), color=style.VERMILLION, linewidth=1.4, linestyle="--", zorder=2
            )
    axes.set_ylim(low, axes.get_ylim()[1] + 0.06 * (axes.get_ylim()[1] - low))


def _stretches(facts: SearchFacts) -> list[tuple[int, int, int]]:
    """(begin, end, cap) in global steps; neighbouring phases with the same cap are one stretch."""
    found: list[tuple[int, int, int]] = []
    for phase in facts.path:
        cap = phase.run.spec.hyperparameters.get(MAX_RESPONSE) if phase.run.spec else None
        if isinstance(cap, int):
            joins = bool(found) and found[-1][1:] == (phase.begin, cap)
            begin = found.pop()[0] if joins else phase.begin
            found.append((begin, phase.end, cap))
    return found
