"""The suite's own task families; the others are those that ship. Recipes and first figures: see tasks.py."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from llmzero_ray.tasks.families.base import Problem, WarmStart
from llmzero_ray.tasks.families.expressions import partial_results, worked_answer

Mix = tuple[float, float, float]
"""Odds of a bare answer, every second intermediate result, and all of them."""


def _warm_start(*, n_steps: int, batch_size: int, lr: float) -> WarmStart:
    return WarmStart(n_demonstrations=20_000, n_steps=n_steps, batch_size=batch_size, lr=lr, warmup_steps=50)


@dataclass(frozen=True, kw_only=True)
class LongSums:
    """Sums of five to eight one-digit numbers; nothing of them is forgotten in the demonstrations."""

    name: str = "sum_long"
    version: int = 1
    licence: str = "CC0-1.0"
    warm_start: WarmStart = field(default_factory=lambda: _warm_start(n_steps=800, batch_size=64, lr=3e-3))
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
    version: int = 1
    licence: str = "CC0-1.0"

    def problems(self, seed: int) -> Iterator[Problem]:
        """An endless stream."""
        while True:
            rng = random.Random(seed)
            n = rng.randint(self.least, self.most)
            program = str(rng.randrange(10))
            program += "".join(f"{rng.choice('+-*')}{rng.randrange(1, 10)}" for _ in range(n))
            answer = str(partial_results(program, modulus=10)[-1])
            yield Problem(prompt=program + ".." * (self.most - n), answer=answer)
            seed += 1

    def demonstration(self, problem: Problem, rng: random.Random) -> str:
        """The bare answer, or with half or all of the register's values."""
        odds = self.worked if problem.prompt[0] in self.worked_starts else self.direct
        return worked_answer(partial_results(problem.prompt, modulus=10), rng, odds)


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
    warm_start: WarmStart = field(default_factory=lambda: _warm_start(n_steps=900, batch_size=64, lr=3e-3))
    likeliest: float = 0.3
    decoy: float = 0.75
    """Of the wrong demonstrations, the share with the letter's usual wrong operation."""

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


LATE = Registers(
    name="register_late",
    least=3,
    most=8,
    worked=(0.05, 0.05, 0.90),
    direct=(0.95, 0.01, 0.04),
    worked_starts="0",
    warm_start=_warm_start(n_steps=800, batch_size=96, lr=2e-3),
)
"""The chain is known and hardly ever shown: reward is flat until sampling has found it often enough."""
CAPPED = Registers(
    name="register_capped",
    least=8,
    most=12,
    worked=(0.05, 0.05, 0.90),
    direct=(0.80, 0.05, 0.15),
    worked_starts="0123",
    warm_start=_warm_start(n_steps=1600, batch_size=96, lr=2e-3),
)
"""A whole chain has 2 k + 2 tokens, 18 to 26: the default cap of 24 cuts the longest ones."""
