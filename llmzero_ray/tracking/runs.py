"""Data for trackers: the runs of a search, with their configuration and points.

A run is a node, with VeRL's metrics over global steps, or the search itself, with one point per ended phase.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llmzero_ray.coordinator import CoordinatorCore
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.hyperparameters import diff
from llmzero_ray.records import Event, PhaseResult
from llmzero_ray.records.events import REFERENCE, PhaseFailed, PhaseFinished
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import load_points

SUMMARY = "search"
"""Key of the run that stands for the whole search."""


@dataclass(frozen=True, kw_only=True)
class TrackedPoint:
    """Values at one step of a run. Steps of a run are increasing."""

    step: int
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """One run of a tracker. `key` is its name within the search, `config` its training configuration. It
    continues the weights of the run `forks` from global step `forks_at` on."""

    key: str
    name: str
    config: Mapping[str, Any]
    forks: str | None = None
    forks_at: int = 0


def node_run(core: CoordinatorCore, node: int) -> TrackedRun:
    """A node that has its spec: VeRL's keys, and under `llmzero` its place in the tree.

    `llmzero.changes` has old and new value of each hyper-parameter that differs from the phase it resumes, or
    from its parent in the tree when it starts from the base model.
    """
    run = core.runs[node]
    spec = run.spec
    assert spec is not None
    source = spec.resume_from
    earlier = spec.parent if source is None else source.node
    before = None if earlier is None else core.runs[earlier].spec
    changed = {} if before is None else diff(before.hyperparameters, spec.hyperparameters)
    lineage: dict[str, Any] = {
        "search": core.config.name,
        "node": node,
        "kind": spec.kind,
        "parent": spec.parent,
        "resume_node": None if source is None else source.node,
        "resume_step": None if source is None else source.step,
        "first_global_step": spec.base_step,
        "n_steps": spec.n_steps,
        "seed": spec.seed,
        "changes": {key: {"old": old, "new": new} for key, (old, new) in changed.items()},
    }
    if run.proposal is not None:
        lineage["diagnosis"] = run.proposal.diagnosis.summary
        lineage["rationale"] = run.proposal.rationale
    name = "reference" if node == REFERENCE else str(node)
    return TrackedRun(
        key=name if node == REFERENCE else _key(node),
        name=f"{core.config.name}/{name}",
        config={"trainer": {}, **_nested(spec.hyperparameters), "llmzero": lineage},
        forks=None if source is None else _key(source.node),
        forks_at=spec.base_step,
    )


def _key(node: int) -> str:
    return f"node-{node:04d}"


def node_points(storage: SearchStorage, run: PhaseRun) -> Iterable[TrackedPoint]:
    """Points of a node's steps that count, each at its global step."""
    for point in load_points(storage, run.node):
        values = dict(point.metrics)
        if point.val_score is not None:
            values["llmzero/val_score"] = point.val_score
        values["llmzero/phase_step"] = point.step
        yield TrackedPoint(step=run.base_step + point.step, values=values)


def summary_run(core: CoordinatorCore) -> TrackedRun:
    """The run of the whole search, with its configuration."""
    return TrackedRun(
        key=SUMMARY,
        name=core.config.name,
        config={"trainer": {}, "llmzero": {"search": core.config.name, **core.config.to_json()}},
    )


def summary_points(core: CoordinatorCore, events: Iterable[Event]) -> Iterable[TrackedPoint]:
    """One point per ended phase of the tree, numbered from 1 in the order of their ends: the node, where it
    comes from, its score, the best score so far, and GPU hours so far."""
    best, hours, step = None, 0.0, 0
    for event in events:
        if not isinstance(event, PhaseFinished | PhaseFailed) or event.node < 0:
            continue
        run = core.runs[event.node]
        if run.spec is None or not run.ended_with(event):
            continue
        outcome = event.result if isinstance(event, PhaseFinished) else event.failure
        step, hours = step + 1, hours + outcome.gpu_hours
        values: dict[str, float] = {
            "node": event.node,
            "depth": _depth(core, run),
            "first_global_step": run.base_step,
            "steps_done": outcome.steps_done,
            "gpu_hours": hours,
            "failed": float(not isinstance(outcome, PhaseResult)),
        }
        if run.spec.parent is not None:
            values["parent"] = run.spec.parent
        if run.spec.resume_from is not None:
            values |= {"resume_node": run.spec.resume_from.node, "resume_step": run.spec.resume_from.step}
        if outcome.best_score is not None:
            values["score"] = outcome.best_score
            best = outcome.best_score if best is None else max(best, outcome.best_score)
        if best is not None:
            values["best_score"] = best
        yield TrackedPoint(step=step, values={f"search/{key}": value for key, value in values.items()})


def _depth(core: CoordinatorCore, run: PhaseRun) -> int:
    depth = 0
    while run.spec is not None and run.spec.resume_from is not None:
        depth, run = depth + 1, core.runs[run.spec.resume_from.node]
    return depth


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """VeRL's dotted keys as nested blocks, as VeRL's own runs show them in a tracker."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *blocks, last = key.split(".")
        inner = nested
        for block in blocks:
            inner = inner.setdefault(block, {})
        inner[last] = value
    return nested
