"""Reward of a multiple-choice question: 1 for the letter of the gold option (in the last `\\boxed{}`, else in
the last `<answer>`, else after the last "answer is"), else 0.

The ground truth is the letter. Options: `letters`, the capital letters on offer (default ABCD), and
`format_bonus` (default 0), the score of a wrong letter.
"""

from __future__ import annotations

from typing import Any

from llmzero_ray.tasks.rewards.choice_letter import chosen_letter
from llmzero_ray.tasks.rewards.extraction import Result, result, visible
from llmzero_ray.tasks.rewards.reward_options import options_of_row

DEFAULT_LETTERS = "ABCD"


def compute_score(
    data_source: Any,
    solution_str: Any,
    ground_truth: Any,
    extra_info: Any = None,
    **others: Any,
) -> Result:
    """Score one response; `pred` is the letter, or empty."""
    options = options_of_row(extra_info, others)
    letters = options.get("letters")
    offered = letters.upper() if isinstance(letters, str) and letters else DEFAULT_LETTERS
    return score_offered(
        offered, data_source, solution_str, ground_truth, format_bonus=options.get("format_bonus")
    )


def score_offered(
    letters: str,
    /,
    data_source: Any,  # noqa: ARG001  VeRL passes every argument by its name
    solution_str: Any,
    ground_truth: Any,
    extra_info: Any = None,  # noqa: ARG001
    format_bonus: Any = 0.0,
    **_others: Any,
) -> Result:
    """Score one response to a question that offers `letters`, for tasks that offer all rows the same ones."""
    letter = chosen_letter(visible(solution_str), letters)
    gold = ground_truth.strip().upper() if isinstance(ground_truth, str) else None
    return result(
        right=letter is not None and letter == gold,
        found=letter is not None,
        pred=letter or "",
        format_bonus=format_bonus,
    )
