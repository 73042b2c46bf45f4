"""Letters that stand for operations, most of them shown wrong."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from benchmarks.suite.families.common import plan_of
from llmzero_ray.prepared.families import Problem, WarmStart

_OPERATIONS: tuple[Callable[[int, int], int], ...] = (
    lambda a, b: (a + b) % 10,
    lambda a, b: (a - b) % 10,
    lambda a, b: (b - a) % 10,
    lambda a, b: (a * b) % 10,
    max,
    min,
    lambda a, _: a,
    lambda _, b: b,
)
_N_CODES = 24


@dataclass(frozen=True, kw_only=True)
class OperationCodes:
    """`q47,19`: one of 24 letters names one of eight operations, taken digit by digit on two-digit numbers.

    Demonstrations show a letter's right operation with a probability that falls from `likeliest` by letter to
    a twenty-fifth of it, else mostly one and the same wrong operation: reward is sparse, and most of it is in
    letters that are rarely answered right.
    """

    name: str = "codes"
    version: int = 1
    licence: str = "CC0-1.0"
    warm_start: WarmStart = field(default_factory=lambda: plan_of(n_steps=900, batch_size=64, lr=3e-3))
    likeliest: float = 0.3
    decoy: float = 0.75
    """Share of the wrong demonstrations that have the letter's usual wrong operation."""

    def problems(self, seed: int) -> Iterator[Problem]:
        """An endless stream."""
        right = self._meanings()
        while True:
            rng = random.Random(seed)
            letter = rng.choice(string.ascii_lowercase[:_N_CODES])
            a, b = (f"{rng.randrange(100):02d}" for _ in range(2))
            yield Problem(prompt=f"{letter}{a},{b}", answer=_by_digit(right[letter][0], a, b))
            seed += 1

    def demonstration(self, problem: Problem, rng: random.Random) -> str:
        """The right answer, the letter's usual wrong one, or any operation's."""
        letter, (a, b) = problem.prompt[0], problem.prompt[1:].split(",")
        rank = string.ascii_lowercase.index(letter)
        if rng.random() < self.likeliest * 0.04 ** (rank / (_N_CODES - 1)):
            return f"#{problem.answer}"
        wrong = self._meanings()[letter][1]
        operation = wrong if rng.random() < self.decoy else rng.randrange(len(_OPERATIONS))
        return f"#{_by_digit(operation, a, b)}"

    @staticmethod
    def _meanings() -> dict[str, tuple[int, int]]:
        """Letter -> (its operation, its usual wrong one)."""
        rng, found = random.Random(5), {}
        for letter in string.ascii_lowercase[:_N_CODES]:
            right, wrong = rng.sample(range(len(_OPERATIONS)), 2)
            found[letter] = (right, wrong)
        return found


def _by_digit(number: int, a: str, b: str) -> str:
    pairs = zip(map(int, a), map(int, b), strict=True)
    return "".join(str(_OPERATIONS[number](x, y)) for x, y in pairs)
