"""The phases in words: the best strategy phase by phase, then every other node.

Not here: the recipe for machines (strategy.py), the pictures (plot_*.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from llmzero_ray.agents.dynamics import ENTROPY, GRAD_NORM, KL, LENGTH, LENGTH_AT_MAX, REWARD, series
from llmzero_ray.agents.knowledge import metric_label, metric_notes
from llmzero_ray.agents.reading import number
from llmzero_ray.coordinator.state import Run
from llmzero_ray.hyperparameters import canonical, short
from llmzero_ray.records import PhaseFailure
from llmzero_ray.report import words
from llmzero_ray.report.facts import PathPhase, SearchFacts, stop_reason
from llmzero_ray.report.recipe import score_at
from llmzero_ray.report.tree_text import best_at, started_from

SHOWN = (REWARD[0], KL, ENTROPY, LENGTH, LENGTH_AT_MAX, GRAD_NORM)


def strategy_section(facts: SearchFacts, pictures: str) -> str:
    """The best strategy: in short, then phase by phase."""
    if not facts.path:
        return ""
    total = facts.path[-1].end
    opening = (
        f"{words.plural(len(facts.path), 'phase')}, {total} training steps along the path. The recipe for "
        "machines is [strategy.yaml](strategy.yaml), with every hyper-parameter; the adapter it leads to is "
        "in [best/](best/). Below, validations name global steps; what agents saw counts steps inside the "
        "phase they looked at."
    )
    phases = [_phase(facts, phase) for phase in facts.path]
    return words.section("The best strategy", opening, _short(facts), pictures, *phases)


def others_section(facts: SearchFacts) -> str:
    """What was tried besides."""
    others = [run for run in facts.runs.values() if run.node not in facts.path_nodes]
    return words.section("The other nodes", *(_other(facts, run) for run in others))


# --- the best strategy --------------------------------------------------------------------------------------


def _short(facts: SearchFacts) -> str:
    rows = [
        (
            str(phase.number),
            str(phase.node),
            started_from(phase.run).removeprefix("from "),
            f"{phase.begin}–{phase.end}",
            f"{words.accuracy(facts.start_score(phase.run))} → {words.accuracy(score_at(facts, phase))}",
            ", ".join(words.change(change) for change in facts.changes(phase.run)) or _unchanged(phase.run),
        )
        for phase in facts.path
    ]
    header = ("phase", "node", "started from", "global steps", "validation", "changed")
    return words.table(header, rows, right=(0, 1))


def _unchanged(run: Run) -> str:
    return "the default recipe" if run.spec is None or run.spec.resume_from is None else "nothing"


def _phase(facts: SearchFacts, phase: PathPhase) -> str:
    run = phase.run
    title = f"Phase {phase.number}: node {phase.node}, global steps {phase.begin} to {phase.end}"
    return words.section(title, *_why(facts, run), *_what_happened(facts, phase), level=3)


def _why(facts: SearchFacts, run: Run) -> Iterator[str]:
    """What led to this run: diagnosis, evidence, changes with reasons."""
    yield _diagnosis(run)
    changes = facts.changes(run)
    if run.kind == "root" and not changes:
        yield f"It is the default recipe{_own_values(facts)}."
    elif not changes:
        yield "The configuration stayed as it was."
    else:
        rows = [
            (f"`{short(c.key)}`", words.value(c.key, c.old), words.value(c.key, c.new), c.reason)
            for c in changes
        ]
        yield words.table(("hyper-parameter", "before", "now", "why"), rows)
    if run.proposal is not None and run.proposal.rationale:
        yield f"Plan: {words.one_line(run.proposal.rationale)}"
    if run.note:
        yield f"On the way from proposal to phase: {words.one_line(run.note)}."


def _own_values(facts: SearchFacts) -> str:
    """What search.yaml sets for the root, under the short names used everywhere."""
    told = [(short(key), key) for key in map(canonical, facts.config.root.overrides)]
    named = [f"{name} {words.value(key, facts.default.get(key))}" for name, key in sorted(told)]
    return f": {', '.join(named)}" if named else ""


def _diagnosis(run: Run, *, evidence: bool = True) -> str:
    if run.proposal is None:
        return "" if run.kind == "root" else "No agent proposed this phase."
    seen = run.proposal.diagnosis
    where = f"in node {run.on}" if run.on is not None else "before"
    lead = f"Seen {where} (*{seen.state}*): {words.one_line(seen.summary)}"
    return lead + ("\n\n" + words.bullets(seen.evidence) if evidence and seen.evidence else "")


def _what_happened(facts: SearchFacts, phase: PathPhase) -> Iterator[str]:
    run, outcome = phase.run, phase.run.outcome
    assert outcome is not None
    kept = (
        "its best step"
        if phase.number == len(facts.path)
        else f"step {phase.cut}, where phase {phase.number + 1} starts"
    )
    yield f"It trained {_length(run)} and is kept up to {kept}. Validation: {_validations(facts, run.node)}."
    yield _dynamics(facts, phase)
    yield words.bullets(_other_readings(facts, phase))


def _other_readings(facts: SearchFacts, phase: PathPhase) -> Iterator[str]:
    """What agents said of this phase when they proposed something else from it.

    What the next phase was proposed on is told there.
    """
    readings = [(run, run.proposal.diagnosis) for run in facts.diagnosed_by(phase.node) if run.proposal]
    told = {seen.summary for run, seen in readings if run.node in facts.path_nodes}
    for run, seen in readings:
        if seen.summary not in told:
            told.add(seen.summary)
            summary = words.one_line(seen.summary)
            yield f"When node {run.node} was proposed from it (*{seen.state}*): {summary}"


def _length(run: Run) -> str:
    """`all its 20 steps`, `12 of 20 steps (ended by ...)`."""
    done = run.outcome.steps_done if run.outcome else 0
    planned = run.spec.n_steps if run.spec else 0
    if stop_reason(run) == "n_steps":
        return f"all its {words.plural(planned, 'step')}"
    ended = "failed" if isinstance(run.outcome, PhaseFailure) else "ended by"
    return f"{done} of {words.plural(planned, 'step')} ({ended}: {words.one_line(stop_reason(run))})"


def _validations(facts: SearchFacts, node: int) -> str:
    curves = facts.curves(node)
    start = [] if curves.start_score is None else [f"{curves.start_score:.4f} before the first step"]
    scores = [
        f"{score:.4f}@{curves.base_step + step}"
        for step, score in zip(curves.val_steps, curves.val_scores, strict=True)
    ]
    return ", ".join([*start, *scores]) or "none"


def _dynamics(facts: SearchFacts, phase: PathPhase) -> str:
    """First and last level of the metrics that diagnoses rest on, up to the cut."""
    curves = facts.curves(phase.node)
    rows = []
    for name in SHOWN:
        found = series(curves, name).until(phase.cut)
        if len(found):
            label = f"{metric_label(name)} (`{name}`)"
            rows.append((label, number(found.first), number(found.last)))
    return words.table(("metric", "first steps", "last steps kept"), rows, right=(1, 2)) if rows else ""


# --- the others ---------------------------------------------------------------------------------------------


def _other(facts: SearchFacts, run: Run) -> str:
    changes = ", ".join(words.change(change) for change in facts.changes(run))
    source = facts.source(run)
    against = "the default recipe" if source is None else f"node {source.node}"
    told = [
        _diagnosis(run, evidence=_is_first_told(facts, run)),
        f"Changed against {against}: {changes}." if changes else "",
        _other_outcome(facts, run),
    ]
    title = (
        f"Node {run.node} ({run.kind}, {started_from(run)}): {run.status.replace('_', ' ')}, {best_at(run)}"
    )
    return words.section(title, *told, level=3)


def _is_first_told(facts: SearchFacts, run: Run) -> bool:
    """Whether the evidence of this run's proposal is not in the report above already."""
    if run.proposal is None:
        return False
    above = [*(phase.run for phase in facts.path), *(r for r in facts.runs.values() if r.node < run.node)]
    return all(
        r.proposal is None or r.proposal.diagnosis.evidence != run.proposal.diagnosis.evidence for r in above
    )


def _other_outcome(facts: SearchFacts, run: Run) -> str:
    if run.status == "cancelled":
        return "It was cancelled before it trained."
    if run.outcome is None:
        return (
            f"It has no outcome yet ({words.plural(len(facts.curves(run.node).steps), 'step')} on the disk)."
        )
    return f"It trained {_length(run)}. Validation: {_validations(facts, run.node)}."


def metrics_section(facts: SearchFacts) -> str:
    """What the metrics of the report mean, those of them that were logged."""
    logged = {name for node in facts.runs for name in facts.curves(node).metrics}
    notes = [metric_notes()[name] for name in SHOWN if name in logged and name in metric_notes()]
    rows = [(f"{note.label} (`{note.name}`)", note.description, note.healthy) for note in notes]
    return words.section(
        "What the metrics mean",
        words.table(("metric", "what it measures", "when training goes well"), rows) if rows else "",
    )
