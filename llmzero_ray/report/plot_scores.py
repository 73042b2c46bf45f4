"""Picture: validation accuracy of every node over global steps, the best strategy in front."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.plots import style
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.records.metrics import Curves, Score
from llmzero_ray.report.comparison import policies
from llmzero_ray.report.facts import PathPhase, SearchFacts
from llmzero_ray.utils import text

ENDS = {"failed": ("X", style.FAILED, 8.0), "early_stopped": ("s", style.EARLY, 6.5)}
"""How a run ended -> marker, colour and size at the end of its line."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A validation curve in global steps."""

    steps: tuple[int, ...]
    scores: tuple[float, ...]
    start: tuple[int, float] | None
    """Where it starts from: global step and the score there before training."""


def draw_scores(facts: SearchFacts) -> bytes | None:
    """The picture as PNG; None while nothing was validated."""
    if not any(facts.curves(node).val_steps for node in facts.core.runs):
        return None
    with style.applied():
        figure = style.new_figure(11.0, 6.2)
        axes = figure.add_subplot()
        for run in facts.runs.values():
            if run.node not in facts.path_nodes:
                _other(axes, run, line_of(facts.curves(run.node)))
        _references(axes, facts)
        for phase in facts.path:
            _best_phase(axes, facts, phase)
        _best_point(axes, facts)
        _labels(axes, facts)
        _decorate(axes, facts)
        return style.png(figure)


def line_of(curves: Curves, until: int | None = None) -> Line:
    """A node's validations, those up to step `until` of its phase if given."""
    pairs = [
        (curves.base_step + step, score)
        for step, score in zip(curves.val_steps, curves.val_scores, strict=True)
        if until is None or step <= until
    ]
    start = None if curves.start_score is None else (curves.base_step, curves.start_score)
    return Line(steps=tuple(s for s, _ in pairs), scores=tuple(v for _, v in pairs), start=start)


def _draw(axes: Any, line: Line, **look: Any) -> None:
    if line.start is not None and line.steps:
        # No marker: the score before training is a check, not one of the node's own.
        plain = {**look, "marker": "", "label": None}
        axes.plot((line.start[0], line.steps[0]), (line.start[1], line.scores[0]), **plain)
    axes.plot(line.steps, line.scores, **look)


def _other(axes: Any, run: PhaseRun, line: Line) -> None:
    _draw(axes, line, color=style.GREY, linewidth=1.2, marker="o", markersize=3.5, alpha=0.8, zorder=2)
    if run.status in ENDS and line.steps:
        marker, colour, size = ENDS[run.status]
        axes.plot(
            line.steps[-1],
            line.scores[-1],
            marker=marker,
            color=colour,
            markersize=size,
            linestyle="",
            zorder=4,
        )


def _references(axes: Any, facts: SearchFacts) -> None:
    """Draw the base model as a level, and the default recipe in one phase as a curve."""
    base = next((p for p in policies(facts) if p.what == "base"), None)
    if base is not None and base.validation is not None:
        level, error = base.validation.mean, base.validation.standard_error or 0.0
        axes.axhspan(level - error, level + error, color=style.BASE, alpha=0.08, linewidth=0, zorder=1)
        axes.axhline(
            level, color=style.BASE, linestyle="--", linewidth=1.3, zorder=3, label=f"base model {level:.4f}"
        )
    reference = facts.reference
    if reference is not None:
        line = line_of(facts.curves(REFERENCE))
        label = "default recipe, one phase" + (
            "" if reference.score is None else f", best {reference.score:.4f}"
        )
        look = {
            "color": style.REFERENCE,
            "linewidth": 2.0,
            "linestyle": "-.",
            "marker": "^",
            "markersize": 5.5,
        }
        _draw(axes, line, zorder=5, label=label, **look)


def _best_phase(axes: Any, facts: SearchFacts, phase: PathPhase) -> None:
    curves = facts.curves(phase.node)
    kept, whole = line_of(curves, phase.cut), line_of(curves)
    left = len(kept.steps)
    if left < len(whole.steps):
        past = slice(max(0, left - 1), None)
        axes.plot(
            whole.steps[past],
            whole.scores[past],
            color=style.BEST,
            alpha=0.35,
            linewidth=1.4,
            marker="o",
            markersize=3.5,
            zorder=5,
        )
    label = _strategy_label(facts) if phase.number == 1 else None
    look = {"color": style.BEST, "linewidth": 2.8, "marker": "o", "markersize": 6.0}
    _draw(axes, kept, zorder=6, label=label, **look)
    if phase.number > 1:
        axes.axvline(phase.begin, color=style.BEST, linewidth=0.8, linestyle=(0, (2, 3)), zorder=1)


def _strategy_label(facts: SearchFacts) -> str:
    score = _best_score(facts)
    scored = "" if score is None else f", {score.mean:.4f}"
    return f"best strategy, {text.plural(len(facts.path), 'phase')}{scored}"


def _best_score(facts: SearchFacts) -> Score | None:
    last = facts.path[-1]
    return facts.validation(last.node, last.cut, last.run.score)


def _best_point(axes: Any, facts: SearchFacts) -> None:
    score = _best_score(facts) if facts.path else None
    if score is None:
        return
    at, look = facts.path[-1].end, {"color": style.BEST, "zorder": 8}
    if score.standard_error is not None:
        axes.errorbar(at, score.mean, yerr=score.standard_error, capsize=5, linewidth=1.6, **look)
    axes.plot(at, score.mean, marker="*", markersize=17, markeredgecolor="white", **look)


def _labels(axes: Any, facts: SearchFacts) -> None:
    """Draw node numbers at the ends of lines, moved apart if they would overlap."""
    ends = []
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    for run in facts.runs.values():
        line = line_of(facts.curves(run.node))
        if line.steps:
            # Beside a line that goes on as the next phase its number would be crossed.
            below = 0.025 * (high - low) if run.node in facts.path_nodes else 0.0
            ends.append((line.steps[-1], line.scores[-1] - below, run))
    for column in _columns(sorted(ends, key=lambda end: end[0]), 0.02 * (right - left)):
        places = style.spread([score for _, score, _ in column], 0.034 * (high - low))
        for place, (step, _, run) in zip(places, column, strict=True):
            _label(axes, run.node, (step, place), is_best=run.node in facts.path_nodes)


def _columns(ends: list[tuple[int, float, PhaseRun]], near: float) -> list[list[tuple[int, float, PhaseRun]]]:
    """Ends in the order of steps -> groups in which each lies within `near` of the one before."""
    columns: list[list[tuple[int, float, PhaseRun]]] = []
    for end in ends:
        if columns and end[0] - columns[-1][-1][0] <= near:
            columns[-1].append(end)
        else:
            columns.append([end])
    return columns


def _label(axes: Any, node: int, at: tuple[float, float], *, is_best: bool) -> None:
    axes.annotate(
        str(node),
        at,
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        color=style.BEST if is_best else style.DARK,
        fontweight="bold" if is_best else "normal",
        zorder=9,
    )


def _decorate(axes: Any, facts: SearchFacts) -> None:
    for status, (marker, colour, size) in ENDS.items():
        if any(run.status == status for run in facts.runs.values() if facts.curves(run.node).val_steps):
            name = status.replace("_", " ")
            axes.plot([], [], marker=marker, color=colour, markersize=size, linestyle="", label=name)
    if any(node not in facts.path_nodes and facts.curves(node).val_steps for node in facts.runs):
        axes.plot([], [], color=style.GREY, marker="o", markersize=3.5, label="other nodes")
    n = "" if facts.n_val is None else f" ({facts.n_val} items)"
    axes.set(xlabel="global step", ylabel=f"validation accuracy{n}")
    axes.set_title(f"{facts.config.name}: validation accuracy of every node")
    axes.margins(x=0.04)
    axes.set_xlim(left=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=3)
