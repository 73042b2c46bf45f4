"""Teach a fresh tiny model a task partly, by imitation, so that reinforcement has something to improve.

A fixed number of steps and no early end: on one machine the same recipe and thread count give the same
weights. Needs torch, imported when called.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from llmzero_ray.tasks.families import WarmStart
from llmzero_ray.tasks.tiny_model import END, chat_prompt

_MAX_GRAD_NORM = 1.0
_IGNORED = -100
"""Label of a token that is not scored, in transformers."""
_CHUNK = 32
"""Responses that pass the model together: a batch is cut by length, which saves half of the padding."""

Encoded: TypeAlias = tuple[list[int], list[int]]
"""Token ids of a prompt and of the response to it."""


def teach(
    model: Any,
    tokenizer: Any,
    demonstrations: Sequence[tuple[str, str]],
    recipe: WarmStart,
    seed: int,
    on_step: Callable[[int, float], None],
) -> None:
    """Train `model` in place on (prompt, response) pairs.

    `on_step` hears every step, counted from 1, and its mean loss per response token.
    """
    import torch

    pairs = [_encode(tokenizer, prompt, response) for prompt, response in demonstrations]
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    model.train()
    for step in range(1, recipe.n_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step)
        optimizer.zero_grad()
        loss = _backward(model, rng.choices(pairs, k=recipe.batch_size), tokenizer.pad_token_id)
        torch.nn.utils.clip_grad_norm_(model.parameters(), _MAX_GRAD_NORM)
        optimizer.step()
        on_step(step, loss)
    model.eval()


def learning_rate(recipe: WarmStart, step: int) -> float:
    """Learning rate at `step` (from 1): a linear rise times a linear fall over the whole training."""
    rise = min(1.0, step / recipe.warmup_steps)
    return recipe.lr * rise * (1 - (1 - recipe.final_lr_share) * step / recipe.n_steps)


def _encode(tokenizer: Any, prompt: str, response: str) -> Encoded:
    texts = [chat_prompt(tokenizer, prompt), response + END]
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return ids[0], ids[1]


def _backward(model: Any, batch: list[Encoded], pad: int) -> float:
    """Leave the gradients of the batch's mean loss per response token in the model; returns that loss."""
    batch = sorted(batch, key=lambda pair: len(pair[0]) + len(pair[1]))
    n_tokens = sum(len(response) for _, response in batch)
    total = 0.0
    for start in range(0, len(batch), _CHUNK):
        inputs, labels = _pad_right(batch[start : start + _CHUNK], pad)
        # Padding stands right of everything that is scored, so the causal mask alone hides it.
        loss = model(input_ids=inputs, labels=labels, num_items_in_batch=n_tokens, use_cache=False).loss
        loss.backward()
        total += loss.item()
    return total


def _pad_right(pairs: list[Encoded], pad: int) -> tuple[Any, Any]:
    """Input ids and labels, shape (pairs, longest); only responses are labelled."""
    import torch

    shape = len(pairs), max(len(prompt) + len(response) for prompt, response in pairs)
    inputs, labels = torch.full(shape, pad), torch.full(shape, _IGNORED)
    for row, (prompt, response) in enumerate(pairs):
        end = len(prompt) + len(response)
        inputs[row, :end] = torch.tensor(prompt + response)
        labels[row, len(prompt) : end] = torch.tensor(response)
    return inputs, labels
