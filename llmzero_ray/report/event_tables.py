"""Early stops, failures and decisions as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from llmzero_ray.coordinator.decision_text import DecisionRow
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.records import PhaseFailure
from llmzero_ray.records import events as ev
from llmzero_ray.report import formatting as fmt
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.stopping.request import saving_text
from llmzero_ray.utils.text import collapse_whitespace

_CUT = 300
"""Number of characters at which a runner's reason was cut off, in the middle of a word."""


def stop_table(stopped: Sequence[PhaseRun]) -> str:
    """Early-stopped phases with step, reason and savings of the stop. Empty without any."""
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
    """All verdicts with step, reason and savings of a stop. Empty without any."""
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
    """Failed runs with class, cause and follow-up runs; empty without any."""
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
    """Losses of hardware and interruptions, a sentence each."""
    for event in facts.events:
        if isinstance(event, ev.RunnerLost):
            name = "the default recipe" if event.node == ev.REFERENCE else f"node {event.node}"
            what = "while idle" if event.node is None else f"while {name} trained"
            yield f"Slot {event.slot} lost its runner {what}: {_whole_sentences(event.reason)}."
        elif isinstance(event, ev.SearchPaused | ev.SearchAborted):
            yield f"The search was interrupted: {collapse_whitespace(event.reason).removesuffix('.')}."
        elif isinstance(event, ev.CoordinatorStarted) and event.epoch > 1:
            yield f"Coordinator {event.epoch} took over."


def _whole_sentences(reason: str) -> str:
    """A reason on one line, without a last sentence that was cut off in the middle and without Ray's list of
    what may have killed a worker."""
    text = collapse_whitespace(reason).partition(" There are some potential root causes")[0]
    whole = (
        text if len(text) < _CUT or text.endswith(" ...") else text[: text.rfind(". ") + 1] or f"{text} ..."
    )
    return whole.rstrip().removesuffix(".")


def extensions(facts: SearchFacts) -> str:
    """`: budget.runs 8 → 12`, the settings with which a search was extended; empty without any."""
    changed = [
        f"{key} {event.before.get(key)} → {value}"
        for event in facts.events
        if isinstance(event, ev.SearchExtended)
        for key, value in event.changes.items()
    ]
    return f": {', '.join(changed)}" if changed else ""


def counted_actions(rows: Sequence[DecisionRow]) -> str:
    """`4 evolve, 2 debug, 1 scratch`."""
    return ", ".join(f"{n} {action}" for action, n in Counter(row.action for row in rows).items())


def decision_table(rows: Sequence[DecisionRow]) -> str:
    """Every decision with its reason, as replayed."""
    return fmt.table(("node", "action", "on", "why", "outcome"), map(_decision_row, rows), right=(0, 2))


def _decision_row(row: DecisionRow) -> tuple[str, ...]:
    node, on = ("" if number is None else str(number) for number in (row.node, row.on))
    return node, row.action, on, row.reason, row.outcome
