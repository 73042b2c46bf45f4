"""Estimate of a search before its start: steps, hours, GPU hours, dollars and disk, from sizes and measured
seconds. Pure arithmetic.

Three cases: `low` (every phase is stopped as early as the stopper may), `planned` (every phase has the usual
length) and `high` (every proposal asks for the longest phase). Not here: where the measured seconds come
from, the table (actors/), and the size of one adapter (adapter_size.py).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from llmzero_ray.agents.backend import llm_settings
from llmzero_ray.agents.llm.agents import PROPOSAL_TOKENS, VERDICT_TOKENS
from llmzero_ray.agents.llm.messages import Usage
from llmzero_ray.agents.llm.prices import FREE, Price, cost, price_of
from llmzero_ray.agents.llm.token_bound import image_tokens
from llmzero_ray.config import SearchConfig
from llmzero_ray.records.agents import AgentName

Course: TypeAlias = Literal["low", "planned", "high"]
COURSES: tuple[Course, ...] = ("low", "planned", "high")

_BEST_PATH = {"low": 0.2, "planned": 0.3, "high": 0.42}
"""Steps of the best strategy as a share of all steps of its search, as seen in published searches."""
_VALIDATION = {"low": 0.5, "planned": 0.75, "high": 1.0}
"""Seconds of a validated response as a share of a trained one's, where no validation was measured."""
_COLD_START_S = {"low": 60.0, "planned": 220.0, "high": 600.0}
_WARM_START_S = {"low": 0.0, "planned": 1.0, "high": 10.0}
_PROPOSAL_S = {"low": 5.0, "planned": 20.0}
"""Assumed where they were not measured; a proposal takes `agents.deadline_s` at most."""
_TRIES = {"low": 1, "planned": 1, "high": 2}
"""Requests per proposal."""
_ROLLING = 3
"""A full checkpoint holds the adapter and two moments of its optimizer."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Mean tokens of one agent call."""

    system: float
    """The part that a prompt cache may hold."""
    input: float
    output: float


TYPICAL_TOKENS: Mapping[str, Tokens] = {
    "proposer": Tokens(system=5304, input=2392, output=2400),
    "early_stopper": Tokens(system=1032, input=940, output=90),
}
"""Of large requests (a phase of 120 steps, a tree of 16 nodes), pictures not counted, the proposer's thinking
counted as 1,500 tokens;
benchmarks/agent_cost.py adds them up for a search of any size."""
_PICTURES = {"proposer": (1100, 1110), "early_stopper": (900, 520)}
"""Pixels of the agents' figures."""


@dataclass(frozen=True, kw_only=True)
class MeasuredTimes:
    """Measured times of one slot, in seconds; None: not measured."""

    source: str
    """Origin of the measurements, as text."""
    step_s: float
    validation_s: float | None = None
    """One pass over the validation split."""
    cold_start_s: float | None = None
    warm_start_s: float | None = None
    proposal_s: float | None = None
    tokens: Mapping[str, Tokens] = field(default_factory=dict)
    """By agent, pictures included; an agent that is missing has `TYPICAL_TOKENS`."""
    notes: tuple[str, ...] = ()
    """What differs between the measured run and the search."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of the data."""

    n_val: int
    n_test: int
    rollouts: int
    """Responses that one training step of the root generates."""


@dataclass(frozen=True, kw_only=True)
class EstimateCase:
    """One case of the estimate."""

    course: Course
    phases: int
    steps: int
    """Training steps of the tree."""
    reference_steps: int
    """Of the default recipe, trained after the search for comparison; 0: it is not."""
    validations: int
    """Passes over the validation split; test measurements are not among them."""
    hours: float
    """Wall clock, test measurements included."""
    gpu_hours: float
    """Reserved, idle slots included."""
    dollars: float | None
    """None: the price of an agent of one's own is not known."""
    disk_bytes: int | None
    """Adapters that are saved when none is deleted, and the full checkpoints of running phases; None: the
    size of an adapter is not known."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A limit of `budget` that a case reaches."""

    key: str
    amount: float
    limit: float

    @property
    def share(self) -> float:
        """Share of the case that the limit allows."""
        return self.limit / self.amount


def estimate(
    config: SearchConfig,
    sizes: Sizes,
    measured: MeasuredTimes,
    *,
    price: Price | None,
    adapter_bytes: int | None,
    on_gpus: bool = False,
) -> tuple[EstimateCase, EstimateCase, EstimateCase]:
    """The low, the planned and the high case, before any limit of `budget` but `runs` is applied.

    `price` as `agent_price` gives it; `adapter_bytes` None: not known; `on_gpus`: what
    `phase.validate_start: auto` depends on.
    """
    low, planned, high = (_case(config, sizes, measured, c, price, adapter_bytes, on_gpus) for c in COURSES)
    return low, planned, high


def first_limit(config: SearchConfig, case: EstimateCase) -> Limit | None:
    """The limit that ends this case first; None: `budget.runs` does."""
    budget = config.budget
    reached = [
        Limit(key=key, amount=amount, limit=limit)
        for key, amount, limit in (
            ("budget.gpu_hours", case.gpu_hours, budget.gpu_hours),
            ("budget.wall_clock_hours", case.hours, budget.wall_clock_hours),
            ("budget.dollars", case.dollars, budget.dollars if config.agents.on_cap == "stop" else None),
        )
        if limit is not None and amount is not None and amount > limit
    ]
    return min(reached, key=lambda found: found.share, default=None)


def agent_price(config: SearchConfig) -> Price | None:
    """Price of the agents' tokens: zero without a language model; None for a user's own agents.

    Raises:
        ConfigError: the model's price is not known.
    """
    agents = config.agents
    if agents.backend == "claude":
        return price_of(agents.model, agents.price, agents.prompts)
    return None if ":" in agents.backend else FREE


def validations(n_steps: int, test_freq: int, *, at_start: bool = True) -> int:
    """Validations of a phase: before its first step, every `test_freq` steps, and after its last."""
    return at_start + math.ceil(n_steps / min(test_freq, n_steps))


def validates_every_start(config: SearchConfig, *, on_gpus: bool) -> bool:
    """Whether every phase validates before its first step, and not an engine's first one alone."""
    asked = config.phase.validate_start
    return asked == "always" or (asked == "auto" and not on_gpus)


def disk_bytes(config: SearchConfig, adapter_bytes: int, course: Course) -> int:
    """Adapters of all phases when none is deleted, and one full checkpoint a slot."""
    phase = config.phase
    # A new best is saved as well; with luck every validation is one.
    every = {phase.save_freq, phase.test_freq} if course == "high" else {phase.save_freq}

    def saved(n_steps: int) -> int:
        return len({step for freq in every for step in range(freq, n_steps + 1, freq)} | {n_steps})

    child, reference = _child_steps(config, course), _reference_steps(config, course)
    n_adapters = saved(phase.n_steps) + (config.budget.runs - 1) * saved(child)
    n_adapters += saved(reference) if reference else 0
    rolling = _ROLLING * config.slots.count if config.checkpoints.rolling_freq != 0 else 0
    each = _ROLLING if config.engine.carry_optimizer else 1
    return (n_adapters * each + rolling) * adapter_bytes


# --- one case -----------------------------------------------------------------------------------------------


def _case(
    config: SearchConfig,
    sizes: Sizes,
    measured: MeasuredTimes,
    course: Course,
    price: Price | None,
    adapter_bytes: int | None,
    on_gpus: bool,
) -> EstimateCase:
    phase, children = config.phase, config.budget.runs - 1
    child, reference = _child_steps(config, course), _reference_steps(config, course)
    every = _every_start(config, course, on_gpus)
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
        dollars=None if price is None else _dollars(config, measured, course, price),
        disk_bytes=None if adapter_bytes is None else disk_bytes(config, adapter_bytes, course),
    )


def _every_start(config: SearchConfig, course: Course, on_gpus: bool) -> bool:
    """In the worst case the engine is started anew for every phase."""
    return course == "high" or validates_every_start(config, on_gpus=on_gpus)


def _child_steps(config: SearchConfig, course: Course) -> int:
    usual = config.phase.n_steps
    if course == "low":
        return min(usual, config.stopper.min_steps) if config.stopper.enabled else usual
    return config.phase.max_steps if course == "high" else usual


def _reference_steps(config: SearchConfig, course: Course) -> int:
    """The default recipe is trained for about as many steps as the best strategy has, or (`whole`) the
    search."""
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
    """(of the search, of all its slots): the root alone, where the other slots may not be reserved yet, then
    as many phases at once as there are slots, then the final measurements, for which no more slots are kept
    than work."""
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

    # In the worst case every proposal changes a key that restarts the engine.
    start_s = cold_s if course == "high" else warm_s
    child_s = _proposal_s(config, measured, course) + start_s + trained_s(_child_steps(config, course))
    root_s = cold_s + trained_s(config.phase.n_steps, at_start=True)
    tree_s = root_s + math.ceil(children / slots) * child_s
    if slots > 1:
        # The other slots' first phases.
        tree_s += cold_s - start_s + (0.0 if every_start else validation_s)
    test_s = validation_s * sizes.n_test / sizes.n_val if config.final.test else 0.0
    reference = _reference_steps(config, course)
    reference_s = start_s + trained_s(reference) + test_s if reference else 0.0
    final_slot_s = reference_s + 2 * test_s
    beside = max(1, slots - 1) if reference else slots
    final_s = final_slot_s if slots == 1 else max(reference_s, 2 * test_s / min(2, beside))
    slots_s = tree_s * slots
    if config.slots.reserve == "when_needed" and config.search.multi_stage:
        slots_s -= (slots - 1) * root_s
    return tree_s + final_s, slots_s + final_slot_s


def _proposal_s(config: SearchConfig, measured: MeasuredTimes, course: Course) -> float:
    if measured.proposal_s is not None:
        return measured.proposal_s
    if config.agents.backend in ("expert", "replay"):
        return 0.0
    return _PROPOSAL_S.get(course, config.agents.deadline_s)


def _dollars(config: SearchConfig, measured: MeasuredTimes, course: Course, price: Price) -> float:
    """Proposals and verdicts of all phases; error analyses cost about what proposals do."""
    stopper, n_steps = config.stopper, _child_steps(config, course)
    interval = stopper.interval_steps or max(1, math.ceil(stopper.interval_s / measured.step_s))
    late = n_steps - stopper.min_steps
    verdicts = 1 + late // interval if stopper.enabled and late >= 0 else 0
    children = config.budget.runs - 1
    longest = {"proposer": PROPOSAL_TOKENS, "early_stopper": VERDICT_TOKENS}
    together = 0.0
    calls_of: dict[AgentName, float] = {"proposer": _TRIES[course], "early_stopper": verdicts}
    for agent, calls in calls_of.items():
        settings = llm_settings(config.agents, agent)
        tokens = measured.tokens.get(agent) or TYPICAL_TOKENS[agent]
        shown = agent not in measured.tokens and config.agents.visual
        system, output = round(tokens.system), round(tokens.output)
        usage = Usage(
            input=round(tokens.input) + (image_tokens(_png_header(*_PICTURES[agent])) if shown else 0),
            output=max(output, settings.output_tokens(longest[agent])) if course == "high" else output,
            cache_read=system if course == "low" else 0,
            cache_creation=0 if course == "low" else system,
        )
        together += children * calls * cost(usage, price)
    return together


def _png_header(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height)
