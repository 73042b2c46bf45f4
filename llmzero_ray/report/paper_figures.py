"""Counterparts of the paper's Figures 2 to 5 for any searches: best score against what was spent, and the
hyper-parameters along best strategies. Not here: the figures of one report (plot_*.py)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from llmzero_ray.compute import amount, tokens_of
from llmzero_ray.coordinator import token_cost
from llmzero_ray.hyperparameters import short
from llmzero_ray.metric_files import load_points
from llmzero_ray.report.facts import SearchFacts


def best_so_far(facts: SearchFacts) -> list[tuple[float, float]]:
    """(compute spent, best validation score so far), in the order of the nodes; first the base model's."""
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


def draw(searches: Sequence[SearchFacts], directory: Path) -> tuple[Path, ...]:
    """`best_so_far.png` (Figures 2 and 5) and `hyperparameters.png` (Figures 3 and 4) in `directory`."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for number, facts in enumerate(searches):
        points, color = best_so_far(facts), f"C{number % 10}"
        if points:
            axes[0].step(*zip(*points, strict=True), where="post", color=color, label=facts.config.name)
        scored = enumerate((run.score for _, run in sorted(facts.runs.items())), start=1)
        known = [(n, score) for n, score in scored if score is not None]
        best = list(accumulate((score for _, score in known), max))
        axes[1].step([n for n, _ in known], best, where="post", color=color, label=facts.config.name)
    axes[0].set(xlabel="compute spent", ylabel="best validation score")
    axes[1].set(xlabel="run", ylabel="best validation score")
    for axis in axes:
        axis.legend(fontsize="small")
    first = directory / "best_so_far.png"
    figure.savefig(first, dpi=120)
    pyplot.close(figure)
    return first, _hyperparameters(searches, directory / "hyperparameters.png")


def _hyperparameters(searches: Sequence[SearchFacts], path: Path) -> Path:
    """One row for each hyper-parameter that a best strategy changed: its values over the strategy's steps."""
    from matplotlib import pyplot

    keys = list(
        dict.fromkeys(
            changed.key
            for facts in searches
            for phase in facts.path[1:]
            for changed in facts.changes(phase.run)
            if isinstance(changed.new, int | float)
        )
    )
    figure, axes = pyplot.subplots(
        max(1, len(keys)), 1, figsize=(7, 1.8 * max(1, len(keys))), squeeze=False, layout="constrained"
    )
    for axis, key in zip(axes[:, 0], keys, strict=False):
        for number, facts in enumerate(searches):
            steps: list[float] = []
            values: list[float] = []
            for phase in facts.path:
                value = None if phase.run.spec is None else phase.run.spec.hyperparameters.get(key)
                if isinstance(value, int | float):
                    steps += [phase.begin, phase.end]
                    values += [float(value)] * 2
            axis.plot(steps, values, color=f"C{number % 10}", label=facts.config.name)
        axis.set(ylabel=short(key), xlabel="training steps of the strategy")
    if keys:
        axes[0, 0].legend(fontsize="small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
