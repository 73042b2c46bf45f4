"""The phases in words: the best strategy phase by phase, then every other node.

Not here: the recipe for machines (strategy.py), the pictures (plot_*.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from llmzero_ray.agents.dynamics import ENTROPY, GRAD_NORM, KL, LENGTH, LENGTH_AT_MAX, REWARD, series
from llmzero_ray.agents.reading import number
from llmzero_ray.coordinator.state import Run
from llmzero_ray.hyperparameters import short
from llmzero_ray.records import PhaseResult
from llmzero_ray.report import words
from llmzero_ray.report.captions import caption
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
        f"{words.plural(len(facts.path), 'phase')}, {total} training steps along the path. The recipe for machines "
        "is [strategy.yaml](strategy.yaml), with every hyper-parameter; the adapter it leads to is in [best/](best/)."
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
        told = sorted(facts.config.root.overrides.items())
        yield "It is the default recipe" + (
            ": " + ", ".join(f"{name} {words.value(name, of)}" for name, of in told) + "." if told else "."
        )
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


def _diagnosis(run: Run) -> str:
    if run.proposal is None:
        return "" if run.kind == "root" else "No agent proposed this phase."
    seen = run.proposal.diagnosis
    where = f"in node {run.on}" if run.on is not None else "before"
    lead = f"Seen {where} (*{seen.state}*): {words.one_line(seen.summary)}"
    return lead + ("\n\n" + words.bullets(seen.evidence) if seen.evidence else "")


def _what_happened(facts: SearchFacts, phase: PathPhase) -> Iterator[str]:
    run, outcome = phase.run, phase.run.outcome
    assert outcome is not None
    kept = (
        "its best step"
        if phase.number == len(facts.path)
        else f"step {phase.cut}, where phase {phase.number + 1} starts"
    )
    yield (
        f"It trained {outcome.steps_done} steps (ended by {_ending(run)}) and is kept up to {kept}. Validation: "
        f"{_validations(facts, run.node)}."
    )
    yield _dynamics(facts, phase)
    told = [
        f"Node {later.node} was proposed from it on this reading (*{later.proposal.diagnosis.state}*): "
        f"{words.one_line(later.proposal.diagnosis.summary)}"
        for later in facts.diagnosed_by(run.node)
        if later.proposal is not None and later.node not in facts.path_nodes
    ]
    yield words.bullets(told)


def _ending(run: Run) -> str:
    return "having taken all of them" if stop_reason(run) == "n_steps" else words.one_line(stop_reason(run))


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
            label = f"{caption(name)} (`{name}`)"
            rows.append((label, number(found.first), number(found.last)))
    return words.table(("metric", "first steps", "last steps kept"), rows, right=(1, 2)) if rows else ""


# --- the others ---------------------------------------------------------------------------------------------


def _other(facts: SearchFacts, run: Run) -> str:
    changes = ", ".join(words.change(change) for change in facts.changes(run))
    against = "the default recipe" if facts.source(run) is None else "the phase it started from"
    facts_told = [
        _diagnosis(run).replace("\n\n", "\n"),
        f"Changed against {against}: {changes}." if changes else "",
        _other_outcome(facts, run),
    ]
    title = f"Node {run.node} ({run.kind}, {started_from(run)}): {run.status.replace('_', ' ')}, {best_at(run)}"
    return words.section(title, *facts_told, level=3)


def _other_outcome(facts: SearchFacts, run: Run) -> str:
    if run.outcome is None:
        points = facts.curves(run.node).steps
        return f"It has no outcome yet ({words.plural(len(points), 'step')} on the disk)."
    ended = _ending(run)
    validated = _validations(facts, run.node)
    kind = "ended by" if isinstance(run.outcome, PhaseResult) else "failed with"
    return f"{words.plural(run.outcome.steps_done, 'step')}, {kind} {ended}. Validation: {validated}."
