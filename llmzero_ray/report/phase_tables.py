"""Tables and phrases about phases: the best strategy phase by phase, and every other node."""

from __future__ import annotations

from collections.abc import Sequence

from llmzero_ray.agents.knowledge import MetricNote, metric_notes
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.hyperparameters import canonical, short
from llmzero_ray.records.metrics import ENTROPY, GRAD_NORM, KL, LENGTH, LENGTH_AT_MAX, REWARDS
from llmzero_ray.report import formatting as fmt
from llmzero_ray.report.best_strategy import score_at
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.tree_text import started_from

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
