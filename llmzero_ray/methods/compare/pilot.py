"""Pilot of each task: a run of the default recipe that determines a comparison's budget.

Its compute is the budget of every method on that task, its timings give the cost of tokens, and its hours the
forecast. It is not part of the tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters.compute import amount, measured_cost, plus
from llmzero_ray.methods.compare.plan import PILOT, ComparedRun, ComparePlan, times_of, with_keys
from llmzero_ray.records import PhaseFailure, TokenCost, TokenCounts
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.search import load_method, plans_its_runs
from llmzero_ray.storage.metric_files import load_points
from llmzero_ray.utils.files import replace_file


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """Result of the pilot of one task."""

    compute: float
    """Compute, in the unit of `cost`."""
    cost: TokenCost
    """Seconds per token, or 1 for all tokens if the engine reports no timings."""
    steps: int
    """Steps of the default recipe that `compute` pays for."""
    hours: float
    """Hours of work, including a cold start and the test scores."""

    @property
    def unit(self) -> str:
        """Unit of compute."""
        return "tokens" if self.cost == TokenCost() else "engine seconds"


def read_pilot(run: ComparedRun, directory: Path, hours: float, say: Callable[[str], None]) -> Pilot:
    """Result of an ended pilot, stored on first use so that it never changes. If the pilot ended before its
    last step, the result is extrapolated at the same cost per step, and `say` gets a sentence about it.

    Raises:
        ConfigError: the pilot trained nothing.
    """
    path = directory / f"{run.name}.pilot.json"
    if path.is_file():
        known = json.loads(path.read_text(encoding="utf-8"))
        return Pilot(**{**known, "cost": TokenCost(**known["cost"])})
    facts = SearchFacts(directory / run.name)
    steps: list[tuple[Any, Mapping[str, float]]] = []
    total, n_steps = TokenCounts(), 0
    for node, found in facts.runs.items():
        if found.spec is None or found.outcome is None:
            continue
        total, n_steps = (
            plus(total, found.outcome.tokens or TokenCounts()),
            n_steps + found.outcome.steps_done,
        )
        points = load_points(facts.storage, node)
        steps += [(found.spec.hyperparameters, point.metrics) for point in points]
    cost = measured_cost(steps) or TokenCost()
    compute = amount(total, cost)
    if compute <= 0 or n_steps == 0:
        raise ConfigError(
            f"the pilot of {run.task} trained nothing, see {directory / run.name}; fix the task or its "
            f"default recipe, and remove {directory} to begin again."
        )
    wanted = _whole(facts.config)
    if n_steps < wanted:
        outcomes = [one.outcome for one in facts.runs.values()]
        why = ", ".join(one.failure_class for one in outcomes if isinstance(one, PhaseFailure))
        say(
            f"the pilot of {run.task} ended after {n_steps} of {wanted} steps ({why or 'stopped'}); the "
            f"budget is that of {wanted} steps at the same cost. Remove {directory} to begin again."
        )
    scale = max(wanted / n_steps, 1.0)
    pilot = Pilot(compute=scale * compute, cost=cost, steps=max(n_steps, wanted), hours=scale * hours)
    replace_file(path, json.dumps(asdict(pilot), indent=1))
    return pilot


def _whole(config: SearchConfig) -> int:
    """Training steps of the default recipe that define the compute budget."""
    return config.budget.runs * config.phase.n_steps


def with_budget(config: SearchConfig, pilot: Pilot, *, by_compute: bool, times: int = 1) -> SearchConfig:
    """A search of the plan with the pilot's token costs. If `by_compute`, its budget is `times` the pilot's
    compute.

    Methods that plan their runs divide the budget. Methods whose agents end phases may begin more runs than
    the standard phases that fit.
    """
    whole = _whole(config)
    changed: dict[str, Any] = {
        "budget.token_cost.rollout": pilot.cost.rollout,
        "budget.token_cost.trained": pilot.cost.trained,
    }
    if not by_compute:
        return with_keys(config, changed)
    changed["budget.compute"] = times * pilot.compute
    if plans_its_runs(load_method(config.search.method)):
        changed["phase.max_steps"] = max(config.phase.max_steps, MORE * whole)
    else:
        changed["budget.runs"] = MORE * config.budget.runs
    return with_keys(config, changed)


MORE = 4
"""Limit on runs or steps under a compute budget, as a multiple of the standard phases or steps."""


def forecast(plan: ComparePlan, pilots: Mapping[str, Pilot], methods: Collection[str]) -> float:
    """Forecast hours of a comparison of these methods, including pilots, if `plan.parallel` lanes do not slow
    each other down."""
    runs = sum(times_of(plan)[name] for name in methods) * len(plan.seeds) + 1
    return sum(pilot.hours for pilot in pilots.values()) * runs / min(plan.parallel, runs * len(pilots))


def pilot_runs(
    plan: ComparePlan, runs: Mapping[ComparedRun, SearchConfig]
) -> dict[ComparedRun, SearchConfig]:
    """One pilot per task: the task's default recipe in one phase, with the plan's seed for pilots."""
    found = {}
    for task in plan.tasks:
        like = runs[ComparedRun(task.name, plan.methods[0].name, plan.seeds[0])]
        run = ComparedRun(task.name, PILOT, plan.pilot_seed)
        whole = _whole(like)
        keys = {"name": run.name, "seed": run.seed, "search.method": "default", "stopper.enabled": False}
        found[run] = with_keys(like, {**keys, "phase.max_steps": max(like.phase.max_steps, whole)})
    return found
