"""Conversations as tokens: the examples that a training reads.

Needs a tokenizer.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from llmzero_ray.errors import TaskError
from llmzero_ray.utils.files import replace_file

Encoded: TypeAlias = tuple[list[int], list[int]]
"""Token ids of a prompt and of the response to it."""
_BATCH = 512


@dataclass(frozen=True, kw_only=True)
class SftExample:
    """One conversation to learn from."""

    messages: tuple[Mapping[str, str], ...]
    """The prompt, as a chat: role and content of each message."""
    response: str
    """What is to be learnt, without the tokenizer's end token."""


class EncodedExamples:
    """Prompts with their responses as a map-style data set: (token ids, number of prompt tokens) by index.

    Kept as an Arrow table, which many workers read quickly.
    """

    def __init__(self, table: Any) -> None:
        import pyarrow.compute as pc

        self._table = table.combine_chunks()
        self.lengths: list[int] = pc.list_value_length(table["tokens"]).to_pylist()
        """Tokens of each example."""
        self._n_prompt: list[int] = table["n_prompt"].to_pylist()

    @classmethod
    def of(cls, pairs: Sequence[Encoded]) -> EncodedExamples:
        """Data set of these examples, in this order."""
        import pyarrow as pa

        tokens = pa.array([[*prompt, *response] for prompt, response in pairs], pa.large_list(pa.int32()))
        return cls(pa.table({"tokens": tokens, "n_prompt": [len(prompt) for prompt, _ in pairs]}))

    @classmethod
    def load(cls, path: Path) -> EncodedExamples:
        """Data set from a file that `save` wrote."""
        import pyarrow.parquet as pq

        return cls(pq.ParquetFile(path).read())

    def save(self, path: Path) -> None:
        """Write a parquet file in one step.

        Raises:
            StorageError: it cannot be written.
        """
        import pyarrow.parquet as pq

        content = io.BytesIO()
        pq.write_table(self._table, content)
        replace_file(path, content.getvalue())

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self._table["tokens"][index].values.to_numpy(), self._n_prompt[index]


def encode(tokenizer: Any, examples: Sequence[SftExample]) -> list[Encoded]:
    """Tokens of conversations, as a policy meets them: the prompt in the tokenizer's chat template up to
    where the answer begins, the response up to and with the end token.

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
    for start in range(0, len(examples), _BATCH):
        some = examples[start : start + _BATCH]
        messages = [[dict(message) for message in each.messages] for each in some]
        prompts = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        responses = [each.response + tokenizer.eos_token for each in some]
        ids = [tokenizer(texts, add_special_tokens=False)["input_ids"] for texts in (prompts, responses)]
        found += zip(*ids, strict=True)
    return found
