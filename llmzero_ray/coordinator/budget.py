"""Which limits of a search are reached, from numbers that its actor measures. Pure.

Not here: the number of runs (search/), and GPU hours at the end of a phase (core.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from llmzero_ray.coordinator.core import CoordinatorCore
from llmzero_ray.events import REFERENCE, BudgetKind, BudgetReached


def over_budget(core: CoordinatorCore, *, worked_s: float, now: float) -> Iterator[BudgetReached]:
    """Limits that are reached `worked_s` seconds into the search, phases under way counted up to `now`.

    Each is named as one delivery, so that the journal takes it once.
    """
    budget, slots = core.config.budget, core.config.slots
    running_s = sum(
        now - run.started_at
        for run in core.runs.values()
        if run.node != REFERENCE and run.started and run.active and run.started_at is not None
    )
    gpu_hours = core.gpu_hours + running_s / 3600 * slots.n_gpus
    used: tuple[tuple[BudgetKind, float, float | None], ...] = (
        ("wall_clock", worked_s / 3600, budget.wall_clock_hours),
        ("gpu_hours", gpu_hours, budget.gpu_hours),
    )
    for kind, amount, limit in used:
        if limit is not None and amount >= limit:
            yield BudgetReached(kind=kind, used=amount, limit=limit, source=f"timer:{kind}")
