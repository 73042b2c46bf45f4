"""What one search of a comparison came to, from its journal and series.

Not here: the tables of many (tables.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from llmzero_ray.errors import LlmzeroError
from llmzero_ray.hyperparameters.table import ROLLOUT_N, TRAIN_BATCH
from llmzero_ray.report.facts import SearchFacts

PROMPT, RESPONSE = "prompt_length/mean", "response_length/mean"


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """One search. Failed and stopped phases count in everything that was spent."""

    problem: str = ""
    """Why it has no test score; empty: it has one."""
    test: float | None = None
    """Of the policy that validation chose."""
    base: float | None = None
    """Test accuracy of the base model."""
    steps: int = 0
    """Training steps of all phases."""
    tokens: float = 0.0
    """Sampled in rollouts, and trained on (prompt and response), in all phases; those of validation are not
    counted."""
    hours: float = 0.0
    """In which the search was at work."""
    curve: tuple[tuple[int, float], ...] = field(default=())
    """(training steps spent, best validation score so far), in the order of the phases."""


def outcome(directory: Path) -> RunOutcome | None:
    """The outcome of a search that has ended; None while it has not."""
    try:
        facts = SearchFacts(directory)
        if facts.core.finished is None:
            return None
    except LlmzeroError:
        return None
    base, best = facts.final("base"), facts.final("best")
    scored = None if best is None else best.measured
    measured_base = None if base is None else base.measured
    why = "no phase has a score" if best is None else best.problem or "it was not tested"
    spent = [_spent(facts, node) for node in sorted(facts.runs)]
    return RunOutcome(
        problem="" if scored is not None else why,
        test=None if scored is None else scored.mean,
        base=None if measured_base is None else measured_base.mean,
        steps=sum(steps for steps, _ in spent),
        tokens=sum(tokens for _, tokens in spent),
        hours=facts.core.active_time.seconds() / 3600,
        curve=_curve(facts),
    )


def _spent(facts: SearchFacts, node: int) -> tuple[int, float]:
    """(steps, tokens) of one phase."""
    run = facts.runs[node]
    steps = 0 if run.outcome is None else run.outcome.steps_done
    if run.spec is None:
        return steps, 0.0
    n_rollouts = 1.0
    for key in (TRAIN_BATCH, ROLLOUT_N):
        n_rollouts *= float(str(run.spec.hyperparameters.get(key, 1)))
    metrics = facts.curves(node).metrics
    sampled, prompts = (
        sum(value for value in metrics.get(name, ()) if value is not None and math.isfinite(value))
        for name in (RESPONSE, PROMPT)
    )
    return steps, n_rollouts * (2 * sampled + prompts)


def _curve(facts: SearchFacts) -> tuple[tuple[int, float], ...]:
    before, best, points = 0, float("-inf"), []
    for node in sorted(facts.runs):
        curves = facts.curves(node)
        for step, score in zip(curves.val_steps, curves.val_scores, strict=True):
            best = max(best, score)
            points.append((before + step, best))
        before += _spent(facts, node)[0]
    return tuple(points)
