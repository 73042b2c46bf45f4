"""How long prompts are in tokens of a model, chat template included, and how long they may be.

Needs transformers, imported when called. Not here: dropping prompts (writer.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.sources.base import TaskExample
from llmzero_ray.utils.files import small_text

_BATCH = 512


class PromptMeter:
    """The tokenizer of a directory.

    Raises:
        TaskError: it cannot be loaded, or has no chat template.
    """

    def __init__(self, directory: str, max_tokens: int | None) -> None:
        self._tokenizer = _load(directory)
        self.limit = _limit(Path(directory), max_tokens)
        """Most tokens of a prompt; None: unknown."""

    def lengths(self, examples: Sequence[TaskExample]) -> list[int]:
        """Tokens of each example's prompt."""
        found: list[int] = []
        for start in range(0, len(examples), _BATCH):
            chats = [example.messages() for example in examples[start : start + _BATCH]]
            texts = self._tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
            found += [len(ids) for ids in self._tokenizer(texts, add_special_tokens=False)["input_ids"]]
        return found


def _load(directory: str) -> Any:
    if not Path(directory).is_dir():
        raise TaskError(f"tokenizer: {directory} is no directory; name one that holds a model or tokenizer")
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises errors of many kinds
        raise TaskError(
            f"tokenizer: {directory} cannot be loaded ({type(error).__name__}: {error}); name the directory "
            "of the base model"
        ) from error
    if not tokenizer.chat_template:
        raise TaskError(f"tokenizer: {directory} has no chat template; use the instruct variant of the model")
    return tokenizer


def _limit(directory: Path, limit: int | None) -> int | None:
    """The smaller of the configured limit and the longest prompt that leaves the model one token to
    respond."""
    try:
        positions = json.loads(small_text(directory / "config.json"))["max_position_embeddings"]
    except (OSError, ValueError, KeyError, TypeError):
        return limit
    held = positions - 1 if isinstance(positions, int) and positions > 1 else limit
    return held if limit is None else min(limit, held or limit)
