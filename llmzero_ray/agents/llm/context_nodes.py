"""Nodes of a search as text: configurations, changes and their outcome, checkpoints, budget.

Not here: metrics (context_metrics.py), the choice for each agent (context.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from llmzero_ray.agents.base import Budget, NodeView, OfferedCheckpoint
from llmzero_ray.agents.llm.context_metrics import validation_course
from llmzero_ray.agents.llm.prompt_text import score
from llmzero_ray.hyperparameters import SPACE, diff, format_value, short
from llmzero_ray.metrics import STEP_TIME, Curves, accuracy_error, series
from llmzero_ray.records import Hyperparameters, HyperparameterValue
from llmzero_ray.text import number, one_line

MOST_CHANGES = 8
"""Changes of one node that are shown."""
MOST_CHECKPOINTS = 24
"""Checkpoints that are listed, at least two of each node: its best and its last."""


def budget_lines(budget: Budget, curves: Curves, n_gpus: int) -> list[str]:
    """`3 training runs left`, `12.5 GPU hours left`, ..., and what a step of these curves costs a slot."""
    left = [
        ("training runs", budget.runs),
        ("GPU hours", budget.gpu_hours),
        ("hours of wall clock", budget.wall_clock_hours),
        ("dollars for agent calls", budget.dollars),
    ]
    lines = [f"{max(0.0, value):.4g} {unit} left" for unit, value in left if value is not None]
    times = series(curves, STEP_TIME).values
    if times and math.isfinite(seconds := median(times)):
        lines.append(f"one step takes {seconds:.3g} s ({number(seconds * n_gpus)} GPU seconds)")
    return lines


# --- configurations -----------------------------------------------------------------------------------------


def configuration(full: Hyperparameters, root: Hyperparameters) -> str:
    """The configuration as YAML under short names, what differs from the root's marked; no line wraps."""
    differs = diff(root, full)
    order = {row.key: i for i, row in enumerate(SPACE)}
    lines = []
    for key in sorted(full, key=lambda k: (order.get(k, len(order)), k)):
        was = f"  # root: {_value(key, differs[key][0])}" if key in differs else ""
        lines.append(f"{short(key)}: {_value(key, full[key])}{was}")
    return "\n".join(lines)


def changes(old: Hyperparameters, new: Hyperparameters) -> str:
    """`lr 0.001 -> 0.0005, n 8 -> 12`, at most MOST_CHANGES of them."""
    found = [
        f"{short(key)} {_value(key, before)} -> {_value(key, after)}"
        for key, (before, after) in diff(old, new).items()
    ]
    left = len(found) - MOST_CHANGES
    return ", ".join(found[:MOST_CHANGES] + ([f"and {left} more"] if left > 0 else [])) or "nothing"


def _value(key: str, value: HyperparameterValue) -> str:
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_value(key, v) for v in value) + "]"
    if isinstance(value, str):
        text = one_line(value, 80)
        plain = text.replace("-", "").replace("_", "").isalnum() and text not in ("true", "false", "null")
        return text if plain else "'" + text.replace("'", "''") + "'"
    return format_value(key, value)


# --- nodes --------------------------------------------------------------------------------------------------


def title(node: NodeView) -> str:
    """`node 3 (evolve, early stopped after 24 of 40 steps)`."""
    done = max((*node.curves.steps, *node.curves.val_steps), default=0)
    length = f"{done} of {node.n_steps} steps" if done != node.n_steps else f"{done} steps"
    return f"node {node.node} ({node.kind}, {node.status.replace('_', ' ')} after {length})"


def validation(node: NodeView, n_val: int, *, base: int = 0) -> str:
    """The phase's validation course, its start and the standard error of one score; steps are shifted by
    `base`."""
    curves = node.curves
    points = [
        (base + step, value)
        for step, value in zip(curves.val_steps, curves.val_scores, strict=True)
        if math.isfinite(value)
    ]
    start = f"start {score(curves.start_score)}; " if curves.start_score is not None else ""
    if not points:
        return f"{start}not validated yet"
    best = max(value for _, value in points)
    error = accuracy_error(best, n_val)
    return f"{start}{validation_course(points)} (standard error {error:.3f}, {n_val} items)"


def outcome(node: NodeView) -> str:
    """Outcome of a node in a few words: start, best and last score, or how it failed."""
    if node.failure is not None:
        return f"failed ({node.failure.failure_class}: {one_line(node.failure.cause, 120)})"
    curves = node.curves
    if node.score is None:
        return "no score yet"
    at = f"@{node.best_step}" if node.best_step is not None else ""
    start = f"{score(curves.start_score)} -> " if curves.start_score is not None else ""
    last = f", last {curves.val_scores[-1]:.3f}" if curves.val_scores else ""
    return f"validation {start}best {score(node.score)}{at}{last}"


def stop_note(node: NodeView) -> str:
    """Why a phase ended before its last step, or nothing."""
    if node.status != "early_stopped":
        return ""
    return one_line(node.stop_reason, 160) or "no reason was recorded"


def sibling(on: NodeView, child: NodeView, *, resumes: bool) -> str:
    """Changes of one child of `on` and their outcome; with `resumes` also its start step."""
    if not child.hyperparameters:
        return f"node {child.node} ({child.kind}, {child.status}): not planned yet"
    start = f" from global step {child.base_step}" if resumes else ""
    stopped = f"; stopped: {one_line(child.stop_reason, 70)}" if child.status == "early_stopped" else ""
    tried = changes(on.hyperparameters, child.hyperparameters)
    return f"{title(child)}{start}: {tried} => {outcome(child)}{stopped}"


def path_line(before: NodeView | None, node: NodeView) -> str:
    """One phase of a resume chain: start step, changes, outcome and diagnosis."""
    tried = "root configuration" if before is None else changes(before.hyperparameters, node.hyperparameters)
    diagnosis = (
        f" Diagnosis then: {one_line(node.diagnosis.summary, 90)}" if node.diagnosis is not None else ""
    )
    return f"{title(node)} from global step {node.base_step}: {tried} => {outcome(node)}.{diagnosis}"


# --- checkpoints --------------------------------------------------------------------------------------------


def checkpoint_lines(offered: Sequence[OfferedCheckpoint]) -> list[str]:
    """One line per node: `node 3: 10 (70, 0.344), ...`: step (global step, validation), thinned."""
    by_node: dict[int, list[OfferedCheckpoint]] = {}
    for one in sorted(offered, key=lambda c: (c.global_step, c.node)):
        by_node.setdefault(one.node, []).append(one)
    share = max(2, MOST_CHECKPOINTS // max(1, len(by_node)))
    return [f"node {node}: {_listed(found, share)}" for node, found in by_node.items()]


def _listed(found: Sequence[OfferedCheckpoint], most: int) -> str:
    kept = list(range(len(found)))
    if len(found) > most:
        best = max(kept, key=lambda i: -math.inf if (v := found[i].val_score) is None else v)
        even = [round(i * (len(found) - 1) / (most - 1)) for i in range(most - 1)]
        kept = sorted({best, len(found) - 1, *even[: most - 2]})
    listed = [
        f"{c.step} ({c.global_step}{'' if c.val_score is None else f', {c.val_score:.3f}'})"
        for c in (found[i] for i in kept)
    ]
    left = len(found) - len(kept)
    return ", ".join(listed) + (f"; {left} more not listed" if left else "")


def incumbent_lines(best: NodeView | None, on: NodeView) -> Mapping[str, str] | None:
    """The best node of the search: its score and how its configuration differs from `on`'s; None if it is
    `on`."""
    if best is None or best.node == on.node or not best.hyperparameters:
        return None
    return {
        "title": title(best),
        "outcome": outcome(best),
        "differs": changes(on.hyperparameters, best.hyperparameters),
    }
