"""Configurations for runs from the base model that differ from earlier ones and use the best path's settings.

The best node's regularisation is a better start than the default, and increased capacity is kept. Each
further fresh start varies this in another direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from llmzero_ray.agents.expert.apply_moves import STRENGTHS, ChangePlan, ProposalBase, apply_moves
from llmzero_ray.agents.expert.moves import Move, MoveSet
from llmzero_ray.dynamics.gains import known_nodes
from llmzero_ray.errors import HyperparameterError
from llmzero_ray.hyperparameters import BY_KEY, complete, diff, mentioned_keys
from llmzero_ray.hyperparameters.verl_keys import (
    ADV_NORM,
    CAPACITY,
    CLIP_HIGH,
    GRAD_CLIP,
    KL_LOSS_COEF,
    LR,
    MAX_RESPONSE,
    ROLLOUT_N,
    TEMPERATURE,
)
from llmzero_ray.records import Change, Hyperparameters, HyperparameterValue
from llmzero_ray.records.agents import ProposalRequest

_INHERITED = ("optimisation", "clipping", "kl", "rollout")
"""Groups of hyper-parameters whose final values on the best path a fresh start inherits."""
_INHERIT = MoveSet(
    name="start where the best one ended",
    why="The settings that held the best run at last, from the first step on.",
    moves=(),
)
_HELD = "holds the larger step from the start"
_VARIATIONS: tuple[MoveSet, ...] = (
    MoveSet(
        name="larger steps",
        why="Does the root's step leave something on the table? Twice the step, held by a stronger KL.",
        moves=(
            Move(key=LR, factor=2.0, reason="covers in one phase what took the root two"),
            Move(key=KL_LOSS_COEF, factor=2.0, reason=_HELD),
            Move(key=ADV_NORM, to=True, reason="a scale-free signal suits a larger step"),
        ),
    ),
    MoveSet(
        name="larger groups",
        why="Is the root limited by the noise of its advantages? More rollouts of each prompt.",
        moves=(
            Move(key=ROLLOUT_N, factor=1.5, reason="larger groups estimate advantages with less noise"),
            Move(key=TEMPERATURE, shift=0.1, reason="larger groups can afford more varied answers"),
        ),
    ),
    MoveSet(
        name="smaller steps",
        why="Is the root too restless from the start? Smaller, steadier updates.",
        moves=(
            Move(key=LR, factor=0.5, reason="half the step from the start"),
            Move(key=TEMPERATURE, shift=-0.1, reason="cooler rollouts scatter less"),
            Move(key=GRAD_CLIP, factor=0.5, reason="no batch moves the policy far"),
        ),
    ),
    MoveSet(
        name="free exploration",
        why="Does the pull to the base model hold the policy back? Almost none of it.",
        moves=(
            Move(key=KL_LOSS_COEF, factor=0.2, reason="leaves the policy free to move away from the base"),
            Move(key=TEMPERATURE, shift=0.15, reason="more varied answers from the start"),
            Move(key=CLIP_HIGH, shift=0.05, reason="lets unlikely good tokens grow"),
        ),
    ),
)


def fresh_plan(base: ProposalBase, request: ProposalRequest, *, inherit: bool) -> ChangePlan:
    """Configuration of fresh start number `n_scratch`, as changes to the root's.

    With `inherit`, the first fresh start copies the best node's regularisation where it differs from the
    root. Each later one varies that configuration (without `inherit`, the root's) in another direction. The
    result differs from the root and from the earlier fresh starts in the request.
    """
    tried = [base.default, *(v.hyperparameters for v in known_nodes(request).values() if v.kind == "scratch")]
    turn = max(0, request.n_scratch - 1)
    plans = _unlike(tried, _plans(base, request, inherit))
    without = mentioned_keys(request.rejected)
    if request.rejected:
        kept = [p for p in plans if not {c.key for c in p.changes} & without]
        # If the rejection names no key of a plan, take the next plan, so that the proposal differs.
        turn, plans = (turn, kept) if len(kept) < len(plans) and kept else (turn + 1, plans)
    return plans[turn % len(plans)] if plans else apply_moves(base, _VARIATIONS[0])


def _unlike(tried: Sequence[Hyperparameters], plans: Iterable[ChangePlan]) -> list[ChangePlan]:
    """Plans that do not repeat a configuration."""
    kept: list[ChangePlan] = []
    for found in plans:
        if all(found.full != dict(known) for known in (*tried, *(other.full for other in kept))):
            kept.append(found)
    return kept


def _plans(base: ProposalBase, request: ProposalRequest, inherit: bool) -> Iterator[ChangePlan]:
    inherited = _inherited(base, request, inherit)
    if inherit and inherited is not None and inherited.changes:
        yield inherited
    start = base if inherited is None else replace(base, hyperparameters=inherited.full)
    for strength in STRENGTHS:
        for move_set in _VARIATIONS:
            varied = apply_moves(start, move_set, strength=strength)
            yield _relative(base, varied, inherited)


def _inherited(base: ProposalBase, request: ProposalRequest, inherit: bool) -> ChangePlan | None:
    """The root's configuration with the capacity of the best node and, if requested, its regularisation."""
    if request.best is None or not request.best.hyperparameters:
        return None
    best = request.best.hyperparameters
    wanted = _take_over(base.default, best) if inherit else {}
    for key in CAPACITY:
        wanted[key] = max(base.default[key], best[key], key=lambda size: int(str(size)))
    try:
        full = complete(base.hyperparameters, wanted, n_gpus=base.n_gpus, limits=base.limits)
    except HyperparameterError:
        return None
    return ChangePlan(move_set=_INHERIT, changes=_changes(base.hyperparameters, wanted, {}), full=full)


def _take_over(default: Hyperparameters, best: Hyperparameters) -> dict[str, HyperparameterValue]:
    changed = diff(default, best)
    kept = {k: new for k, (_, new) in changed.items() if k in BY_KEY and BY_KEY[k].group in _INHERITED}
    # A rate of 0 trains nothing, wherever it comes from.
    return {key: value for key, value in kept.items() if value is not None and not (key == LR and value == 0)}


def _relative(base: ProposalBase, varied: ChangePlan, inherited: ChangePlan | None) -> ChangePlan:
    """The plan with its changes expressed relative to the root's configuration."""
    reasons = {change.key: change.reason for change in varied.changes}
    wanted = {c.key: c.new for c in (*(inherited.changes if inherited else ()), *varied.changes)}
    return replace(varied, changes=_changes(base.hyperparameters, wanted, reasons))


def _changes(base: Hyperparameters, wanted: Hyperparameters, reasons: dict[str, str]) -> tuple[Change, ...]:
    taken_over = {
        MAX_RESPONSE: "the cap that the best node used",
        ROLLOUT_N: "the groups that the best node used",
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
    """Length of the best path, so that both compare: at least a standard phase, at most the longest allowed
    (the paper's fresh runs had five times as many steps as its continuations)."""
    task, best = request.task, request.best
    reached = best.base_step + (best.best_step or 0) if best is not None else 0
    return max(1, min(max(task.phase_steps, reached), task.max_phase_steps))
