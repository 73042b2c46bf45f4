"""Tables and phrases about phases: tree, best strategy, early stops, failures, decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from llmzero_ray.agents.knowledge import MetricNote, metric_notes
from llmzero_ray.config.changes import changed_text
from llmzero_ray.coordinator.replay import DecisionRow
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.hyperparameters import canonical, format_value, short
from llmzero_ray.records import PhaseFailure
from llmzero_ray.records import events as ev
from llmzero_ray.records.metrics import ENTROPY, GRAD_NORM, KL, LENGTH, LENGTH_AT_MAX, REWARDS
from llmzero_ray.report import formatting as fmt
from llmzero_ray.report.best_strategy import score_at
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.stopping.request import saving_text
from llmzero_ray.utils.text import collapse_whitespace, whole_sentences

SHOWN = (REWARDS[0], KL, ENTROPY, LENGTH, LENGTH_AT_MAX, GRAD_NORM)


def path_table(facts: SearchFacts) -> str:
    """Short table of the best strategy, with one row per phase."""
    rows = [
        (
            str(phase.number),
            str(phase.node),
            started_from(phase.run).removeprefix("from "),
            f"{phase.begin}–{phase.end}",
            f"{fmt.accuracy(facts.start_score(phase.run))} → {fmt.accuracy(score_at(facts, phase))}",
            ", ".join(fmt.change(change) for change in facts.changes(phase.run)) or _unchanged(phase.run),
        )
        for phase in facts.path
    ]
    header = ("phase", "node", "started from", "global steps", "validation", "changed")
    return fmt.table(header, rows, right=(0, 1))


def _unchanged(run: PhaseRun) -> str:
    return "the default recipe" if run.spec is None or run.spec.resume_from is None else "nothing"


def change_table(facts: SearchFacts, run: PhaseRun) -> str:
    """Table of the hyper-parameters in which a run differs from the one it continues, with reasons."""
    rows = [
        (f"`{short(c.key)}`", format_value(c.key, c.old), format_value(c.key, c.new), c.reason)
        for c in facts.changes(run)
    ]
    return fmt.table(("hyper-parameter", "before", "now", "why"), rows)


def shown_notes(facts: SearchFacts) -> list[MetricNote]:
    """Notes on those of the report's metrics that were logged."""
    logged = {name for node in facts.runs for name in facts.curves(node).metrics}
    return [metric_notes()[name] for name in SHOWN if name in logged and name in metric_notes()]


def meaning_table(notes: Sequence[MetricNote]) -> str:
    """Table of metrics' meanings, one row per metric."""
    rows = [(f"{note.label} (`{note.name}`)", note.description, note.healthy) for note in notes]
    return fmt.table(("metric", "what it measures", "when training goes well"), rows)


SAMPLING = ("temperature", "lr", "kl_loss_coef", "n", "max_response_length")
"""Short names of the hyper-parameters in the card's table."""


def strategy_table(facts: SearchFacts) -> str:
    """Table of the best strategy for the card: one row per phase, with its `SAMPLING` hyper-parameters."""
    header = ("phase", "global steps", *SAMPLING, "validation at its end")
    rows = []
    for phase in facts.path:
        used = phase.run.spec.hyperparameters if phase.run.spec else {}
        shown = [format_value(canonical(name), used.get(canonical(name))) for name in SAMPLING]
        steps = f"{phase.begin}–{phase.end}"
        rows.append((str(phase.number), steps, *shown, fmt.accuracy(score_at(facts, phase))))
    return fmt.table(header, rows, right=(0,))


def stop_table(stopped: Sequence[PhaseRun]) -> str:
    """Table of early-stopped phases, with step, reason and savings of the stop. Empty if there are none."""
    header = ("node", "at step", "rule", "reason", "best validation before", "saved")
    return fmt.table(header, map(_stop_row, stopped), right=(0, 1)) if stopped else ""


def _stop_row(run: PhaseRun) -> tuple[str, ...]:
    verdict = next((v for v in run.verdicts if v.decision.stop), None)
    done = (
        "" if run.outcome is None else f"{run.outcome.steps_done} of {run.spec.n_steps if run.spec else '?'}"
    )
    if verdict is None:
        return (str(run.node), done, "", run.stop_reason or "", fmt.accuracy(run.score), "")
    return (
        str(run.node),
        f"{verdict.step} (ended at {done})",
        verdict.decision.rule,
        verdict.decision.reason,
        fmt.accuracy(run.score),
        "" if verdict.saves is None else saving_text(verdict.saves),
    )


def verdict_table(judged: Sequence[PhaseRun]) -> str:
    """Table of all verdicts, with step, reason and savings of a stop. Empty if there are none."""
    header = ("node", "at step", "verdict", "rule", "reason", "a stop saves")
    rows = [
        (
            str(run.node),
            str(verdict.step),
            "STOP" if verdict.decision.stop else "CONTINUE",
            verdict.decision.rule,
            verdict.decision.reason,
            "" if verdict.saves is None else saving_text(verdict.saves),
        )
        for run in judged
        for verdict in run.verdicts
    ]
    return fmt.table(header, rows, right=(0, 1)) if rows else ""


def failure_table(facts: SearchFacts) -> str:
    """Table of failed runs, with class, cause and follow-up runs. Empty if there are none."""
    failed = [run for run in facts.core.runs.values() if isinstance(run.outcome, PhaseFailure)]
    rows = [_failure_row(facts, run) for run in failed]
    header = ("node", "class", "cause", "steps done", "what followed")
    return fmt.table(header, rows, right=(0, 3)) if rows else ""


def _failure_row(facts: SearchFacts, run: PhaseRun) -> tuple[str, ...]:
    failure = run.outcome
    assert isinstance(failure, PhaseFailure)
    name = "default recipe" if run.node == ev.REFERENCE else str(run.node)
    cause, done = failure.cause, str(failure.steps_done)
    return (name, failure.failure_class, cause, done, _followed(facts, run))


def _followed(facts: SearchFacts, run: PhaseRun) -> str:
    if run.node == ev.REFERENCE:
        return "no comparison with it"
    fixes = [other for other in facts.runs.values() if other.kind == "debug" and other.on == run.node]
    parts = [f"debug run {fix.node}: {fix.status.replace('_', ' ')}" for fix in fixes]
    if run.node in facts.nodes and facts.nodes[run.node].pruned:
        parts.append("this node was pruned")
    return "; ".join(parts) or "no debug run"


def losses(facts: SearchFacts) -> Iterator[str]:
    """One sentence for each loss of hardware and each interruption."""
    without_phase = "while idle"
    for event in facts.events:
        if isinstance(event, ev.Decided) and event.action == "stop":
            without_phase = "in the final evaluation"  # it scored, or was idle
        elif isinstance(event, ev.SearchExtended):
            without_phase = "while idle"
        elif isinstance(event, ev.RunnerLost):
            name = "the default recipe" if event.node == ev.REFERENCE else f"node {event.node}"
            what = without_phase if event.node is None else f"while {name} trained"
            yield f"Slot {event.slot} lost its runner {what}: {whole_sentences(event.reason)}."
        elif isinstance(event, ev.SearchPaused | ev.SearchAborted):
            yield f"The search was interrupted: {collapse_whitespace(event.reason).removesuffix('.')}."
        elif isinstance(event, ev.CoordinatorStarted) and event.epoch > 1:
            yield f"Coordinator {event.epoch} took over."


def extensions(facts: SearchFacts) -> str:
    """`: budget.runs 8 → 12`: settings that extended the search. Empty if it was not extended."""
    extended = (event for event in facts.events if isinstance(event, ev.SearchExtended))
    changed = ", ".join(filter(None, (changed_text(event.before, event.changes) for event in extended)))
    return f": {changed}" if changed else ""


def counted_actions(rows: Sequence[DecisionRow]) -> str:
    """`4 evolve, 2 debug, 1 scratch`."""
    return ", ".join(f"{n} {action}" for action, n in Counter(row.action for row in rows).items())


def decision_table(rows: Sequence[DecisionRow]) -> str:
    """Table of all decisions with their reasons, as replayed."""
    return fmt.table(("node", "action", "on", "why", "outcome"), map(_decision_row, rows), right=(0, 2))


def _decision_row(row: DecisionRow) -> tuple[str, ...]:
    node, on = ("" if number is None else str(number) for number in (row.node, row.on))
    return node, row.action, on, row.reason, row.outcome


def draw(facts: SearchFacts) -> Iterator[str]:
    """Tree of checkpoints as lines of text: below each node are those that started from one of its
    checkpoints, in the order of creation."""
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
    """`0.4512@70` (best score @ global step), or `no score`."""
    if run.score is None or run.outcome is None:
        return "no score"
    step = run.outcome.best_step
    return f"{run.score:.4f}" + ("" if step is None else f"@{run.base_step + step}")


def started_from(run: PhaseRun) -> str:
    """Start of a run: `from 2@30`, `from the base model`, or that it is not planned yet."""
    if run.spec is None:
        return "not planned yet"
    source = run.spec.resume_from
    return "from the base model" if source is None else f"from {source.node}@{source.step}"
