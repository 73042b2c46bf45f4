"""Turns a set of moves into a valid configuration: applies, bounds and rounds them, and keeps couplings.

Moves stay within the reach of a hyper-parameter (`Reach`) and the limits of the search. Not here: choosing a
set of moves (proposer.py), and what each set contains (moves.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from llmzero_ray.agents.expert.moves import Move, MoveSet
from llmzero_ray.errors import HyperparameterError
from llmzero_ray.hyperparameters import BY_KEY, VERL_SPACE, Limits, complete, diff
from llmzero_ray.hyperparameters.couplings import MICRO_BATCHES
from llmzero_ray.hyperparameters.verl_keys import (
    CAPACITY,
    CLIP_HIGH,
    CLIP_LOW,
    MAX_PROMPT,
    MAX_RESPONSE,
    MINI_BATCH,
    ROLLOUT_N,
    TEMPERATURE,
    TRAIN_BATCH,
)
from llmzero_ray.records import Change, Hyperparameters, HyperparameterValue
from llmzero_ray.utils.text import is_number

STRENGTHS = (1.0, 1.5, 2.0, 3.0)
"""Factors on all moves. Each is used once every set of moves has been tried with the previous one."""


@dataclass(frozen=True, kw_only=True)
class ProposalBase:
    """Base configuration, root configuration and limits of a proposal."""

    hyperparameters: Hyperparameters
    """Configuration that changes are relative to: that of the resumed checkpoint's node, or the root's for a
    forced fresh start."""
    default: Hyperparameters
    """The root's configuration: the centre of the expert's bounds."""
    limits: Limits
    n_gpus: int = 1


@dataclass(frozen=True, kw_only=True)
class ChangePlan:
    """A set of moves applied to a base: valid changes and the resulting configuration."""

    move_set: MoveSet
    changes: tuple[Change, ...]
    full: Hyperparameters


def apply_moves(
    base: ProposalBase, move_set: MoveSet, *, without: Iterable[str] = (), strength: float = 1.0
) -> ChangePlan:
    """Moves applied to `base.hyperparameters`, as far as bounds and couplings allow.

    `without` names keys to leave unchanged. `strength` scales every move (2 is twice as far). If no move is
    left, the result is the base itself.
    """
    kept_out = {*without, *_pointless(base.hyperparameters)}
    changes: dict[str, Change] = {}
    for move in move_set.moves:
        if move.key in kept_out or move.key in changes:
            continue
        change = _applied(base, _scaled(move, strength))
        if change is not None and valid(base, [*changes.values(), change]) is not None:
            changes[move.key] = change
    if move_set.needs and move_set.needs not in changes:
        changes = {}
    full = valid(base, changes.values())
    return ChangePlan(
        move_set=move_set, changes=tuple(changes.values()), full=full or dict(base.hyperparameters)
    )


def _pointless(base: Hyperparameters) -> tuple[str, ...]:
    """Keys whose change has no effect in this configuration."""
    return tuple(VERL_SPACE.inert(base))


def _scaled(move: Move, strength: float) -> Move:
    return replace(move, factor=move.factor**strength, shift=move.shift * strength)


def valid(base: ProposalBase, changes: Iterable[Change]) -> dict[str, HyperparameterValue] | None:
    """Configuration after the changes, or None if they break a bound or a coupling."""
    values = {change.key: change.new for change in changes}
    try:
        return complete(base.hyperparameters, values, n_gpus=base.n_gpus, limits=base.limits)
    except HyperparameterError:
        return None


def signature(base: Hyperparameters, full: Hyperparameters) -> frozenset[tuple[str, str]]:
    """Changed keys with their directions: {("...optim.lr", "-"), ...}, without keys that follow others."""
    changed = diff(base, full)
    own = [key for key in changed if key not in MICRO_BATCHES]
    if TRAIN_BATCH in changed:
        own = [key for key in own if key != MINI_BATCH]
    return frozenset((key, _sign(*changed[key])) for key in own)


def _sign(old: HyperparameterValue, new: HyperparameterValue) -> str:
    if is_number(old) and is_number(new):
        return "+" if float(new) > float(old) else "-"
    return str(new)


# --- one move -----------------------------------------------------------------------------------------------


def _applied(base: ProposalBase, move: Move) -> Change | None:
    """The move as a bounded and rounded change of the base, or None if it has no effect."""
    old = base.hyperparameters.get(move.key)
    new = move.to if move.to is not None else _moved(base, move, old)
    if new is None or new == old:
        return None
    return Change(key=move.key, old=old, new=new, reason=move.reason)


def _moved(base: ProposalBase, move: Move, old: HyperparameterValue) -> HyperparameterValue:
    if not is_number(old):
        return None
    if old == 0:
        return _from_zero(base, move)
    return moved_towards(base, move.key, old, old * move.factor + move.shift)


def moved_towards(base: ProposalBase, key: str, old: float, wanted: float) -> float | None:
    """Wanted value of a key, bounded and rounded. None if that is no move from `old` towards it, or reduces a
    capacity."""
    low, high = bounds(base, key)
    # A value already outside the expert's bounds may move back towards them, but not further out.
    low, high = min(low, old), max(high, old)
    bounded = max(min(wanted, high), low)
    new = max(min(rounded_value(key, bounded, upwards=wanted > old), high), low)
    if new == old or (new > old) != (wanted > old) or (key in CAPACITY and new < old):
        return None
    return int(new) if isinstance(old, int) else new


def _from_zero(base: ProposalBase, move: Move) -> HyperparameterValue:
    """Value for a key that is 0 and should grow: the root's, or the table's default. None without either."""
    if move.factor <= 1.0:
        return None
    usual = base.default.get(move.key) or BY_KEY[move.key].default
    return usual if usual else None


def bounds(base: ProposalBase, key: str) -> tuple[float, float]:
    """(smallest, largest) value that moves may give a key."""
    row, usual = BY_KEY[key], base.default.get(key)
    centre = float(usual) if isinstance(usual, int | float) and usual else _default(key)
    low, high = (0.0, math.inf) if row.reach is None else row.reach.around(centre)
    limit = {MAX_RESPONSE: _room(base), TRAIN_BATCH: float(base.limits.n_train or math.inf)}.get(
        key, math.inf
    )
    hard_low, hard_high = row.low if row.low is not None else -math.inf, row.high if row.high else math.inf
    return max(low, hard_low), min(high, limit, hard_high)


def _default(key: str) -> float:
    value = BY_KEY[key].default
    return float(value) if isinstance(value, int | float) else 1.0


def _room(base: ProposalBase) -> float:
    """Longest response that fits into the server's context."""
    prompt = base.hyperparameters.get(MAX_PROMPT)
    room = math.inf
    if base.limits.max_model_len is not None:
        room = base.limits.max_model_len - (prompt if isinstance(prompt, int) else 0)
    return min(room, base.limits.max_response_length or math.inf)


def rounded_value(key: str, value: float, *, upwards: bool) -> float:
    """Value rounded to two digits, or to a usual multiple for batches and lengths."""
    steps: Mapping[str, float] = {
        ROLLOUT_N: 4 if value >= 8 else 2,
        TRAIN_BATCH: 8 if value >= 64 else 4 if value >= 8 else 1,
        MINI_BATCH: 1,
        MAX_RESPONSE: 256 if value >= 2048 else 64 if value >= 256 else 8,
    }
    if key in steps:
        step = steps[key]
        return step * (math.ceil(value / step) if upwards else math.floor(value / step))
    if key in (TEMPERATURE, CLIP_HIGH, CLIP_LOW):
        return round(value, 2)
    return float(f"{value:.1e}") if value else 0.0
