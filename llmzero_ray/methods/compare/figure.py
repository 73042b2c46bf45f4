"""Anytime curves of a comparison: best validation score over compute spent (the paper's Figures 2 and 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from llmzero_ray.methods.compare.pilot import Pilot
from llmzero_ray.methods.compare.plan import ComparedRun, ComparePlan
from llmzero_ray.methods.compare.results import RunOutcome

_N = 201
"""Number of points of a curve."""


def curves(
    plan: ComparePlan, outcomes: Mapping[ComparedRun, RunOutcome], pilots: Mapping[str, Pilot], path: Path
) -> None:
    """Write a PNG with one panel per task: each method's mean over seeds, and a band from the lowest to the
    highest seed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    n = len(plan.tasks)
    n_columns = min(3, n)
    n_rows = -(-n // n_columns)
    figure, axes = pyplot.subplots(
        n_rows, n_columns, figsize=(5 * n_columns, 3.6 * n_rows), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[n:]:
        axis.axis("off")
    for axis, task in zip(axes.flat, plan.tasks, strict=False):
        pilot = pilots[task.name]
        grid = np.linspace(0.0, pilot.compute, _N)
        for number, method in enumerate(plan.methods):
            own = [outcomes[ComparedRun(task.name, method.name, seed)] for seed in plan.seeds]
            found = [best_so_far(one.curve, grid) for one in own if one.curve]
            if not found:
                continue
            color = f"C{number % 10}"
            axis.plot(grid, np.mean(found, axis=0), color=color, label=method.name, drawstyle="steps-post")
            if len(found) > 1:
                low, high = np.min(found, axis=0), np.max(found, axis=0)
                axis.fill_between(grid, low, high, color=color, alpha=0.12, step="post", linewidth=0)
        axis.set(title=task.name, xlabel=f"compute spent ({pilot.unit})", ylabel="best validation score")
        axis.legend(fontsize="small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def best_so_far(curve: Sequence[tuple[float, float]], grid: np.ndarray) -> np.ndarray:
    """The curve's value at each grid point: that of its last point up to there, or else of its first
    point."""
    at = np.searchsorted([amount for amount, _ in curve], grid, side="right") - 1
    scores = np.array([score for _, score in curve])
    found: np.ndarray = scores[np.maximum(at, 0)]
    return found
