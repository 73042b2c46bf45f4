"""`register`: run three to eight operations of a register machine modulo 10.

The prompt `7+4*3-9..` gives the start value and the operations, padded on the right to eight of them: a tiny
model can only learn the chain if the distance between an operation and the step that answers it is constant.
The response is `#4`, or the register after each operation and then the answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from llmzero_ray.prepared.families import Problem, WarmStart
from llmzero_ray.tasks.families.expressions import partial_results, worked_answer

_WORKED_STARTS = "0123"
_MOSTLY_WORKED, _MOSTLY_DIRECT = (0.05, 0.05, 0.90), (0.80, 0.05, 0.15)
"""Probabilities of the bare answer, every second intermediate result, and all of them."""
_MIN_OPERATIONS, _MAX_OPERATIONS = 3, 8
_PADDING = ".."


class Register:
    """A machine with one decimal register.

    A tiny model runs the machine well if it writes the register down, and hardly better than chance if it
    does not. The demonstrations write it down if the start value is below 4, and otherwise mostly jump to the
    answer. About half of the problems are then answered, and sampling finds the habit that solves the rest.
    """

    name = "register"
    version = 2
    licence = "Apache-2.0"
    warm_start = WarmStart(n_demonstrations=20_000, n_steps=800, batch_size=96, lr=2e-3, warmup_steps=50)

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
        odds = _MOSTLY_WORKED if problem.prompt[0] in _WORKED_STARTS else _MOSTLY_DIRECT
        return worked_answer(partial_results(problem.prompt, modulus=10), rng, odds)
