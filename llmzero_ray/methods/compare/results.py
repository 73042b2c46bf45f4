"""Outcome of one search of a comparison, from its journal and series."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from llmzero_ray.errors import LlmzeroError
from llmzero_ray.hyperparameters.compute import plus, spent, token_cost
from llmzero_ray.methods.paper.figures import best_so_far
from llmzero_ray.records import TokenCounts
from llmzero_ray.report.facts import SearchFacts

NEEDS_A_MODEL = "needs a model"
"""Problem of a run whose method needs a language model that is not available."""


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """Outcome of one search. Steps, compute and hours include failed and stopped phases, and validations."""

    problem: str = ""
    """Reason why there is no test score. Empty if there is one."""
    test: float | None = None
    """Test score of the policy that validation chose."""
    base: float | None = None
    """Test accuracy of the base model."""
    steps: int = 0
    """Training steps of all phases."""
    compute: float = 0.0
    """Compute of all phases, at the search's own costs."""
    tokens: TokenCounts = field(default_factory=TokenCounts)
    hours: float = 0.0
    """Hours during which the search was running."""
    curve: tuple[tuple[float, float], ...] = field(default=())
    """(compute spent, best validation score so far) in the order of the phases, beginning with the base
    model's score."""
    stopped_share: float = 0.0
    """Share of the compute that was spent in phases that ended early or failed."""


def ended(directory: Path) -> RunOutcome | None:
    """Outcome of a comparison's run that has ended or failed. None if it has not started or is running."""
    known, code = outcome(directory), directory.with_name(f"{directory.name}.code")
    if known is not None or not code.is_file():
        return known
    return RunOutcome(problem=f"the search ended with exit code {code.read_text(encoding='utf-8')}")


def outcome(directory: Path) -> RunOutcome | None:
    """Outcome of a search, or None if it has not ended."""
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
    ended = [run.outcome for run in facts.runs.values() if run.outcome is not None]
    tokens = TokenCounts()
    for one in ended:
        tokens = plus(tokens, one.tokens or TokenCounts())
    cost, whole = token_cost(facts.config), facts.core.compute
    broken = [run.outcome for run in facts.runs.values() if run.status in ("failed", "early_stopped")]
    return RunOutcome(
        problem="" if scored is not None else why,
        test=None if scored is None else scored.mean,
        base=None if measured_base is None else measured_base.mean,
        steps=sum(one.steps_done for one in ended),
        compute=whole,
        tokens=tokens,
        hours=facts.core.active_time.seconds() / 3600,
        curve=tuple(best_so_far(facts)),
        stopped_share=spent(broken, cost) / whole if whole else 0.0,
    )
