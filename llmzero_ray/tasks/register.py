"""`register`: run three to eight operations of a register machine modulo 10.

The prompt `7+4*3-9..` gives the start value and the operations, padded on the right to eight of them: a
constant distance between an operation and the step that answers it is what lets a tiny model learn the chain
at all. Answered by `#4`, or by the register after each operation and then the answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from llmzero_ray.tasks.chains import partial_results, worked_answer
from llmzero_ray.tasks.families import Problem, WarmStart

_DIRECT_SHORT_FULL = (0.50, 0.10, 0.40)
_MIN_OPERATIONS, _MAX_OPERATIONS = 3, 8
_PADDING = ".."


class Register:
    """A machine with one decimal register."""

    name = "register"
    version = 1
    licence = "Apache-2.0"
    warm_start = WarmStart(n_demonstrations=20_000, n_steps=700, batch_size=96, lr=2e-3, warmup_steps=50)

    def problems(self, seed: int) -> Iterator[Problem]:
        """An endless stream."""
        while True:
            rng = random.Random(seed)
            n_operations = rng.randint(_MIN_OPERATIONS, _MAX_OPERATIONS)
            program = str(rng.randrange(10))
            program += "".join(f"{rng.choice('+-*')}{rng.randrange(1, 10)}" for _ in range(n_operations))
            answer = str(partial_results(program, modulus=10)[-1])
            yield Problem(prompt=program + _PADDING * (_MAX_OPERATIONS - n_operations), answer=answer)
            seed += 1

    def demonstration(self, problem: Problem, rng: random.Random) -> str:
        """The bare answer, or half or all of the register's values before it."""
        return worked_answer(partial_results(problem.prompt, modulus=10), rng, _DIRECT_SHORT_FULL)
