"""Hyper-parameters that the message of a rejection names."""

from __future__ import annotations

import re

from llmzero_ray.hyperparameters import SPACE
from llmzero_ray.hyperparameters.couplings import MICRO_BATCHES
from llmzero_ray.hyperparameters.verl_keys import MINI_BATCH, ROLLOUT_N, TRAIN_BATCH


def mentioned_keys(text: str | None) -> frozenset[str]:
    """Keys named in a message by key, by the end of a key, or by alias. A batch size includes the keys it
    depends on."""
    if not text:
        return frozenset()
    found = {row.key for row in SPACE if _named(text, row.key, (row.alias, *row.also))}
    if found & {MINI_BATCH, *MICRO_BATCHES}:
        found |= {TRAIN_BATCH, ROLLOUT_N}
    return frozenset(found)


def _named(text: str, key: str, aliases: tuple[str, ...]) -> bool:
    words = (key, key.rpartition(".")[2], *aliases)
    # "n" and "T" are words of their own in prose: they count only with a value, as in n=12.
    patterns = (rf"{re.escape(word)}\s*=" if len(word) <= 2 else re.escape(word) for word in words)
    return any(re.search(rf"(?<![\w.]){pattern}(?![\w.]\w)", text) for pattern in patterns)
