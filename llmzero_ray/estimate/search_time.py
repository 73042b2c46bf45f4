"""Steps, hours, GPU hours and disk space of a whole search, from sizes and measured seconds. Pure arithmetic.

There are three cases: `low` (every phase is stopped as early as the stopper may), `planned` (every phase has
the usual length) and `high` (every proposal asks for the longest phase). A method that plans its runs is
estimated as standard phases. Not here: measuring the seconds, the table (cli/), the agents' dollars
(agents/expected_cost.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from llmzero_ray.config import SearchConfig
from llmzero_ray.hyperparameters.compute import validates_every_start, validations
from llmzero_ray.search import load_method, plans_its_runs

Course: TypeAlias = Literal["low", "planned", "high"]
Dollars: TypeAlias = Callable[[Course, Mapping[str, int]], float]
"""(course, agent -> number of requests) -> their cost in dollars."""

_BEST_PATH = {"low": 0.2, "planned": 0.3, "high": 0.42}
"""Steps of the best strategy as a share of all steps of its search, from published searches."""
_VALIDATION = {"low": 0.5, "planned": 0.75, "high": 1.0}
"""Seconds of a response in validation as a share of those in training, if no validation was measured."""
_COLD_START_S = {"low": 60.0, "planned": 220.0, "high": 600.0}
_WARM_START_S = {"low": 0.0, "planned": 1.0, "high": 10.0}
_PROPOSAL_S = {"low": 5.0, "planned": 20.0}
"""Assumed seconds of a proposal, if not measured. In the high case, it takes until its deadline."""
_TRIES = {"low": 1, "planned": 1, "high": 2}
"""Number of requests per proposal."""
_ROLLING = 3
"""Size of a full checkpoint in adapters: it contains the adapter and two moments of the optimizer."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Mean tokens of one agent call."""

    system: float
    """Part of the prompt that a prompt cache may hold."""
    input: float
    output: float


@dataclass(frozen=True, kw_only=True)
class MeasuredTimes:
    """Measured times of one slot in seconds. A field is None if not measured."""

    source: str
    """Where the measurements come from, as text."""
    step_s: float
    validation_s: float | None = None
    """Seconds of one pass over the validation split."""
    cold_start_s: float | None = None
    warm_start_s: float | None = None
    proposal_s: float | None = None
    tokens: Mapping[str, Tokens] = field(default_factory=dict)
    """Agent -> tokens of a call, including figures. Typical numbers are used for missing agents."""
    notes: tuple[str, ...] = ()
    """Differences between the measured run and the search."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Rows of the data, and responses in one step."""

    n_val: int
    n_test: int
    rollouts: int
    """Number of responses that one training step of the root samples."""


@dataclass(frozen=True, kw_only=True)
class EstimateCase:
    """One case of the estimate."""

    course: Course
    phases: int
    steps: int
    """Training steps of all phases in the tree."""
    reference_steps: int
    """Steps of the default recipe, trained after the search for comparison. 0 if it is not trained."""
    validations: int
    """Number of passes over the validation split, without test scores."""
    hours: float
    """Wall-clock hours, including test scores."""
    gpu_hours: float
    """GPU hours of reserved slots, busy or idle."""
    dollars: float | None
    """Cost of the agents' requests. None if not known."""
    disk_bytes: int | None
    """Bytes of all adapters if none is deleted, and of the full checkpoints of running phases. None if the
    size of an adapter is not known."""


Cases: TypeAlias = tuple[EstimateCase, EstimateCase, EstimateCase]
"""The low, the planned and the high case."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Limit in `budget` that a case would exceed."""

    key: str
    limit: float
    share: float
    """Share of the case that fits in the limit."""


def first_limit(config: SearchConfig, case: EstimateCase) -> Limit | None:
    """Limit that ends this case first, or None if only `budget.runs` ends it."""
    budget = config.budget
    reached = [
        Limit(key=key, limit=limit, share=limit / amount)
        for key, amount, limit in (
            ("budget.gpu_hours", case.gpu_hours, budget.gpu_hours),
            ("budget.wall_clock_hours", case.hours, budget.wall_clock_hours),
            ("budget.dollars", case.dollars, budget.dollars if config.agents.on_cap == "stop" else None),
        )
        if limit is not None and amount is not None and amount > limit
    ]
    return min(reached, key=lambda found: found.share, default=None)


def disk_bytes(config: SearchConfig, adapter_bytes: int, course: Course) -> int:
    """Bytes of the adapters of all phases if none is deleted, and of one full checkpoint per slot."""
    phase = config.phase
    # New bests are saved as well; in the high case, every validation is one.
    every = {phase.save_freq, phase.test_freq} if course == "high" else {phase.save_freq}

    def saved(n_steps: int) -> int:
        return len({step for freq in every for step in range(freq, n_steps + 1, freq)} | {n_steps})

    child, reference = _child_steps(config, course), _reference_steps(config, course)
    n_adapters = saved(phase.n_steps) + (config.budget.runs - 1) * saved(child)
    n_adapters += saved(reference) if reference else 0
    rolling = _ROLLING * config.slots.count if config.checkpoints.rolling_freq != 0 else 0
    return (n_adapters + rolling) * adapter_bytes


def case_of(
    course: Course,
    config: SearchConfig,
    sizes: Sizes,
    measured: MeasuredTimes,
    *,
    dollars: Dollars | None,
    adapter_bytes: int | None,
    on_gpus: bool,
) -> EstimateCase:
    """Estimate for one case, without any limit of `budget` except `runs`.

    `adapter_bytes` is None if not known; `phase.validate_start: auto` depends on `on_gpus`.
    """
    phase, children = config.phase, config.budget.runs - 1
    child, reference = _child_steps(config, course), _reference_steps(config, course)
    # In the high case, the engine restarts for every phase.
    every = course == "high" or validates_every_start(config, on_gpus=on_gpus)
    wall_s, slot_s = _seconds(config, sizes, measured, course, every_start=every)
    hours = wall_s / 3600
    first = children if every else min(children, config.slots.count - 1)
    per_phase = [
        (1, phase.n_steps, True),
        (first, child, True),
        (children - first, child, False),
        (1 if reference else 0, reference or 1, every),
    ]
    return EstimateCase(
        course=course,
        phases=config.budget.runs,
        steps=phase.n_steps + children * child,
        reference_steps=reference,
        validations=sum(
            count * validations(steps, phase.test_freq, at_start=at_start)
            for count, steps, at_start in per_phase
        ),
        hours=hours,
        gpu_hours=slot_s / 3600 * config.slots.n_gpus,
        dollars=None if dollars is None else dollars(course, _calls(config, measured, course)),
        disk_bytes=None if adapter_bytes is None else disk_bytes(config, adapter_bytes, course),
    )


def _child_steps(config: SearchConfig, course: Course) -> int:
    phase, stopper = config.phase, config.stopper
    shortest = stopper.first_question(phase.n_steps) if stopper.enabled else phase.n_steps
    longest = phase.n_steps if _plans_its_runs(config) else phase.max_steps
    return {"low": shortest, "planned": phase.n_steps, "high": longest}[course]


def _plans_its_runs(config: SearchConfig) -> bool:
    return plans_its_runs(load_method(config.search.method))


def _reference_steps(config: SearchConfig, course: Course) -> int:
    """Steps of the default recipe: about as many as the best strategy has, or as the whole search if
    `final.default_recipe` is `whole`."""
    if not config.final.default_recipe:
        return 0
    child = _child_steps(config, course)
    if not config.search.multi_stage:
        return child
    everything = config.phase.n_steps + (config.budget.runs - 1) * child
    if config.final.default_recipe == "whole":
        return everything
    return max(child, round(_BEST_PATH[course] * everything))


def _seconds(
    config: SearchConfig, sizes: Sizes, measured: MeasuredTimes, course: Course, *, every_start: bool
) -> tuple[float, float]:
    """(seconds of the search, reserved seconds summed over its slots).

    First the root trains alone, perhaps before the other slots are reserved. Then all slots train phases. For
    the final evaluation, only slots that have work are kept.
    """
    slots, children = config.slots.count, config.budget.runs - 1
    validation_s = measured.validation_s
    if validation_s is None:
        validation_s = measured.step_s * sizes.n_val / sizes.rollouts * _VALIDATION[course]
    cold_s = _COLD_START_S[course] if measured.cold_start_s is None else measured.cold_start_s
    warm_s = min(_WARM_START_S[course], cold_s) if measured.warm_start_s is None else measured.warm_start_s
    longest_s = math.inf if config.phase.max_hours is None else config.phase.max_hours * 3600

    def trained_s(n_steps: int, *, at_start: bool = every_start) -> float:
        n_validations = validations(n_steps, config.phase.test_freq, at_start=at_start)
        return min(n_steps * measured.step_s + n_validations * validation_s, longest_s)

    # In the high case, every proposal changes a key that restarts the engine.
    start_s = cold_s if course == "high" else warm_s
    child_s = _proposal_s(config, measured, course) + start_s + trained_s(_child_steps(config, course))
    root_s = cold_s + trained_s(config.phase.n_steps, at_start=True)
    tree_s = root_s + math.ceil(children / slots) * child_s
    if slots > 1:
        # In the other slots, the first phase starts cold and validates its start.
        tree_s += cold_s - start_s + (0.0 if every_start else validation_s)
    test_s = validation_s * sizes.n_test / sizes.n_val if config.final.test else 0.0
    reference = _reference_steps(config, course)
    reference_s = start_s + trained_s(reference) + test_s if reference else 0.0
    tests = 1 + (config.budget.runs if config.final.test == "all" else 1)  # one is of the base model
    final_slot_s = reference_s + tests * test_s
    beside = max(1, slots - 1) if reference else slots
    final_s = final_slot_s if slots == 1 else max(reference_s, tests * test_s / min(tests, beside))
    slots_s = tree_s * slots
    if config.slots.reserve == "when_needed" and config.search.multi_stage:
        slots_s -= (slots - 1) * root_s
    return tree_s + final_s, slots_s + final_slot_s


def _proposal_s(config: SearchConfig, measured: MeasuredTimes, course: Course) -> float:
    if _plans_its_runs(config):
        return 0.0
    if measured.proposal_s is not None:
        return measured.proposal_s
    if config.agents.backend in ("expert", "recorded"):
        return 0.0
    return _PROPOSAL_S.get(course, config.agents.deadline_of("proposer"))


def _calls(config: SearchConfig, measured: MeasuredTimes, course: Course) -> dict[str, int]:
    """Agent -> number of requests for all phases. An error analysis counts as a proposal."""
    stopper, children = config.stopper, config.budget.runs - 1
    n_steps = _child_steps(config, course)
    interval = stopper.interval_steps or math.ceil(stopper.interval_s / measured.step_s)
    late = n_steps - 1 - stopper.first_question(n_steps)
    verdicts = 1 + late // max(interval, config.phase.test_freq) if stopper.enabled and late >= 0 else 0
    proposals = 0 if _plans_its_runs(config) else children * _TRIES[course]
    return {"proposer": proposals, "early_stopper": children * verdicts}
