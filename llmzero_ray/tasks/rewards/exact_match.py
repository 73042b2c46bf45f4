"""Reward 1 when the answer (the last `\\boxed{}`, else the last `<answer>`, else the whole response after its
thoughts) is the expected text, else 0.

The ground truth is the text, or `{"target": [...]}` in JSON for several wordings. Runs of white space count
as one space. Options: `ignore_case` (default false); `short_answer` (default false) to compare as
PaperSearchQA does, without case, punctuation and articles; `format_bonus` (default 0).
"""

from __future__ import annotations

from typing import Any

from llmzero_ray.prepared.gold_answers import accepted_answers, normalize_answer
from llmzero_ray.tasks.rewards.extraction import Result, last_marked, result, visible
from llmzero_ray.tasks.rewards.reward_options import options_of_row


def compute_score(
    data_source: Any,  # noqa: ARG001  VeRL passes every argument by its name
    solution_str: Any,
    ground_truth: Any,
    extra_info: Any = None,
    **others: Any,
) -> Result:
    """Score one response; `pred` is the answer as it was compared, or empty."""
    options = options_of_row(extra_info, others)
    text = visible(solution_str)
    answer = last_marked(text)
    key = _key(text.strip() if answer is None else answer, options)
    right = key != "" and any(key == _key(target, options) for target in accepted_answers(ground_truth))
    return result(right=right, found=key != "", pred=key, format_bonus=options.get("format_bonus"))


def _key(text: str, options: dict[str, Any]) -> str:
    if options.get("short_answer") is True:
        return normalize_answer(text)
    squeezed = " ".join(text.split())
    return squeezed.casefold() if options.get("ignore_case") is True else squeezed
