"""Demonstrations as tokens: the examples that a training reads.

Needs a tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

Encoded: TypeAlias = tuple[list[int], list[int]]
"""Token ids of a prompt and of the response to it."""
_BATCH = 512


class EncodedExamples:
    """Prompts with their responses as a map-style data set: (token ids, number of prompt tokens) by index."""

    def __init__(self, pairs: Sequence[Encoded]) -> None:
        self._pairs = pairs
        self.lengths = [len(prompt) + len(response) for prompt, response in pairs]
        """Tokens of each example."""

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> tuple[list[int], int]:
        prompt, response = self._pairs[index]
        return [*prompt, *response], len(prompt)


def encode(tokenizer: Any, demonstrations: Sequence[tuple[str, str]]) -> list[Encoded]:
    """Tokens of (prompt, response) pairs, as a policy meets them: the prompt in the tokenizer's chat template
    up to where the answer begins, the response up to and with the end token."""
    found: list[Encoded] = []
    for start in range(0, len(demonstrations), _BATCH):
        some = demonstrations[start : start + _BATCH]
        messages = [[{"role": "user", "content": prompt}] for prompt, _ in some]
        prompts = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        responses = [response + tokenizer.eos_token for _, response in some]
        ids = [tokenizer(texts, add_special_tokens=False)["input_ids"] for texts in (prompts, responses)]
        found += zip(*ids, strict=True)
    return found
