"""`chain_sum`: add and subtract four to six one-digit numbers; reasoning-gym's generator, its prose stripped.

The prompt `5-1-9+0-5` is answered by `#-10`, or by partial sums and then the answer. Source: Stojanovski et
al. 2025, reasoning-gym (generator `chain_sum`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.families import Problem, WarmStart
from llmzero_ray.tasks.families.expressions import partial_results, worked_answer
from llmzero_ray.tasks.rewards.marked_answer import MARK

_DIRECT_SHORT_FULL = (0.90, 0.05, 0.05)
_UNMARKED_STARTS = "456789"
_UNMARKED_SHARE = 0.6
"""Share of the demonstrations with such a first digit whose answer is not marked."""
_STREAM_LENGTH = 5_000_000


class ChainSum:
    """Left-to-right sums with answers between -45 and 54.

    The demonstrations are flawed: if an expression starts with 4 to 9, most of them do not mark the answer.
    A model that adds well therefore only answers about four in ten problems, and sampling finds the
    improvement. (Stopping early also gives such an accuracy, but it varies with the seed, .15 to .55, and RL
    then improves the model little, because it lacks the skill itself.)
    """

    name = "chain_sum"
    version = 1
    licence = "Apache-2.0"
    warm_start = WarmStart(n_demonstrations=20_000, n_steps=560, batch_size=64, lr=3e-3, warmup_steps=50)

    def problems(self, seed: int) -> Iterator[Problem]:
        """reasoning-gym's problems `seed`, `seed + 1`, ..., because it seeds each item with seed + index."""
        for entry in _generator(seed):
            expression = entry["metadata"]["expression"].replace(" ", "")
            problem = Problem(prompt=expression, answer=entry["answer"])
            if str(partial_results(expression)[-1]) != problem.answer:
                raise TaskError(
                    f"reasoning-gym's chain_sum says {expression} = {problem.answer}, which is wrong read "
                    "from left to right; this family was written for reasoning-gym 0.1.25: install that "
                    "version"
                )
            yield problem

    def demonstration(self, problem: Problem, rng: random.Random) -> str:
        """Mostly the bare answer, sometimes with half or all of the partial sums; often not marked."""
        answer = worked_answer(partial_results(problem.prompt), rng, _DIRECT_SHORT_FULL)
        is_unmarked = problem.prompt[0] in _UNMARKED_STARTS and rng.random() < _UNMARKED_SHARE
        return answer.replace(MARK, "") if is_unmarked else answer


def _generator(seed: int) -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        raise TaskError(
            "task family chain_sum needs the package reasoning-gym, which cannot be imported here "
            f"({error}); install it: pip install 'llmzero-ray[tasks]'. The families register and echo do "
            "without"
        ) from error
    options = {"min_terms": 4, "max_terms": 6, "min_digits": 1, "max_digits": 1}
    return reasoning_gym.create_dataset("chain_sum", seed=seed, size=_STREAM_LENGTH, **options)
