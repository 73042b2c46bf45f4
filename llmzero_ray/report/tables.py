"""A search as tables: nodes, metrics, validated items, changes, test scores.

Rows are plain dicts with equal keys, in the order of the nodes. `table` makes an Arrow table of them, and its
`to_pandas()` a data frame. Steps are global if their name says so, otherwise they count inside a phase.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.report.comparison import SPLITS, policies
from llmzero_ray.report.facts import SearchFacts, stop_reason
from llmzero_ray.storage.metric_files import load_points

if TYPE_CHECKING:
    import pyarrow as pa

NODES: Mapping[str, str] = {
    "node": "int64",
    "parent": "int64",
    "kind": "string",
    "status": "string",
    "resume_node": "int64",
    "resume_step": "int64",
    "base_step": "int64",
    "n_steps": "int64",
    "steps_done": "int64",
    "score": "float64",
    "best_step": "int64",
    "global_step": "int64",
    "start_score": "float64",
    "gpu_hours": "float64",
    "ended_by": "string",
    "in_strategy": "bool",
    "diagnosis": "string",
    "rationale": "string",
    "hyperparameters": "string",
}
"""Column of `node_rows` -> Arrow type. `hyperparameters` is a JSON object."""
CHANGES: Mapping[str, str] = {
    "node": "int64",
    "key": "string",
    "old": "string",
    "new": "string",
    "reason": "string",
}
ITEMS: Mapping[str, str] = {
    "node": "int64",
    "step": "int64",
    "index": "int64",
    "data_source": "string",
    "score": "float64",
    "acc": "float64",
    "response": "string",
}
SCORES: Mapping[str, str] = {
    "policy": "string",
    "name": "string",
    "split": "string",
    "mean": "float64",
    "standard_error": "float64",
    "n": "int64",
    "steps": "int64",
}


def table(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> pa.Table:
    """The rows as an Arrow table with these columns (name -> type). Missing values are null."""
    import pyarrow as pa

    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)


def node_rows(facts: SearchFacts) -> list[dict[str, Any]]:
    """One row per node of the tree, with the keys of `NODES`."""
    return [node_row(facts, run) for run in facts.runs.values()]


def node_row(facts: SearchFacts, run: PhaseRun) -> dict[str, Any]:
    """Row of one node, with the keys of `NODES`. `score` is the best validation score of its own steps."""
    spec, outcome, proposal = run.shown.spec, run.outcome, run.shown.proposal
    source = None if spec is None else spec.resume_from
    best_step = None if outcome is None else outcome.best_step
    return {
        "node": run.node,
        "parent": facts.nodes[run.node].parent,
        "kind": run.kind,
        "status": run.status,
        "resume_node": None if source is None else source.node,
        "resume_step": None if source is None else source.step,
        "base_step": None if spec is None else spec.base_step,
        "n_steps": None if spec is None else spec.n_steps,
        "steps_done": None if outcome is None else outcome.steps_done,
        "score": run.score,
        "best_step": best_step,
        "global_step": None if best_step is None else run.base_step + best_step,
        "start_score": None if outcome is None else outcome.start_score,
        "gpu_hours": None if outcome is None else outcome.gpu_hours,
        "ended_by": stop_reason(run) or None,
        "in_strategy": run.node in facts.path_nodes,
        "diagnosis": None if proposal is None else proposal.diagnosis.summary,
        "rationale": None if proposal is None else proposal.rationale,
        "hyperparameters": None if spec is None else json.dumps(dict(spec.hyperparameters)),
    }


def change_rows(facts: SearchFacts, nodes: Iterable[int]) -> list[dict[str, Any]]:
    """Changes of these nodes from the phase they continue, one row per hyper-parameter. Values are JSON."""
    return [
        {
            "node": node,
            "key": change.key,
            "old": json.dumps(change.old),
            "new": json.dumps(change.new),
            "reason": change.reason,
        }
        for node in nodes
        for change in facts.changes(facts.core.runs[node].shown)
    ]


def metric_rows(facts: SearchFacts, node: int) -> list[dict[str, Any]]:
    """One row per step of a node, with VeRL's metrics that the step has under their own names."""
    base = facts.core.runs[node].base_step
    return [
        {
            "node": node,
            "step": point.step,
            "global_step": base + point.step,
            "wall_s": point.wall_s,
            "val_score": point.val_score,
            **point.metrics,
        }
        for point in load_points(facts.storage, node)
    ]


def score_rows(facts: SearchFacts) -> list[dict[str, Any]]:
    """Measured scores of base model, default recipe and best strategy on each split."""
    rows = []
    for policy in policies(facts):
        for split in SPLITS:
            score = policy.score(split)
            if score is not None:
                rows.append(
                    {
                        "policy": policy.what,
                        "name": policy.name,
                        "split": split,
                        "mean": score.mean,
                        "standard_error": score.standard_error,
                        "n": score.n,
                        "steps": policy.steps,
                    }
                )
    return rows
