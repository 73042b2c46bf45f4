"""Budget limits of a search: which are reached, from numbers that its actor measures. Pure.

Not here: the number of runs (search/), and GPU hours at the end of a phase (core.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from llmzero_ray.coordinator.state import SearchState
from llmzero_ray.events import REFERENCE, BudgetKind, BudgetReached


def over_budget(state: SearchState, *, worked_s: float, now: float) -> Iterator[BudgetReached]:
    """Events for the limits reached `worked_s` seconds into the search; reserved slots count up to `now`.

    The source of each event names the limit and its value, so that the journal records it once, and once more
    after it was raised.
    """
    budget = state.config.budget
    used: tuple[tuple[BudgetKind, float, float | None], ...] = (
        ("wall_clock", worked_s / 3600, budget.wall_clock_hours),
        ("gpu_hours", state.meter.gpu_hours(now), budget.gpu_hours),
        ("dollars", state.dollars, budget.dollars if state.config.agents.on_cap == "stop" else None),
    )
    for kind, amount, limit in used:
        if limit is not None and amount >= limit:
            yield BudgetReached(kind=kind, used=amount, limit=limit, source=f"timer:{kind}:{limit:g}")


def busy_gpu_hours(state: SearchState, now: float) -> float:
    """GPU hours in which phases trained, the reference included, those under way counted up to `now`."""
    running_s = sum(
        now - run.started_at
        for run in state.runs.values()
        if run.started and run.active and run.started_at is not None
    )
    reference = state.runs.get(REFERENCE)
    done = 0.0 if reference is None or reference.outcome is None else reference.outcome.gpu_hours
    return state.gpu_hours + done + running_s / 3600 * state.config.slots.n_gpus
