"""Sums of five to eight one-digit numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.suite.families.common import Mix, plan_of
from llmzero_ray.prepared.families import Problem, WarmStart
from llmzero_ray.tasks.families.expressions import partial_results, worked_answer


@dataclass(frozen=True, kw_only=True)
class LongSums:
    """Sums of five to eight one-digit numbers; nothing of them is forgotten in the demonstrations."""

    name: str = "sum_long"
    version: int = 1
    licence: str = "CC0-1.0"
    warm_start: WarmStart = field(default_factory=lambda: plan_of(n_steps=800, batch_size=64, lr=3e-3))
    mix: Mix = (0.70, 0.05, 0.25)

    def problems(self, seed: int) -> Iterator[Problem]:
        """An endless stream."""
        while True:
            rng = random.Random(seed)
            numbers = [str(rng.randrange(10)) for _ in range(rng.randint(5, 8))]
            expression = numbers[0] + "".join(rng.choice("+-") + number for number in numbers[1:])
            yield Problem(prompt=expression, answer=str(partial_results(expression)[-1]))
            seed += 1

    def demonstration(self, problem: Problem, rng: random.Random) -> str:
        """The bare answer, or with half or all of the partial sums."""
        return worked_answer(partial_results(problem.prompt), rng, self.mix)
