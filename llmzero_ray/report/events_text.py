"""Early stops, failures and decisions in words.

Not here: taking decisions again (coordinator/replay.py), which this only tells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from llmzero_ray import events as ev
from llmzero_ray.coordinator import check_decisions
from llmzero_ray.coordinator.state import Run
from llmzero_ray.explain import DecisionRow, decision_row
from llmzero_ray.records import PhaseFailure
from llmzero_ray.report import words
from llmzero_ray.report.facts import SearchFacts


def early_stops_section(facts: SearchFacts) -> str:
    """Who was stopped, when, why; and how often the stopper looked."""
    judged = [run for run in facts.runs.values() if run.verdicts]
    stopped = [run for run in facts.runs.values() if run.status == "early_stopped"]
    n_verdicts = sum(len(run.verdicts) for run in judged)
    looked = (
        f"The stopper judged {words.plural(len(judged), 'run')} in {words.plural(n_verdicts, 'verdict')} and "
        f"ended {len(stopped)}."
        if judged
        else "The stopper posted no verdict."
    )
    rows = [_stop_row(run) for run in stopped]
    header = ("node", "at step", "rule", "reason", "best validation before")
    return words.section("Early stops", looked, words.table(header, rows, right=(0, 1)) if rows else "")


def _stop_row(run: Run) -> tuple[str, ...]:
    verdict = next((v for v in run.verdicts if v.decision.stop), None)
    done = (
        "" if run.outcome is None else f"{run.outcome.steps_done} of {run.spec.n_steps if run.spec else '?'}"
    )
    if verdict is None:
        return (str(run.node), done, "", run.stop_reason or "", words.accuracy(run.score))
    return (
        str(run.node),
        f"{verdict.step} (ended at {done})",
        verdict.decision.rule,
        verdict.decision.reason,
        words.accuracy(run.score),
    )


def failures_section(facts: SearchFacts) -> str:
    """Failed runs with class and cause, and what became of them; losses of hardware."""
    failed = [run for run in facts.core.runs.values() if isinstance(run.outcome, PhaseFailure)]
    rows = [_failure_row(facts, run) for run in failed]
    header = ("node", "class", "cause", "steps done", "what followed")
    told = words.table(header, rows, right=(0, 3)) if rows else "No run failed."
    return words.section("Failures", told, words.bullets(_losses(facts)))


def _failure_row(facts: SearchFacts, run: Run) -> tuple[str, ...]:
    failure = run.outcome
    assert isinstance(failure, PhaseFailure)
    name = "default recipe" if run.node == ev.REFERENCE else str(run.node)
    cause, done = failure.cause, str(failure.steps_done)
    return (name, failure.failure_class, cause, done, _followed(facts, run))


def _followed(facts: SearchFacts, run: Run) -> str:
    if run.node == ev.REFERENCE:
        return "no comparison with it"
    fixes = [other for other in facts.runs.values() if other.kind == "debug" and other.on == run.node]
    told = [f"debug run {fix.node}: {fix.status.replace('_', ' ')}" for fix in fixes]
    if run.node in facts.nodes and facts.nodes[run.node].pruned:
        told.append("this node was pruned")
    return "; ".join(told) or "no debug run"


def _losses(facts: SearchFacts) -> Iterator[str]:
    for event in facts.events:
        if isinstance(event, ev.RunnerLost):
            what = "while idle" if event.node is None else f"while node {event.node} trained"
            yield f"Slot {event.slot} lost its runner {what}: {event.reason}."
        elif isinstance(event, ev.SearchPaused | ev.SearchAborted):
            yield f"The search was interrupted: {event.reason}."
        elif isinstance(event, ev.CoordinatorStarted) and event.epoch > 1:
            yield f"Coordinator {event.epoch} took over."


def decisions_section(facts: SearchFacts) -> str:
    """Every decision with its reason, as replayed."""
    rows = [decision_row(check, facts.nodes) for check in check_decisions(facts.events, facts.paths.root)]
    if not rows:
        return ""
    counted = Counter(row.action for row in rows)
    differing = sum(bool(row.differences) for row in rows)
    replayed = (
        "Replayed through the rules, all of them come out the same."
        if not differing
        else f"Replayed through the rules of this version, {differing} come out differently."
    )
    summary = (
        f"{words.plural(len(rows), 'decision')}: "
        f"{', '.join(f'{n} {action}' for action, n in counted.items())}. {replayed} Numbers are upper "
        "confidence bounds: a node's new child against its best open child."
    )
    refused = sum(isinstance(event, ev.ProposalRefused) for event in facts.events)
    failed = sum(isinstance(event, ev.ProposalFailed) for event in facts.events)
    agents = []
    if refused:
        agents.append(f"{words.plural(refused, 'proposal')} broke a rule and went back to the agent.")
    if failed:
        agents.append(f"{words.plural(failed, 'question')} to an agent stayed without an answer.")
    header = ("node", "action", "on", "why", "outcome")
    body = words.table(header, map(_decision_row, rows), right=(0, 2))
    return words.section("Decisions", summary, " ".join(agents), body)


def _decision_row(row: DecisionRow) -> tuple[str, ...]:
    node, on = ("" if number is None else str(number) for number in (row.node, row.on))
    return node, row.action, on, row.reason, row.outcome
