"""How good a tiny model is at its task: greedy accuracy, and what sampling finds.

Plain transformers generation on the CPU, for the warm start. Not here: scores during a search (engines/).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.families import Problem
from llmzero_ray.tasks.prepared import PreparedTask
from llmzero_ray.tasks.rewards.marked_answer import compute_score
from llmzero_ray.tasks.splits import read_problems
from llmzero_ray.tasks.tiny_model import chat_prompt

_BATCH = 512
"""Responses generated together."""


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Shares in [0, 1] over `n_items` problems, `n_samples` responses each at temperature 1."""

    n_items: int
    n_samples: int
    greedy: float
    """Problems answered right without sampling."""
    sampled: float
    """Sampled responses that are right."""
    any_of_samples: float
    """Problems answered right by at least one of their samples (pass@n)."""
    mixed: float
    """Problems with right and wrong samples: only these have a group advantage to learn from."""


def greedy_accuracy(model: Any, tokenizer: Any, problems: Sequence[Problem], max_new_tokens: int) -> float:
    """Share of problems answered right without sampling."""
    right = outcomes(model, tokenizer, problems, max_new_tokens)
    return sum(right) / len(right)


def measure_task(task: PreparedTask, n_items: int = 128, n_samples: int = 8, seed: int = 0) -> Quality:
    """Quality of a shipped task's tiny model on its first `n_items` validation problems.

    The caller's random state is left alone.

    Raises:
        TaskError: the task has no model of its own.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if task.model_path is None or task.max_answer_tokens is None:
        raise TaskError(f"task {task.name} has no model of its own to measure; make it with make_model")
    tokenizer = AutoTokenizer.from_pretrained(task.model_path)
    model = AutoModelForCausalLM.from_pretrained(task.model_path)
    problems = read_problems(task.val)[:n_items]
    repeated = [problem for problem in problems for _ in range(n_samples)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        right = outcomes(model, tokenizer, repeated, task.max_answer_tokens, temperature=1.0)
    groups = [right[start : start + n_samples] for start in range(0, len(right), n_samples)]
    return Quality(
        n_items=len(problems),
        n_samples=n_samples,
        greedy=greedy_accuracy(model, tokenizer, problems, task.max_answer_tokens),
        sampled=sum(right) / len(right),
        any_of_samples=sum(any(group) for group in groups) / len(groups),
        mixed=sum(any(group) and not all(group) for group in groups) / len(groups),
    )


def outcomes(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    max_new_tokens: int,
    temperature: float | None = None,
) -> list[bool]:
    """Whether each response, in order, is right; greedy without a temperature."""
    found: list[bool] = []
    for start in range(0, len(problems), _BATCH):
        batch = problems[start : start + _BATCH]
        prompts = [problem.prompt for problem in batch]
        responses = _generate(model, tokenizer, prompts, max_new_tokens, temperature)
        for problem, response in zip(batch, responses, strict=True):
            found.append(compute_score("", response, problem.answer)["acc"] == 1.0)
    return found


def _generate(
    model: Any, tokenizer: Any, prompts: list[str], max_new_tokens: int, temperature: float | None
) -> list[str]:
    import torch

    texts = [chat_prompt(tokenizer, prompt) for prompt in prompts]
    inputs = tokenizer(
        texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False
    )
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature is not None:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0}
    with torch.no_grad():
        ids = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=max_new_tokens,
            **sampling,
        )
    answers: list[str] = tokenizer.batch_decode(
        ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
    )
    return answers
