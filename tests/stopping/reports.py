"""What phases publish, as random as real ones and worse: gaps, values that are not finite, validations,
collapses, metrics that come and go. The same seed gives the same points everywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from llmzero_ray.records import MetricPoint
from llmzero_ray.records.metrics import KLS, REWARDS

LEVELS = {
    "critic/score/mean": (0.5, 0.15),
    "critic/rewards/mean": (0.4, 0.1),
    "actor/kl_loss": (0.02, 0.6),
    "actor/ppo_kl": (0.001, 0.2),
    "actor/entropy": (0.7, 0.1),
    "actor/grad_norm": (0.5, 0.0),
    "actor/lr": (1e-4, 0.0),
    "critic/advantages/max": (0.5, 0.0),
    "critic/advantages/min": (-0.5, 0.0),
    "response_length/max": (12.0, 24.0),
    "response_length/clip_ratio": (0.1, 0.36),
    "response_length/mean": (8.0, 16.0),
    "actor/pg_loss": (0.1, 0.3),
    "timing_s/step": (30.0, 45.0),
}
"""Metric -> its level before and after it goes wrong, if it does."""

QUIET = {"actor/kl_loss": 1e-3, "actor/lr": 10.0}
"""Metric -> factor in a phase that stays near the base model at its full learning rate."""


def published(seed: int) -> list[MetricPoint]:
    """The points of one phase of up to 60 steps."""
    random = Random(seed)
    n, noise = random.randint(1, 60), random.choice([0.0, 0.02, 0.2, 0.3, 0.4])
    quiet = seed % 8 == 7  # near the base model, and validation stays as it is
    n = 60 if quiet else n
    wrong = {name: random.randint(1, n) for name in LEVELS if random.random() < 0.5}
    if random.random() < 0.5:  # reward and KL together, as in a collapse
        wrong |= dict.fromkeys((*REWARDS, *KLS), random.randint(n // 3, n))
    late = {name: random.randint(1, n) for name in LEVELS if random.random() < 0.1}
    gaps, broken = random.choice([0.0, 0.1, 0.5]), random.choice([0.0, 0.0, 0.01])
    lost, lost_at, lost_for = random.choice(tuple(LEVELS)), random.randint(1, 4 * n), random.randint(1, 3)
    base = random.choice([0, 0, 40])
    points = []
    for step in range(random.choice([0, 1]), n + 1):
        metrics = {}
        for name, (sound, unsound) in LEVELS.items():
            if step < late.get(name, 0) or random.random() < gaps:
                continue
            level = unsound if step >= wrong.get(name, n + 1) else sound
            value = level * (1 + noise * random.uniform(-1, 1))
            if random.random() < broken or (name == lost and lost_at <= step < lost_at + lost_for):
                value = random.choice([math.nan, math.inf, -math.inf])
            metrics[name] = value * QUIET.get(name, 1.0) if quiet else value
        validated = step == 0 or random.random() < 0.2
        points.append(
            MetricPoint(
                node=1,
                attempt=0,
                step=step,
                global_step=base + step,
                wall_s=30.0 * step,
                metrics=metrics,
                val_score=(0.5 if quiet else random.random()) if validated else None,
            )
        )
    return points


def sound(n: int) -> list[MetricPoint]:
    """The points of a phase of n steps in which nothing goes wrong."""
    levels = {name: before for name, (before, _) in LEVELS.items()}
    return [
        MetricPoint(
            node=1,
            attempt=0,
            step=step,
            global_step=step,
            wall_s=30.0 * step,
            metrics={
                name: level * (1 + 0.1 * math.sin(step + i)) for i, (name, level) in enumerate(levels.items())
            },
            val_score=0.5 if step % 5 == 0 else None,
        )
        for step in range(n + 1)
    ]


def polled(points: Sequence[MetricPoint], seed: int) -> list[tuple[MetricPoint, ...]]:
    """The batches in which a reader gets them that polls at random moments of the phase."""
    random = Random(seed)
    batches, cursor = [], 0
    for n, point in enumerate(points, start=1):
        if random.random() < 0.3 or point is points[-1]:
            batches.append(tuple(points[cursor:n]))
            cursor = n
    return batches
