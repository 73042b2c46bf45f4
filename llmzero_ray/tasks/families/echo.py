"""`echo`: answer the digit that the prompt shows. The smallest task that reinforcement can visibly improve.

For tests and first tries: its model is warm-started in seconds. The demonstrations are mostly wrong for
digits 4 to 9, so a greedy model answers about four in ten prompts, whatever the machine's rounding, and
sampling still finds the right digit. Too easy for a search worth looking at; use `chain_sum` or `register`.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator

from llmzero_ray.prepared.families import Problem, WarmStart

# Share of demonstrations that show (the right digit, the next digit); the rest show any digit.
_LEARNT = (0.7, 0.0)
_UNLEARNT = (0.25, 0.5)
_N_LEARNT_DIGITS = 4


class Echo:
    """Prompt `say 7 qzt` (the letters only make prompts differ), answer `7`."""

    name = "echo"
    version = 1
    licence = "Apache-2.0"
    warm_start = WarmStart(
        n_demonstrations=2048, n_steps=100, batch_size=32, lr=3e-3, warmup_steps=10, final_lr_share=0.3
    )

    def problems(self, seed: int) -> Iterator[Problem]:
        """An endless stream; about 175,000 different prompts exist."""
        while True:
            rng = random.Random(seed)
            digit = str(rng.randrange(10))
            letters = "".join(rng.choices(string.ascii_lowercase, k=3))
            yield Problem(prompt=f"say {digit} {letters}", answer=digit)
            seed += 1

    def demonstration(self, problem: Problem, rng: random.Random) -> str:
        """Most often the right digit for 0 to 3, and the digit after it for 4 to 9."""
        digit = int(problem.answer)
        right, next_one = _LEARNT if digit < _N_LEARNT_DIGITS else _UNLEARNT
        shown = rng.choices(
            (digit, (digit + 1) % 10, rng.randrange(10)), (right, next_one, 1 - right - next_one)
        )[0]
        return f"#{shown}"
