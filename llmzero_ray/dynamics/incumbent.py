"""Comparison of a running phase with the incumbent: differences at equal global step and to its best score.

Both answer the same validation items, so differences are computed item by item if the outcomes of both are
known. The difficulty of the items then cancels out, and with it half of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from llmzero_ray.records import ItemOutcome
from llmzero_ray.records.agents import NodeView, Standing
from llmzero_ray.records.metrics import score_without_items
from llmzero_ray.records.significance import Difference, independent, paired

LoadItems: TypeAlias = Callable[[int], Mapping[int, Sequence[ItemOutcome]]]
"""Node -> outcomes of each of its validations, by step inside the phase. Empty if none were stored."""


@dataclass(frozen=True, kw_only=True)
class _Validated:
    """One validation. `node` and `step` are None if only its score is known."""

    global_step: int
    score: float
    node: int | None = None
    step: int | None = None


def scores_along(chain: Sequence[NodeView]) -> tuple[tuple[int, float], ...]:
    """(global step, validation score) along a resume chain, base first. The first point is the start of the
    first phase, if it was measured. Each phase's curves end where the path leaves it."""
    return tuple((one.global_step, one.score) for one in _along(chain))


def score_to_beat(incumbent: float | None, path: Iterable[tuple[int, float]]) -> float | None:
    """Score that a phase has to beat: the incumbent's, or the base model's while every phase is worse. None
    if there is none. `path` is the incumbent's (`scores_along`); without a score, its best point counts."""
    known = [score for step, score in path if step == 0 or incumbent is None]
    return max(known if incumbent is None else (incumbent, *known), default=None)


def base_problem(score: float | None) -> str:
    """Advice on a base model from whose validation score no phase can learn. Empty for other scores."""
    if score == 0:
        return (
            "the base model is never right (validation 0): check the answers' format, the reward, and the "
            "response cap (docs/data.md)"
        )
    if score == 1:
        return (
            "the base model is always right (validation 1), so that nothing is left to learn: check the "
            "reward, or take harder rows"
        )
    return ""


def standings(
    running: NodeView, chain: Sequence[NodeView], load_items: LoadItems, *, n_val: int
) -> tuple[Standing, ...]:
    """Comparisons of the running phase, at its start and at each validation, with the incumbent. `chain` is
    the incumbent's resume chain, base first, itself last.

    If outcomes of either are missing, both scores are treated as independent samples of `n_val` right or
    wrong answers, which overestimates the error.
    """
    items: dict[int, Mapping[int, Sequence[ItemOutcome]]] = {}

    def outcomes(one: _Validated) -> Sequence[ItemOutcome]:
        if one.node is None or one.step is None:
            return ()
        if one.node not in items:
            items[one.node] = load_items(one.node)
        return items[one.node].get(one.step, ())

    def difference(new: _Validated, old: _Validated) -> Difference:
        exact = paired(outcomes(new), outcomes(old))
        # The outcomes must give the same difference as the scores, which need not be accuracies.
        if exact is not None and math.isclose(exact.gain, new.score - old.score, abs_tol=1e-6):
            return exact
        return _independent(new.score, old.score, n_val)

    path = _along(chain)
    best = _best(path, chain[-1].score if chain else None)
    return tuple(_standing(one, path, best, difference) for one in _along((running,)))


def _along(chain: Sequence[NodeView]) -> list[_Validated]:
    found = []
    for place, view in enumerate(chain):
        curves = view.curves
        points = list(zip(curves.val_steps, curves.val_scores, strict=True))
        if place == 0 and curves.start_score is not None:
            points.insert(0, (0, curves.start_score))
        found += [
            _Validated(global_step=view.base_step + step, score=score, node=view.node, step=step)
            for step, score in points
            if math.isfinite(score)
        ]
    return found


def _best(path: Sequence[_Validated], score: float | None) -> _Validated | None:
    """Last validation on the path with the score to beat. If none has it, a stand-in with that score."""
    target = score_to_beat(score, [(one.global_step, one.score) for one in path])
    if target is None:
        return None
    last = next((one for one in reversed(path) if one.score == target), None)
    return last or _Validated(global_step=path[-1].global_step if path else 0, score=target)


def _standing(
    one: _Validated,
    path: Sequence[_Validated],
    best: _Validated | None,
    difference: Callable[[_Validated, _Validated], Difference],
) -> Standing:
    there = [old for old in path if old.global_step <= one.global_step]
    within = bool(there) and path[-1].global_step >= one.global_step
    return Standing(
        global_step=one.global_step,
        score=one.score,
        at_same_step=difference(one, there[-1]) if within else None,
        to_best=None if best is None else difference(one, best),
    )


def _independent(new: float, old: float, n_val: int) -> Difference:
    found = independent(score_without_items(new, n_val), score_without_items(old, n_val))
    assert found is not None
    return found
