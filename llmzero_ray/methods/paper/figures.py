"""Counterparts of the paper's Figures 2 to 5 for any searches: best score over compute and over runs, best
strategies phase by phase, and scores by model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

from llmzero_ray.hyperparameters.compute import amount, token_cost, tokens_of
from llmzero_ray.methods.paper.tables import labels, node_tests
from llmzero_ray.plots import style
from llmzero_ray.report import formatting as fmt
from llmzero_ray.report.comparison import policies
from llmzero_ray.report.facts import PathPhase, SearchFacts
from llmzero_ray.storage.metric_files import load_points
from llmzero_ray.utils.files import replace_file
from llmzero_ray.utils.text import one_line

_COLOURS = (style.BLUE, style.VERMILLION, style.GREEN, style.PURPLE, style.ORANGE, style.SKY, style.BLACK)
_LINES = ("-", "--", "-.", ":")
_MOST_CHANGES = 3
"""Maximum number of changes written above a phase."""
_CHARACTERS = 150
"""Number of characters that fit above a whole panel."""


def best_so_far(facts: SearchFacts) -> list[tuple[float, float]]:
    """(compute spent, best validation score so far) in the order of the nodes, beginning with the base
    model."""
    cost, used, best = token_cost(facts.config), 0.0, float("-inf")
    points: list[tuple[float, float]] = []
    for node, run in sorted(facts.runs.items()):
        if run.spec is None:
            continue
        for point in load_points(facts.storage, node):
            used += amount(tokens_of(run.spec.hyperparameters, point.metrics), cost)
            if point.val_score is None or (point.step == 0 and points):
                continue
            best = max(best, point.val_score)
            points.append((used if point.step else 0.0, best))
    return points


def with_test_scores(facts: SearchFacts) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Two curves of (GPU hours spent, test score), as in Figure 2: every run whose best step was tested, and
    the run with the best validation score so far."""
    tests, hours, best = node_tests(facts), 0.0, float("-inf")
    dots: list[tuple[float, float]] = []
    line: list[tuple[float, float]] = []
    for node, run in sorted(facts.runs.items()):
        hours += 0.0 if run.outcome is None else run.outcome.gpu_hours
        tested = tests.get(node)
        if tested is None:
            continue
        dots.append((hours, tested.mean))
        if run.score is not None and run.score > best:
            best = run.score
            line.append((hours, tested.mean))
    return dots, [*line, (hours, line[-1][1])] if line else []


def draw(searches: Sequence[SearchFacts], directory: Path) -> tuple[Path, ...]:
    """Draw into `directory`: `best_so_far.png` (Figures 2 and 5), `strategies.png` (Figure 3), and
    `models.png` (Figure 4) if the searches have several base models."""
    names = labels(searches)
    with style.applied():
        figures = {
            "best_so_far.png": _best_so_far(searches, names),
            "strategies.png": _strategies(searches, names),
            "models.png": _models(searches),
        }
        found = []
        for name, figure in figures.items():
            if figure is not None:
                replace_file(directory / name, style.png(figure))
                found.append(directory / name)
    return tuple(found)


def _looks(n: int) -> list[dict[str, Any]]:
    """Colour and line style of each of `n` searches, so that overlapping lines can be distinguished."""
    return [
        {"color": colour, "linestyle": kind}
        for colour, kind, _ in zip(cycle(_COLOURS), cycle(_LINES), range(n), strict=False)
    ]


def _best_so_far(searches: Sequence[SearchFacts], names: Sequence[str]) -> Any:
    """Validation over compute and over runs, and test scores if a search has those of several runs."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    courses = [with_test_scores(facts) for facts in searches]
    has_tests = any(len(dots) > 1 for dots, _ in courses)  # the winner's score alone is no curve
    figure = style.new_figure(14.0 if has_tests else 9.5, 4.2)
    spent, runs, *rest = figure.subplots(1, 3 if has_tests else 2)
    for facts, name, look, (dots, line) in zip(searches, names, _looks(len(searches)), courses, strict=True):
        points = best_so_far(facts)
        if points:
            spent.step(*zip(*points, strict=True), where="post", **look)
        scored = enumerate((run.score for _, run in sorted(facts.runs.items())), start=1)
        known = [(n, score) for n, score in scored if score is not None]
        best = list(accumulate((score for _, score in known), max))
        runs.step([n for n, _ in known], best, where="post", marker=".", label=name, **look)
        for tested in rest if len(dots) > 1 else ():
            tested.step(*zip(*line, strict=True), where="post", **look)
            tested.scatter(*zip(*dots, strict=True), s=14, color=look["color"])
    spent.set(xlabel="compute spent", ylabel="best validation score so far")
    spent.xaxis.set_major_formatter(EngFormatter(sep=""))
    runs.set(xlabel="run", ylabel="best validation score so far")
    runs.xaxis.set_major_locator(MaxNLocator(integer=True))
    for tested in rest:
        tested.set(xlabel="GPU hours spent", ylabel="test score of the run validated best so far")
    figure.legend(loc="outside lower center", ncols=min(6, len(searches)))
    return figure


def _strategies(searches: Sequence[SearchFacts], names: Sequence[str]) -> Any:
    """One panel per search: validation along its best strategy, test scores at the ends of phases,
    changes."""
    shown = [(facts, name) for facts, name in zip(searches, names, strict=True) if facts.path]
    if not shown:
        return None
    figure = style.new_figure(11.0, 3.6 * len(shown))
    for axes, (facts, name) in zip(figure.subplots(len(shown), 1, squeeze=False)[:, 0], shown, strict=True):
        steps, scores = along(facts)
        axes.plot(steps, scores, "o-", color=style.GREEN, markersize=4, clip_on=False, label="validation")
        tests = node_tests(facts)
        ends = [
            (phase.end, tests[phase.node].mean) for phase in facts.path if _is_tested(facts, phase, tests)
        ]
        if ends:
            axes.plot(
                *zip(*ends, strict=True), "s--", color=style.BLUE, markersize=5, clip_on=False, label="test"
            )
        for phase in facts.path:
            band = style.BANDS[(phase.number + 1) % 2]
            axes.axvspan(phase.begin, phase.end, color=band, linewidth=0, zorder=0)
            axes.annotate(
                _phase_text(facts, phase),
                ((phase.begin + phase.end) / 2, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=7.0,
                color=style.DARK,
            )
        axes.set_xlim(0, facts.path[-1].end)
        axes.set_title(f"{name} ({facts.task.get('name', 'a task')})", pad=62)
        axes.set(xlabel="training steps of the strategy", ylabel="score")
        axes.legend(loc="lower right")
    return figure


def along(facts: SearchFacts) -> tuple[list[int], list[float]]:
    """(global steps, validation scores) along the best strategy, each phase up to the step at which the next
    one resumes. The base model's score is first, if known."""
    steps: list[int] = []
    scores: list[float] = []
    for phase in facts.path:
        curves = facts.curves(phase.node)
        start = facts.start_score(phase.run) if phase.number == 1 else None
        points = [(0, start)] if start is not None else []
        points += zip(curves.val_steps, curves.val_scores, strict=True)
        for step, score in points:
            if step <= phase.cut and (step > 0 or start is not None):
                steps.append(phase.begin + step)
                scores.append(float(score))
    return steps, scores


def _is_tested(facts: SearchFacts, phase: PathPhase, tests: Any) -> bool:
    """Whether the phase's tested (best) step is its last step in the strategy."""
    return phase.node in tests and facts.nodes[phase.node].best_step == phase.cut


def _phase_text(facts: SearchFacts, phase: PathPhase) -> str:
    """Node of a phase, diagnosis of the phase before it, and changes. In a narrow phase, values are below
    their names."""
    share = (phase.end - phase.begin) / max(1, facts.path[-1].end)
    changed = facts.changes(phase.run)
    state = "unknown" if phase.run.proposal is None else phase.run.proposal.diagnosis.state
    found = "" if state == "unknown" else f", after: {state}"
    lines = [f"phase {phase.number}, node {phase.node}{found}"]
    if not changed:
        lines.append("default recipe" if phase.number == 1 else "unchanged")
    for one in changed[:_MOST_CHANGES]:
        text = one_line(fmt.change(one), 40)
        fits = len(text) <= share * _CHARACTERS
        lines.append(text if fits else text.replace(" ", "\n", 1))
    if len(changed) > _MOST_CHANGES:
        lines.append(f"and {len(changed) - _MOST_CHANGES} more")
    return "\n".join(lines)


def _models(searches: Sequence[SearchFacts]) -> Any:
    """Mean test score of each kind of policy by base model, as in Figure 4. None if there is only one base
    model."""
    kinds = {"base": "base model", "reference": "default recipe", "best": "best strategy"}
    colours = {"base": style.GREY, "reference": style.REFERENCE, "best": style.BEST}
    tests: dict[str, dict[str, list[float]]] = {}
    for facts in searches:
        for one in policies(facts):
            if one.test is not None:
                tests.setdefault(facts.base_model, {}).setdefault(one.what, []).append(one.test.mean)
    if len(tests) < 2:
        return None
    figure = style.new_figure(2.5 + 2.2 * len(tests), 4.0)
    axes = figure.subplots()
    for place, what in enumerate(kinds):
        for number, known in enumerate(tests.values()):
            if what in known:
                height = sum(known[what]) / len(known[what])
                bar = axes.bar(number + 0.27 * (place - 1), height, 0.25, color=colours[what])
                axes.bar_label(bar, fmt="{:.3f}", fontsize=8)
    ends = [Path(model).name for model in tests]
    names = [end if ends.count(end) == 1 else model for model, end in zip(tests, ends, strict=True)]
    axes.set_xticks(range(len(names)), [one_line(name, 40) for name in names])
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("test score, mean over searches")
    boxes = [axes.bar(0, 0, color=colours[what]) for what in kinds]
    figure.legend(boxes, list(kinds.values()), loc="outside lower center", ncols=3)
    return figure
