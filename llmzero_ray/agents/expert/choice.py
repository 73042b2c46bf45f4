"""Chooses a set of moves: the catalogue's order, corrected by earlier attempts and their gains.

Attempts from the same checkpoint count most, wherever they are in the tree; other transitions of the search
count less. A phase that already exists, finished or not, is never proposed again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from llmzero_ray.agents.expert.apply_moves import STRENGTHS, ChangePlan, ProposalBase, apply_moves, signature
from llmzero_ray.agents.expert.moves import GENERAL, UNCHANGED, MoveSet, move_sets, suited
from llmzero_ray.dynamics.diagnosis import Finding
from llmzero_ray.dynamics.features import Dynamics
from llmzero_ray.dynamics.gains import CLEAR, Attempt
from llmzero_ray.hyperparameters import mentioned_keys
from llmzero_ray.hyperparameters.verl_keys import LR
from llmzero_ray.records import Hyperparameters

REPEATED = 0.6
"""Minimum share of common (key, direction) pairs for two sets of changes to count as the same attempt."""
PER_RANK = 0.5
"""Evidence, in standard errors, that outweighs one rank in the catalogue's order."""
BELOW_DESTROYING = 1 / 8
"""Limit for raising the learning rate, as a share of a rate that destroyed the base model."""
BELOW_LARGEST = 1 / 4
"""The same limit as a share of the largest rate at which a phase from the base model lost. It is lower than
`BELOW_LOSING` because half of that rate lost as well."""
BELOW_LOSING = 1 / 2
"""The same limit as a share of any rate that lost."""
ELSEWHERE = 0.3
"""Weight of a transition from another checkpoint."""
OPPOSITE = 0.3
"""Weight of a loss as evidence for the opposite move."""
_MOST = 3.0
"""Maximum standard errors that one attempt contributes."""

Signature = frozenset[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A finding, the set of moves chosen for it, and the resulting configuration."""

    finding: Finding
    plan: ChangePlan


@dataclass(frozen=True, kw_only=True)
class Tried:
    """Earlier attempts, relative to one checkpoint."""

    here: tuple[Attempt, ...]
    """Attempts from this checkpoint: other nodes, and the node itself if it trained past the checkpoint."""
    elsewhere: tuple[Attempt, ...]
    losing: Mapping[float, bool] = field(default_factory=dict)
    """Learning rate at which a phase from the base model lost accuracy -> whether it destroyed the model."""
    lowest_losing_raise: float | None = None
    """Lowest learning rate at which a phase lost accuracy after raising it."""

    @property
    def rate_limit(self) -> float | None:
        """Upper limit for raising the learning rate, or None if there is no limit."""
        if not self.losing:
            return None
        limits = [rate * (BELOW_DESTROYING if broke else BELOW_LOSING) for rate, broke in self.losing.items()]
        return min(*limits, max(self.losing) * BELOW_LARGEST)

    def has_cut_the_rate(self, base: Hyperparameters) -> bool:
        """Whether a larger learning rate than that of `base` lost before."""
        rate = base.get(LR)
        return isinstance(rate, float) and any(rate < known for known in self.losing)

    def is_too_fast(self, base: Hyperparameters, full: Hyperparameters) -> bool:
        """Whether a change raises the learning rate beyond what the losses of earlier phases allow."""
        old, new = base.get(LR), full.get(LR)
        if not isinstance(old, float) or not isinstance(new, float) or new <= old:
            return False
        limit, lost = self.rate_limit, self.lowest_losing_raise
        return (limit is not None and new > limit) or (lost is not None and new >= lost)

    def is_copy(self, full: Hyperparameters) -> bool:
        """Whether a phase from this checkpoint with this configuration already exists."""
        return any(dict(attempt.full) == dict(full) for attempt in self.here)

    def support(self, base: Hyperparameters, full: Hyperparameters) -> float:
        """Evidence, in standard errors, for changing `base` (which trained the checkpoint) to `full`.
        Positive if similar moves gained or opposite ones lost."""
        wanted = signature(base, full)
        total = 0.0
        for attempt in self.here:
            z = _z(attempt)
            found = _blamed(signature(base, attempt.full), z)
            total += _worth(alignment(wanted, found), z or 0.0)
            if overlap(wanted, found) >= REPEATED and (z is None or z < CLEAR):
                total -= 1.0
        known = [(attempt, z) for attempt in self.elsewhere if (z := _z(attempt)) is not None]
        aligned = (_worth(alignment(wanted, _blamed(signature(a.base, a.full), z)), z) for a, z in known)
        return total + ELSEWHERE * sum(aligned) / math.sqrt(max(1, len(known)))


def _blamed(found: Signature, z: float | None) -> Signature:
    """Moves that may explain an attempt's gain. A smaller learning rate does not explain a loss: it learns
    more slowly, and undoes nothing."""
    return found - {(LR, "-")} if z is not None and z < 0 else found


def _worth(aligned: float, z: float) -> float:
    # A loss in one direction says little about the opposite one: the settings may have been right before.
    return aligned * z * (OPPOSITE if aligned < 0 and z < 0 else 1.0)


def _z(attempt: Attempt) -> float | None:
    if attempt.failed:
        return -_MOST
    return None if attempt.gain is None or attempt.doubted else max(-_MOST, min(_MOST, attempt.gain.z))


def choose(
    base: ProposalBase,
    findings: Sequence[Finding],
    tried: Tried,
    dynamics: Dynamics,
    rejected: str | None,
    *,
    unchanged: MoveSet = UNCHANGED,
) -> Choice:
    """Best supported set of moves. Keys that the message `rejected` names are left out.

    `unchanged` is the empty set of moves, with the reason that fits this start. If nothing may change and the
    phase already exists, it is proposed anyway, and the coordinator rejects it with a reason.
    """
    without = mentioned_keys(rejected)
    ranked = _ranked(base, findings, tried, dynamics, without, unchanged)
    if rejected and len(ranked) > 1:
        # The rejection did not alter the first choice: take the next one.
        before = _ranked(base, findings, tried, dynamics, (), unchanged)
        if before and ranked[0].plan.full == before[0].plan.full:
            ranked = ranked[1:]
    as_it_is = apply_moves(base, unchanged)
    return ranked[0] if ranked else Choice(finding=findings[0], plan=as_it_is)


def _ranked(
    base: ProposalBase,
    findings: Sequence[Finding],
    tried: Tried,
    dynamics: Dynamics,
    without: Iterable[str],
    unchanged: MoveSet,
) -> list[Choice]:
    choices = [
        choice
        for choice in _choices(base, findings, tried, dynamics, tuple(without), unchanged)
        if not tried.is_copy(choice.plan.full)
        and not tried.is_too_fast(base.hyperparameters, choice.plan.full)
    ]
    scores = [
        tried.support(base.hyperparameters, choice.plan.full) - PER_RANK * rank
        for rank, choice in enumerate(choices)
    ]
    order = sorted(range(len(choices)), key=lambda i: (-scores[i], i))
    return [choices[i] for i in order]


def _choices(
    base: ProposalBase,
    findings: Sequence[Finding],
    tried: Tried,
    dynamics: Dynamics,
    without: Sequence[str],
    unchanged: MoveSet,
) -> Iterator[Choice]:
    """Every set of every finding, "unchanged", the general sets, and then the non-empty sets again with
    larger steps."""
    greedy = None if dynamics.validation is None else dynamics.validation.last
    again = tried.has_cut_the_rate(base.hyperparameters)
    sets = [(finding, one) for finding in findings for one in move_sets(finding, again=again)]
    # A dead run needs more movement: general sets might slow it further, and unchanged it stays dead.
    if findings[0].kind != "dead":
        unfit = findings[0].kind in ("doubtful", "never_ends", "entropy_climb")
        sets += [(findings[0], one) for one in (GENERAL if unfit else (UNCHANGED, *GENERAL))]
    for strength in STRENGTHS:
        for finding, wanted in sets:
            move_set = unchanged if wanted is UNCHANGED else suited(wanted, greedy, dynamics.sampled)
            plan = apply_moves(base, move_set, without=without, strength=strength)
            if plan.changes or (wanted is UNCHANGED and strength == STRENGTHS[0]):
                yield Choice(finding=finding, plan=replace(plan, move_set=move_set))


def overlap(a: Signature, b: Signature) -> float:
    """Share of (key, direction) pairs that two sets of changes have in common. 1 for two empty sets."""
    return len(a & b) / len(a | b) if a | b else 1.0


def alignment(a: Signature, b: Signature) -> float:
    """Similarity from -1 (opposite) to 1 (same): common pairs minus opposite ones, as a share of all keys.

    Two empty sets ("unchanged" twice) are the same.
    """
    if not a and not b:
        return 1.0
    other = dict(b)
    same = len(a & b)
    opposite = sum({sign, other.get(key)} == {"+", "-"} for key, sign in a)
    return (same - opposite) / len({key for key, _ in a | b})
