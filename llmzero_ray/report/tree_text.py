"""The search tree as text: one drawing, one table."""

from __future__ import annotations

from collections.abc import Iterator

from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.records import PhaseFailure
from llmzero_ray.report import formatting as fmt
from llmzero_ray.report.facts import SearchFacts, stop_reason


def draw(facts: SearchFacts) -> Iterator[str]:
    """The tree as lines of text, children below their parent in the order of creation."""
    roots = [node.id for node in facts.nodes.values() if node.parent is None]
    todo = [(root, "", "") for root in reversed(roots)]
    while todo:
        node, lead, below = todo.pop()
        yield f"{lead}{_line(facts, node)}"
        children = facts.nodes[node].children
        for child in reversed(children):
            is_last = child == children[-1]
            branch, rest = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
            todo.append((child, below + branch, below + rest))


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


def table_of(facts: SearchFacts) -> str:
    """A row for each node."""
    header = (
        "node",
        "parent",
        "kind",
        "status",
        "started from",
        "steps",
        "best validation",
        "ended by",
        "what was seen in the node it was proposed from",
    )
    rows = [_row(facts, run) for run in facts.runs.values()]
    return fmt.table(header, rows, right=(0, 1, 5))


def _row(facts: SearchFacts, run: PhaseRun) -> tuple[str, ...]:
    node = facts.nodes[run.node]
    parent = fmt.NONE if node.parent is None else str(node.parent)
    if node.parent != node.created_on:
        parent += f" (created on {node.created_on})"
    return (
        f"**{run.node}**" if run.node in facts.path_nodes else str(run.node),
        parent,
        run.kind,
        run.status.replace("_", " ") + (", pruned" if node.pruned else ""),
        started_from(run).removeprefix("from "),
        _steps(run),
        best_at(run),
        _ended_by(run),
        "" if run.proposal is None else f"{run.proposal.diagnosis.state}: {run.proposal.diagnosis.summary}",
    )


def _steps(run: PhaseRun) -> str:
    if run.spec is None:
        return fmt.NONE
    done = fmt.NONE if run.outcome is None else str(run.outcome.steps_done)
    return f"{done} of {run.spec.n_steps}"


def _ended_by(run: PhaseRun) -> str:
    if isinstance(run.outcome, PhaseFailure):
        return f"{run.outcome.failure_class}: {run.outcome.cause}"
    return "all its steps" if stop_reason(run) == "n_steps" else stop_reason(run)
