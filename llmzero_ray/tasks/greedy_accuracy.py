"""Greedy accuracy of a tiny model: the share of problems that it answers right without sampling.

Plain transformers generation on the CPU, for the warm start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmzero_ray.prepared.families import Problem
from llmzero_ray.tasks.rewards.marked_answer import compute_score
from llmzero_ray.tasks.tiny_model import chat_prompt

_BATCH = 512
"""Batch size of generation, in responses."""


def greedy_accuracy(model: Any, tokenizer: Any, problems: Sequence[Problem], max_new_tokens: int) -> float:
    """Fraction of `problems`, in [0, 1], whose greedy response scores 1."""
    n_right = 0
    for start in range(0, len(problems), _BATCH):
        batch = problems[start : start + _BATCH]
        responses = generate(
            model, tokenizer, [problem.prompt for problem in batch], max_new_tokens, do_sample=False
        )
        scores = (
            compute_score("", response, problem.answer)
            for problem, response in zip(batch, responses, strict=True)
        )
        n_right += sum(score["acc"] == 1.0 for score in scores)
    return n_right / len(problems)


def generate(
    model: Any, tokenizer: Any, prompts: Sequence[str], max_new_tokens: int, **sampling: Any
) -> list[str]:
    """One response per prompt, in order; `sampling` goes to transformers' `generate`."""
    import torch

    texts = [chat_prompt(tokenizer, prompt) for prompt in prompts]
    inputs = tokenizer(
        texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False
    )
    with torch.no_grad():
        ids = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=max_new_tokens,
            **sampling,
        )
    responses: list[str] = tokenizer.batch_decode(
        ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
    )
    return responses
