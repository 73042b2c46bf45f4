"""Which examples a training step learns from, and which worker passes which of them: numbers in, numbers out.

A step's batch depends on the seed and the step alone, never on the number of workers, so that runs on other
hardware see the same rows and a run that was interrupted goes on where it was. Not here: the examples
(examples.py), the passes (training.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

Rows: TypeAlias = Sequence[int]
"""Numbers of examples, counted from 0."""


def step_rows(n: int, batch_size: int, seed: int, step: int) -> list[int]:
    """The rows of the batch at `step` (from 1), of `n` examples.

    The batches cut an endless row of permutations into pieces, one permutation per epoch: after `n` draws
    every example was drawn once, also where a batch begins in one epoch and ends in the next.
    """
    first = (step - 1) * batch_size
    return [int(_permutation(n, seed, place // n)[place % n]) for place in range(first, first + batch_size)]


def shares(rows: Rows, lengths: Sequence[int], n_workers: int, micro_batch_size: int) -> list[list[Rows]]:
    """Micro-batches by worker, shape (n_workers, len(rows) / n_workers / micro_batch_size).

    Rows of like length stay together, which saves padding, and the micro-batches that stand together in the
    order of length go to different workers, which lets them finish together. The number of rows must be a
    multiple of `n_workers * micro_batch_size`.
    """
    ordered: Rows = sorted(rows, key=lambda row: lengths[row])
    pieces = [ordered[i : i + micro_batch_size] for i in range(0, len(ordered), micro_batch_size)]
    return [pieces[worker::n_workers] for worker in range(n_workers)]


def even_shares(n: int, n_workers: int, micro_batch_size: int) -> list[list[Rows]]:
    """All `n` rows once, as micro-batches by worker; every worker gets the same number of them, so that some
    may be empty: partitioned weights need all workers at every pass."""
    pieces: list[Rows] = [range(i, min(i + micro_batch_size, n)) for i in range(0, n, micro_batch_size)]
    pieces += [range(0)] * (-len(pieces) % n_workers)
    return [pieces[worker::n_workers] for worker in range(n_workers)]


@lru_cache(maxsize=2)
def _permutation(n: int, seed: int, epoch: int) -> Any:
    return np.random.default_rng([seed, epoch]).permutation(n)
