"""Conversations as tokens, and batches of them as padded tensors.

Needs a tokenizer, and torch for the tensors, imported when called. Not here: where conversations come from
(gold.py), which examples form a batch (sampling.py).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from llmzero_ray.errors import TaskError
from llmzero_ray.files import replace_file

Encoded: TypeAlias = tuple[list[int], list[int]]
"""Token ids of a prompt and of the response to it."""

IGNORED = -100
"""Label of a token that is not scored, in transformers."""
_BATCH = 512


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Many prompts with their responses, in three arrays that many workers can read quickly."""

    tokens: Any
    """All examples one after another, int32."""
    ends: Any
    """Where each example ends in `tokens`, shape (n,)."""
    n_prompt: Any
    """Tokens of each prompt, shape (n,)."""

    @classmethod
    def of(cls, pairs: Sequence[Encoded]) -> Examples:
        """These examples, in this order."""
        return cls(
            tokens=np.fromiter((token for pair in pairs for part in pair for token in part), np.int32),
            ends=np.fromiter(accumulate(len(prompt) + len(response) for prompt, response in pairs), np.int64),
            n_prompt=np.fromiter((len(prompt) for prompt, _ in pairs), np.int64),
        )

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def lengths(self) -> Any:
        """Tokens of each example, shape (n,)."""
        return np.diff(self.ends, prepend=0)

    def n_scored(self, rows: Sequence[int]) -> int:
        """Response tokens of some examples."""
        chosen = list(rows)
        return int((self.lengths[chosen] - self.n_prompt[chosen]).sum())

    def padded(self, rows: Sequence[int], pad: int) -> tuple[Any, Any]:
        """Input ids and labels of some examples, padded on the right, shape (rows, longest); only responses
        are labelled."""
        import torch

        lengths = [int(self.lengths[row]) for row in rows]
        inputs = torch.full((len(lengths), max(lengths)), pad)
        labels = torch.full_like(inputs, IGNORED)
        for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            end, begin = int(self.ends[row]), int(self.n_prompt[row])
            ids = torch.from_numpy(self.tokens[end - length : end].astype(np.int64))
            inputs[place, :length] = ids
            labels[place, begin:length] = ids[begin:]
        return inputs, labels

    def save(self, path: Path) -> None:
        """Write a file in one step.

        Raises:
            StorageError: it cannot be written.
        """
        content = io.BytesIO()
        np.savez(content, tokens=self.tokens, ends=self.ends, n_prompt=self.n_prompt)
        replace_file(path, content.getvalue())

    @classmethod
    def load(cls, path: Path) -> Examples:
        """The examples of a file that `save` wrote."""
        with np.load(path) as held:
            return cls(tokens=held["tokens"], ends=held["ends"], n_prompt=held["n_prompt"])


def encode(tokenizer: Any, chats: Sequence[tuple[Any, str]]) -> list[Encoded]:
    """Tokens of (messages, response) pairs, as a policy meets them: the prompt in the tokenizer's chat
    template up to where the answer begins, the response up to and with the end token.

    Raises:
        TaskError: the tokenizer has no chat template or no end token.
    """
    for part, held in (("chat template", tokenizer.chat_template), ("end token", tokenizer.eos_token)):
        if not held:
            raise TaskError(
                f"the tokenizer of {tokenizer.name_or_path} has no {part}, so that no response can be "
                "written as the model is to give it; use the instruct variant of the model"
            )
    found: list[Encoded] = []
    for start in range(0, len(chats), _BATCH):
        some = chats[start : start + _BATCH]
        messages = [[dict(message) for message in chat] for chat, _ in some]
        prompts = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        responses = [response + tokenizer.eos_token for _, response in some]
        ids = [tokenizer(texts, add_special_tokens=False)["input_ids"] for texts in (prompts, responses)]
        found += zip(*ids, strict=True)
    return found
