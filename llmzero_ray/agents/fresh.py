"""Configurations for runs from the base model: unlike earlier ones, informed by what was seen.

What regularised the best node at last is a better start than the default, and capacity that was found to be
needed stays; then each further fresh start varies that in another direction. Not here: the proposal around it
(expert.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from llmzero_ray.agents.base import ProposalRequest
from llmzero_ray.agents.prescribe import Bench, Plan, plan
from llmzero_ray.agents.rejection import mentioned_keys
from llmzero_ray.agents.treatments import CATALOGUE, GENERAL, Treatment
from llmzero_ray.errors import HyperparameterError
from llmzero_ray.hyperparameters.couplings import complete
from llmzero_ray.hyperparameters.table import BY_KEY, CAPACITY, LR, MAX_RESPONSE, ROLLOUT_N
from llmzero_ray.hyperparameters.values import diff
from llmzero_ray.records import Change, Hyperparameters, HyperparameterValue

_INHERITED = ("optimisation", "clipping", "kl", "rollout")
"""Groups whose last values on the best path a fresh start takes over."""
_INHERIT = Treatment(
    name="start where the best one ended",
    why="The settings that held the best run at last, from the first step on.",
    moves=(),
)
_VARIATIONS: tuple[Treatment, ...] = (*CATALOGUE["slow"], *CATALOGUE["noisy"], *GENERAL)
_STRENGTHS = (1.0, 1.5, 2.0, 3.0)


def fresh_plan(bench: Bench, request: ProposalRequest) -> Plan:
    """The configuration of fresh start number `n_scratch`, in changes to the root's.

    The first one inherits from the best node, where that differs from the root; every later one (and that
    one, where nothing differs) varies it in another direction. None equals a configuration that ran from
    scratch before, as far as the request shows them.
    """
    tried = [bench.default, *(view.hyperparameters for view in request.siblings if view.kind == "scratch")]
    turn = max(0, request.n_scratch - 1)
    plans = [found for found in _plans(bench, request) if all(found.full != dict(c) for c in tried)]
    without = mentioned_keys(request.rejected)
    if request.rejected:
        kept = [p for p in plans if not {c.key for c in p.changes} & without]
        # A refusal that names nothing of the plan: take the next one, so that the same answer does not come
        # back.
        turn, plans = (turn, kept) if len(kept) < len(plans) and kept else (turn + 1, plans)
    return plans[turn % len(plans)] if plans else plan(bench, GENERAL[0])


def _plans(bench: Bench, request: ProposalRequest) -> Iterator[Plan]:
    inherited = _inherited(bench, request)
    if inherited is not None and inherited.changes:
        yield inherited
    start = bench if inherited is None else replace(bench, base=inherited.full)
    for strength in _STRENGTHS:
        for treatment in _VARIATIONS:
            varied = plan(start, treatment, strength=strength)
            yield _relative(bench, varied, inherited)


def _inherited(bench: Bench, request: ProposalRequest) -> Plan | None:
    """The root's configuration with what the best node was regularised by, and the largest capacity seen."""
    if request.best is None or not request.best.hyperparameters:
        return None
    wanted = _take_over(bench.default, request.best.hyperparameters)
    for key in CAPACITY:
        views = (request.best, request.on, *request.siblings)
        sizes = [v.hyperparameters[key] for v in views if isinstance(v.hyperparameters.get(key), int)]
        wanted[key] = max([bench.default[key], *sizes], key=lambda v: int(str(v)))
    try:
        full = complete(bench.base, wanted, n_gpus=bench.n_gpus, limits=bench.limits)
    except HyperparameterError:
        return None
    return Plan(treatment=_INHERIT, changes=_changes(bench.base, wanted, {}), full=full)


def _take_over(default: Hyperparameters, best: Hyperparameters) -> dict[str, HyperparameterValue]:
    changed = diff(default, best)
    kept = {k: new for k, (_, new) in changed.items() if k in BY_KEY and BY_KEY[k].group in _INHERITED}
    # A rate of 0 trains nothing, wherever it comes from.
    return {key: value for key, value in kept.items() if value is not None and not (key == LR and value == 0)}


def _relative(bench: Bench, varied: Plan, inherited: Plan | None) -> Plan:
    """The plan with its changes told relative to the root's configuration."""
    reasons = {change.key: change.reason for change in varied.changes}
    wanted = {c.key: c.new for c in (*(inherited.changes if inherited else ()), *varied.changes)}
    return replace(varied, changes=_changes(bench.base, wanted, reasons))


def _changes(base: Hyperparameters, wanted: Hyperparameters, reasons: dict[str, str]) -> tuple[Change, ...]:
    taken_over = {
        MAX_RESPONSE: "the largest cap that a run needed so far",
        ROLLOUT_N: "the largest groups used so far",
    }
    return tuple(
        Change(
            key=k,
            old=base.get(k),
            new=v,
            reason=reasons.get(k) or taken_over.get(k, "as the best node ended"),
        )
        for k, v in wanted.items()
        if base.get(k) != v
    )


def fresh_length(request: ProposalRequest) -> int:
    """Long enough to be compared with the best path, at most two usual phases."""
    task, best = request.task, request.best
    reached = best.base_step + (best.best_step or 0) if best is not None else 0
    return max(1, min(max(task.phase_steps, min(reached, 2 * task.phase_steps)), task.max_phase_steps))
