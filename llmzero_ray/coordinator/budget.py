"""Budget limits that a search has reached, given the times that its actor measures. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median
from typing import Literal

from llmzero_ray.config import SearchConfig
from llmzero_ray.coordinator.state import SearchState
from llmzero_ray.records.events import REFERENCE, BudgetKind, BudgetReached
from llmzero_ray.search import plans_its_runs


def over_budget(state: SearchState, *, worked_s: float, now: float) -> Iterator[BudgetReached]:
    """Events for the limits reached after `worked_s` seconds of search. Reserved slots are charged up to
    `now`.

    The source of each event contains the limit, its value and the number of changed settings. The journal
    therefore records a limit once, and again only after settings have changed.
    """
    for kind, amount, limit in reached_limits(state, state.config, worked_s=worked_s, now=now):
        source = f"timer:{kind}:{limit:g}:{state.n_settings}"
        yield BudgetReached(kind=kind, used=amount, limit=limit, source=source)


def reached_limits(
    state: SearchState, config: SearchConfig, *, worked_s: float, now: float
) -> Iterator[tuple[BudgetKind, float, float]]:
    """(kind, used, limit) of each limit in `config` that the search has reached."""
    return (one for one in budget_limits(state, config, worked_s=worked_s, now=now) if one[1] >= one[2])


def budget_limits(
    state: SearchState, config: SearchConfig, *, worked_s: float, now: float
) -> Iterator[tuple[BudgetKind, float, float]]:
    """(kind, used, limit) of each limit that ends the search, except `budget.runs`."""
    budget = config.budget
    used: tuple[tuple[BudgetKind, float, float | None], ...] = (
        ("wall_clock", worked_s / 3600, budget.wall_clock_hours),
        ("gpu_hours", state.meter.gpu_hours(now), budget.gpu_hours),
        ("compute", state.compute, None if plans_its_runs(state.search) else budget.compute),
        ("dollars", state.dollars, budget.dollars if config.agents.on_cap == "stop" else None),
    )
    for kind, amount, limit in used:
        if limit is not None:
            yield kind, amount, limit


def time_left(
    state: SearchState, *, worked_s: float, now: float
) -> tuple[float, BudgetKind | Literal["runs"]]:
    """Estimated seconds until a limit ends the training, and that limit.

    Assumes that each remaining run takes as long as the median phase of its slot, and that the other limits
    are used up as fast as so far. Infinite if nothing can be estimated yet.
    """
    runs = [run for run in state.runs.values() if run.node != REFERENCE]
    ended = [(run.slot, run.outcome.wall_s) for run in runs if run.outcome is not None]
    runs_s = math.inf
    if ended:
        usual = max(median(seconds for _, seconds in ended), 1e-3)
        of_slots = ([s for place, s in ended if place == slot.index] or [usual] for slot in state.open_slots)
        speed = sum(1 / max(median(seconds), 1e-3) for seconds in of_slots)
        begun = [0.0 if run.started_at is None else now - run.started_at for run in runs if run.active]
        to_do = state.config.budget.runs - len(state.search.nodes)
        runs_s = (to_do + sum(max(0.0, 1 - seconds / usual) for seconds in begun)) / speed
    found: list[tuple[float, BudgetKind | Literal["runs"]]] = [(runs_s, "runs")]
    for kind, used, limit in budget_limits(state, state.config, worked_s=worked_s, now=now):
        found.append((worked_s * (limit - used) / used if used > 0 else math.inf, kind))
    return min(found, key=lambda each: each[0])


def gpu_hours(state: SearchState, now: float) -> tuple[float, float]:
    """(GPU hours of training including the reference, GPU hours in which reserved slots were idle). Running
    phases count up to `now`."""
    running_s = sum(
        now - run.started_at
        for run in state.runs.values()
        if run.started and run.active and run.started_at is not None
    )
    busy = state.gpu_hours + state.reference_gpu_hours + running_s / 3600 * state.config.slots.n_gpus
    return busy, max(0.0, state.meter.gpu_hours(now) - busy)
