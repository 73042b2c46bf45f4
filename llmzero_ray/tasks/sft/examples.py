"""Demonstrations as tokens: the examples that a training reads.

Needs a tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

Demonstration: TypeAlias = tuple[Sequence[Mapping[str, str]], str]
"""The messages of a prompt (role and content of each), and the response to learn, without end token."""
Encoded: TypeAlias = tuple[list[int], list[int]]
"""Token ids of a prompt and of the response to it."""
_BATCH = 512


class EncodedExamples:
    """Prompts with their responses as a map-style data set: (token ids, number of prompt tokens) by index.

    They are kept in one array, which is fast to send to workers.
    """

    def __init__(self, pairs: Sequence[Encoded]) -> None:
        self._tokens = np.fromiter((token for pair in pairs for part in pair for token in part), np.int32)
        self._n_prompt = [len(prompt) for prompt, _ in pairs]
        self.lengths = [len(prompt) + len(response) for prompt, response in pairs]
        """Tokens of each example."""
        self._ends = np.cumsum(self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        end = self._ends[index]
        return self._tokens[end - self.lengths[index] : end], self._n_prompt[index]


def encode(tokenizer: Any, demonstrations: Sequence[Demonstration]) -> list[Encoded]:
    """Tokens of demonstrations, as a policy sees them: the prompt in the tokenizer's chat template up to
    where the answer begins, and the response including the end token."""
    found: list[Encoded] = []
    for start in range(0, len(demonstrations), _BATCH):
        some = demonstrations[start : start + _BATCH]
        messages = [[dict(message) for message in prompt] for prompt, _ in some]
        prompts = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        responses = [response + tokenizer.eos_token for _, response in some]
        ids = [tokenizer(texts, add_special_tokens=False)["input_ids"] for texts in (prompts, responses)]
        found += zip(*ids, strict=True)
    return found
