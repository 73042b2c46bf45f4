"""The tree of weights as text: below each node stand those that started from one of its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.report.facts import SearchFacts


def draw(facts: SearchFacts) -> Iterator[str]:
    """The tree as lines of text, in the order of creation."""
    below: dict[int | None, list[int]] = {}
    for run in facts.runs.values():
        source = facts.source(run)
        below.setdefault(None if source is None else source.node, []).append(run.node)
    yield "base model"
    todo: list[tuple[int | None, str]] = [(None, "")]
    while todo:
        node, lead = todo.pop()
        if node is not None:
            yield f"{lead}{_line(facts, node)}"
        rest = lead.replace("├─ ", "│  ").replace("└─ ", "   ")
        children = below.get(node, [])
        for child in reversed(children):
            todo.append((child, f"{rest}{'└─ ' if child == children[-1] else '├─ '}"))


def _line(facts: SearchFacts, node: int) -> str:
    run = facts.core.runs[node]
    mark = " *" if node in facts.path_nodes else ""
    status = run.status.replace("_", " ") + (", pruned" if facts.nodes[node].pruned else "")
    return f"{node} {run.kind}{mark}  {best_at(run)}  {status}, {started_from(run)}"


def best_at(run: PhaseRun) -> str:
    """`0.4512@70` with the global step, or `no score`."""
    if run.score is None or run.outcome is None:
        return "no score"
    step = run.outcome.best_step
    return f"{run.score:.4f}" + ("" if step is None else f"@{run.base_step + step}")


def started_from(run: PhaseRun) -> str:
    """`from 2@30`, `from the base model`, or that it is not planned yet."""
    if run.spec is None:
        return "not planned yet"
    source = run.spec.resume_from
    return "from the base model" if source is None else f"from {source.node}@{source.step}"
