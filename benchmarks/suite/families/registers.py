"""Programs of a register machine, with lengths and demonstrations of their own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.suite.families.common import Mix
from llmzero_ray.prepared.families import Problem, WarmStart
from llmzero_ray.tasks.families.expressions import partial_results, worked_answer


@dataclass(frozen=True, kw_only=True)
class Registers:
    """The machine of the shipped family `register`, with other lengths and demonstrations."""

    name: str
    least: int
    most: int
    """Operations; programs are padded to `most`."""
    worked: Mix
    direct: Mix
    worked_starts: str
    """Start values whose demonstrations follow `worked`."""
    warm_start: WarmStart
    gap: str = ""
    """After each operation and each value shown, which keeps them one distance apart: makes answers long."""
    version: int = 1
    licence: str = "CC0-1.0"

    def problems(self, seed: int) -> Iterator[Problem]:
        """An endless stream."""
        while True:
            rng = random.Random(seed)
            n = rng.randint(self.least, self.most)
            program = str(rng.randrange(10))
            program += "".join(f"{rng.choice('+-*')}{rng.randrange(1, 10)}{self.gap}" for _ in range(n))
            answer = str(partial_results(program, modulus=10)[-1])
            yield Problem(prompt=program + f"..{self.gap}" * (self.most - n), answer=answer)
            seed += 1

    def demonstration(self, problem: Problem, rng: random.Random) -> str:
        """The bare answer, or with half or all of the register's values."""
        odds = self.worked if problem.prompt[0] in self.worked_starts else self.direct
        answer = worked_answer(partial_results(problem.prompt, modulus=10), rng, odds)
        return answer.replace(",", f",{self.gap}")
