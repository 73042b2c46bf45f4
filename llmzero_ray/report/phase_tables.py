"""Tables and phrases about phases: the best strategy phase by phase, and every other node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmzero_ray.agents.knowledge import MetricNote, metric_label, metric_notes
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.hyperparameters import canonical, short
from llmzero_ray.records import Diagnosis, PhaseFailure
from llmzero_ray.records.metrics import ENTROPY, GRAD_NORM, KL, LENGTH, LENGTH_AT_MAX, REWARDS, series
from llmzero_ray.report import formatting as fmt
from llmzero_ray.report.best_strategy import score_at
from llmzero_ray.report.facts import PathPhase, SearchFacts, stop_reason
from llmzero_ray.report.tree_text import started_from
from llmzero_ray.utils import text
from llmzero_ray.utils.text import number

SHOWN = (REWARDS[0], KL, ENTROPY, LENGTH, LENGTH_AT_MAX, GRAD_NORM)


def path_table(facts: SearchFacts) -> str:
    """Short table of the best strategy, with a row for each phase."""
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
    """Hyper-parameters in which a run differs from the one it continues, with the reasons."""
    rows = [
        (f"`{short(c.key)}`", fmt.value(c.key, c.old), fmt.value(c.key, c.new), c.reason)
        for c in facts.changes(run)
    ]
    return fmt.table(("hyper-parameter", "before", "now", "why"), rows)


def root_values(facts: SearchFacts) -> str:
    """Values that search.yaml sets for the root, by short name."""
    overrides = [(short(key), key) for key in map(canonical, facts.config.root.overrides)]
    named = [f"{name} {fmt.value(key, facts.default.get(key))}" for name, key in sorted(overrides)]
    return ", ".join(named)


def other_readings(facts: SearchFacts, phase: PathPhase) -> Iterator[tuple[PhaseRun, Diagnosis]]:
    """Diagnoses of this phase in proposals of other runs.

    The diagnosis behind the next phase of the strategy is shown with that phase.
    """
    readings = [(run, run.proposal.diagnosis) for run in facts.diagnosed_by(phase.node) if run.proposal]
    known = {seen.summary for run, seen in readings if run.node in facts.path_nodes}
    for run, seen in readings:
        if seen.summary not in known:
            known.add(seen.summary)
            yield run, seen


def length(run: PhaseRun) -> str:
    """`all its 20 steps`, `12 of 20 steps (ended by ...)`."""
    done = run.outcome.steps_done if run.outcome else 0
    planned = run.spec.n_steps if run.spec else 0
    if stop_reason(run) == "n_steps":
        return f"all its {text.plural(planned, 'step')}"
    ended = "failed" if isinstance(run.outcome, PhaseFailure) else "ended by"
    return f"{done} of {text.plural(planned, 'step')} ({ended}: {text.collapse_whitespace(stop_reason(run))})"


def validations(facts: SearchFacts, node: int) -> str:
    """`0.4141 before the first step, 0.7812@10`: scores at global steps; `none` without any."""
    curves = facts.curves(node)
    taken = facts.start_from(facts.runs[node]) if node in facts.runs else None
    whose = "" if taken is None else f" (as node {taken.node} had it, not measured again)"
    start = [] if curves.start_score is None else [f"{curves.start_score:.4f} before the first step{whose}"]
    scores = [
        f"{score:.4f}@{curves.base_step + step}"
        for step, score in zip(curves.val_steps, curves.val_scores, strict=True)
    ]
    return ", ".join([*start, *scores]) or "none"


def metric_table(facts: SearchFacts, phase: PathPhase) -> str:
    """First and last level of the metrics that diagnoses rest on, up to the cut."""
    curves = facts.curves(phase.node)
    rows = []
    for name in SHOWN:
        found = series(curves, name).until(phase.cut)
        if len(found):
            label = f"{metric_label(name)} (`{name}`)"
            rows.append((label, number(found.first), number(found.last)))
    return fmt.table(("metric", "first steps", "last steps kept"), rows, right=(1, 2)) if rows else ""


def has_new_evidence(facts: SearchFacts, run: PhaseRun) -> bool:
    """Whether the evidence of this run's proposal is not yet in the report."""
    if run.proposal is None:
        return False
    above = [*(phase.run for phase in facts.path), *(r for r in facts.runs.values() if r.node < run.node)]
    return all(
        r.proposal is None or r.proposal.diagnosis.evidence != run.proposal.diagnosis.evidence for r in above
    )


def shown_notes(facts: SearchFacts) -> list[MetricNote]:
    """Notes on the report's metrics, as far as they were logged."""
    logged = {name for node in facts.runs for name in facts.curves(node).metrics}
    return [metric_notes()[name] for name in SHOWN if name in logged and name in metric_notes()]


def meaning_table(notes: Sequence[MetricNote]) -> str:
    """A row for each metric."""
    rows = [(f"{note.label} (`{note.name}`)", note.description, note.healthy) for note in notes]
    return fmt.table(("metric", "what it measures", "when training goes well"), rows)


SAMPLING = ("temperature", "lr", "kl_loss_coef", "n", "max_response_length")
"""Hyper-parameters of the card's table, by their short names."""


def strategy_table(facts: SearchFacts) -> str:
    """The best strategy on the card: a row for each phase, with what it samples and learns with."""
    header = ("phase", "global steps", *SAMPLING, "validation at its end")
    rows = []
    for phase in facts.path:
        used = phase.run.spec.hyperparameters if phase.run.spec else {}
        shown = [fmt.value(canonical(name), used.get(canonical(name))) for name in SAMPLING]
        steps = f"{phase.begin}–{phase.end}"
        rows.append((str(phase.number), steps, *shown, fmt.accuracy(score_at(facts, phase))))
    return fmt.table(header, rows, right=(0,))
