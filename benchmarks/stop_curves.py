"""Synthetic phases for the study of stopping (stop_calls.py): a documented stochastic model, nothing fitted.

A search has a base score, a ceiling and a noise level. A phase starts at the true score `p` of its checkpoint
and is of one kind (shares in `KINDS`); h is the room up to the ceiling, n the phase's steps, t the step:

    steady    p + h a (1 - exp(-t / tau))           a ~ Beta(1.5, 2.5), tau = n lognormal(ln .35, .5)
    plateau   p + N(0, .01) (1 - exp(-t / tau))
    late      p + h a / (1 + exp(-(t - on) / w))    a ~ Beta(3, 2), on ~ U(.25, .75) n, w = n / 30 at least 1;
              train reward, response length and KL run 3 to 8 steps ahead of greedy validation
    collapse  steady up to U(.3, .8) n, then U(.3, .9) of the score lost over n / 10 steps; the KL leads by 3
    drift     p - U(.01, .08) t / n

plus an AR(1) wander of the true score (coefficient .7, innovations .004). Base ~ U(.1, .5) times the ceiling,
ceiling ~ U(.45, .95). A validation rounds `n_val` answers: true score, plus an offset of the item set that is
the same for a whole search (one binomial standard error), plus paired noise of .3 to .55 of a standard error
(items are shared: .6 to 1.2 points at 500 items). The mean reward is .9 of the true score, scattered by .03.
Checkpoints carry their true score, so phases resumed from them begin there.

Not here: searches and figures (stop_calls.py). Nothing in it says how real training behaves.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from llmzero_ray.metrics import Curves

KINDS = {"steady": 0.35, "plateau": 0.25, "late": 0.15, "collapse": 0.15, "drift": 0.10}


@dataclass(frozen=True, kw_only=True)
class World:
    """One search's task."""

    base: float
    ceiling: float
    offset: float
    paired: float
    """Standard deviation of a validation beyond the common offset, in binomial standard errors."""
    n_val: int

    def score(self, true: float, rng: random.Random) -> float:
        """A validation score of a policy with this true score."""
        se = math.sqrt(max(true * (1 - true), 0.01) / self.n_val)
        seen = true + self.offset + rng.gauss(0, self.paired * se)
        return round(self.n_val * min(1.0, max(0.0, seen))) / self.n_val


def make_world(rng: random.Random, n_val: int) -> World:
    """A task drawn at random."""
    ceiling = rng.uniform(0.45, 0.95)
    base = ceiling * rng.uniform(0.1, 0.5)
    offset = rng.gauss(0, math.sqrt(0.25 / n_val))
    return World(base=base, ceiling=ceiling, offset=offset, paired=rng.uniform(0.3, 0.55), n_val=n_val)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase as it would run without early stopping."""

    kind: str
    true: tuple[float, ...]
    """True score at steps 0 .. n."""
    curves: Curves

    def until(self, n: int) -> Curves:
        """What is known after n steps."""
        return self.curves.until(n)


def make_phase(
    world: World, rng: random.Random, *, start: float, base_step: int, n: int, test_freq: int
) -> Phase:
    """A phase of n steps from a checkpoint with the true score `start`, validated every `test_freq` steps."""
    kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
    ahead = rng.randint(3, 8) if kind == "late" else 0
    turn = int(n * rng.uniform(0.3, 0.8)) if kind == "collapse" else n + 1
    clean = _course(kind, rng, start=start, room=max(0.0, world.ceiling - start), n=n + ahead, turn=turn)
    wander, true = 0.0, [start]
    for level in clean[1 : n + 1]:
        wander = 0.7 * wander + rng.gauss(0, 0.004)
        true.append(min(0.995, max(0.005, level + wander)))
    # What sampling shows is what greedy answers will show `ahead` steps later.
    sampled = [clean[t + ahead] for t in range(1, n + 1)]
    moved = [abs(level - start) for level in sampled]
    fall = [max(0, t - turn + 3) for t in range(1, n + 1)]
    grows = 8.0 if kind == "late" else 1.0
    metrics = {
        "critic/score/mean": [min(1.0, max(0.0, 0.9 * s + rng.gauss(0, 0.03))) for s in sampled],
        "actor/kl_loss": [
            0.001 * t + 0.2 * m + 0.04 * f + abs(rng.gauss(0, 0.003))
            for t, (m, f) in enumerate(zip(moved, fall, strict=True), 1)
        ],
        "actor/entropy": [max(0.02, 0.6 - 0.5 * m + rng.gauss(0, 0.01)) for m in moved],
        "actor/grad_norm": [0.5 + 0.1 * f + abs(rng.gauss(0, 0.05)) for f in fall],
        "response_length/mean": [
            6 + grows * (s - start) * (kind in ("late", "steady")) + rng.gauss(0, 0.1) for s in sampled
        ],
    }
    val = {t: world.score(true[t], rng) for t in range(test_freq, n + 1, test_freq)}
    curves = Curves(
        steps=tuple(range(1, n + 1)),
        base_step=base_step,
        metrics={name: tuple(values) for name, values in metrics.items()},
        val_steps=tuple(val),
        val_scores=tuple(val.values()),
        start_score=world.score(start, rng),
    )
    return Phase(kind=kind, true=tuple(true), curves=curves)


def _course(kind: str, rng: random.Random, *, start: float, room: float, n: int, turn: int) -> list[float]:
    """The true score at steps 0 .. n without wander."""
    tau = n * math.exp(rng.gauss(math.log(0.35), 0.5))
    if kind == "plateau":
        shift = rng.gauss(0, 0.01)
        return [start + shift * (1 - math.exp(-t / tau)) for t in range(n + 1)]
    if kind == "drift":
        lost = rng.uniform(0.01, 0.08)
        return [max(0.005, start - lost * t / n) for t in range(n + 1)]
    if kind == "late":
        gain, onset, width = room * rng.betavariate(3, 2), n * rng.uniform(0.25, 0.75), max(1.0, n / 30)
        return [start + gain / (1 + math.exp(-(t - onset) / width)) for t in range(n + 1)]
    gain = room * rng.betavariate(1.5, 2.5)
    level = [start + gain * (1 - math.exp(-t / tau)) for t in range(n + 1)]
    if kind == "collapse":
        share = rng.uniform(0.3, 0.9)
        level = [x * (1 - share * min(1.0, max(0, t - turn) / (n / 10))) for t, x in enumerate(level)]
    return level
