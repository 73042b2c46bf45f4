"""Step sizes that success lengthens and failure reverses, replayed from the transitions of a search.

The rule is the 1/5 success rule per hyper-parameter: what a phase changed is a success when its paired gain
stands out upwards, a failure when it stands out downwards; between them nothing is learnt. A phase that
changed several counts for each by its share of the move. Nothing is kept between two requests: the state is
made anew from the nodes, in their order, so that a replay of the journal finds the same.

Not here: the moves themselves (levers.py, proposer.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from llmzero_ray.agents.evidence import Attempt
from llmzero_ray.agents.lessons import Lesson
from llmzero_ray.agents.local.levers import Lever

GROW, SHRINK = 1.5, 0.5
STANDS_OUT = 0.5
"""Errors from which a gain or a loss teaches something: a wrong one is soon contradicted."""
REVERSED_FROM = 0.3
"""Share of a failed move from which a hyper-parameter turns round."""
_NARROWEST, _WIDEST = 0.25, 3.0
"""Bounds of a step, in first steps."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What is known of one hyper-parameter."""

    size: float
    """On the lever's scale."""
    direction: int = 0
    """1 up, -1 down, 0: nothing is known."""
    successes: float = 0.0
    failures: float = 0.0
    last: str = ""
    """The transition that settled the direction, in words."""


@dataclass(frozen=True, kw_only=True)
class Transition:
    """What one phase moved and what came of it."""

    name: str
    moved: dict[str, float]
    """Key -> distance on its lever's scale; without what stayed."""
    z: float
    """Gain over what else was tried from there (0 where nothing was), in errors."""


def transitions(
    levers: Sequence[Lever], attempts: Sequence[Attempt], lessons: Iterable[Lesson] = ()
) -> tuple[Transition, ...]:
    """The finished phases that moved a lever: those of earlier searches, then this one's by number."""
    found = []
    for lesson in lessons:
        old = {key: pair[0] for key, pair in lesson.changes.items()}
        new = {key: pair[1] for key, pair in lesson.changes.items()}
        moved = {lever.key: d for lever in levers if (d := lever.moved(old, new))}
        if moved and lesson.error > 0:
            found.append(Transition(name=lesson.name, moved=moved, z=lesson.gain / lesson.error))
    for attempt in attempts:
        moved = {lever.key: d for lever in levers if (d := lever.moved(attempt.base, attempt.full))}
        z = _z(attempt, attempts)
        if moved and z is not None:
            found.append(Transition(name=f"node {attempt.node}", moved=moved, z=z))
    return tuple(found)


def _z(attempt: Attempt, known: Sequence[Attempt]) -> float | None:
    if attempt.failed:
        return -3.0
    if attempt.gain is None or attempt.doubted:
        return None
    others = [
        other.gain
        for other in known
        if other.source == attempt.source
        and other.node != attempt.node
        and other.gain is not None
        and not other.doubted
    ]
    usual = fmean(gain.value for gain in others) if others else 0.0
    error = attempt.gain.error * (math.sqrt(1 + 1 / len(others)) if others else 1.0)
    return (attempt.gain.value - usual) / error if error > 0 else 0.0


def steps(levers: Sequence[Lever], history: Iterable[Transition]) -> dict[str, Step]:
    """Key -> step after all transitions."""
    found = {lever.key: Step(size=lever.step) for lever in levers}
    first = {lever.key: lever.step for lever in levers}
    for transition in history:
        lengths = {key: abs(d) / first[key] for key, d in transition.moved.items()}
        total = sum(lengths.values())
        for key, distance in transition.moved.items():
            if abs(transition.z) >= STANDS_OUT:
                share = lengths[key] / total
                found[key] = _learnt(found[key], first[key], distance, share, transition)
    return found


def _learnt(step: Step, first: float, distance: float, share: float, transition: Transition) -> Step:
    sign = 1 if distance > 0 else -1
    came = f"{transition.name} moved it {'up' if sign > 0 else 'down'} and "
    if transition.z > 0:
        size = min(step.size * GROW**share, _WIDEST * first)
        return replace(
            step, size=size, direction=sign, successes=step.successes + share, last=came + "gained"
        )
    size = max(step.size * SHRINK**share, _NARROWEST * first)
    turned = share >= REVERSED_FROM
    return replace(
        step,
        size=size,
        direction=-sign if turned else step.direction,
        failures=step.failures + share,
        last=came + "lost" if turned else step.last,
    )
